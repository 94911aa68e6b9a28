/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_PAIRS_H
#define KU_TRAIN_PAIRS_H

#include "data/pairs/buckets.h"
#include "data/pairs/parallel_corpus.h"
#include "data/tokenizer/vocab.h"
#include "config/batch_relation.h"
#include "config/config.h"

/*
 * The sentence pairs of a configuration: vocabularies, data, and batches of few shapes. Every shape
 * is a program of its own; those of validation follow those of training.
 */
struct ku_pairs {
    struct ku_vocab *src, *tgt; /* may be one */
    struct ku_data *data;
    struct ku_buckets *buckets[KU_N_SPLITS]; /* NULL: the split is absent */
    int64_t n_parts, n_at_once;              /* micro-batches of a batch, and of a program's run */
};
/*
 * b: virtual shards and micro-batches, whose product divides the rows of every shape. Without
 * data.batch_tokens they are b's global batch. With n_parts shapes are those of such batches, of
 * which a program's run takes virtual_shards * k micro-batches: an evaluation by any number of
 * ranks has the micro-batches of the training's.
 *
 * Errors: KUMI_EINPUT, EINVAL, ENOMEM; p holds nothing then.
 */
int ku_pairs_open(const struct ku_config *c, const struct ku_batch *b,
                  const struct ku_progress *progress, struct ku_pairs *p);
void ku_pairs_fini(struct ku_pairs *p);

int ku_pairs_n_shapes(const struct ku_pairs *p);
/* Shape number i, of 0 .. n_shapes - 1; its rows are those of a program's run. */
struct ku_bucket_shape ku_pairs_shape(const struct ku_pairs *p, int i);
/* The largest of training, which plans and graphs show. */
int ku_pairs_last_shape(const struct ku_pairs *p);
/* Runs of programs that an epoch of a split takes; one a step of training. */
int64_t ku_pairs_n_runs(const struct ku_pairs *p, enum ku_data_split split);
/* The shape of a run of a split. */
int ku_pairs_shape_at(const struct ku_pairs *p, enum ku_data_split split, int64_t run);
/* Bytes of a row of a port in batches of that shape. */
size_t ku_pairs_row_bytes(const struct ku_data_port *port, const struct ku_bucket_shape *shape);
/* Rows [first, first + n) of a run, side by side: to [n_ports]. Errors: KUMI_EINPUT. */
int ku_pairs_rows(const struct ku_pairs *p, enum ku_data_split split, int64_t run, int64_t first,
                  int64_t n, void *const *to);
/* Targets of an epoch of training: what a step's loss positions add up to. */
int64_t ku_pairs_targets(const struct ku_pairs *p);

#define KU_PAIRS_VOCAB_FILES "source.vocab", "target.vocab"
/* The vocabularies of words, as DIR/source.vocab and DIR/target.vocab; of tokenizers nothing is
 * written. Errors: KUMI_ESTORAGE. */
int ku_pairs_save_vocab(const struct ku_pairs *p, const char *dir);
/* Those of a run at DIR: its files, or what the configuration names. For translation.
 *   tokenizer   in their place, of source and target; NULL: they are not replaced */
int ku_pairs_open_vocab(const struct ku_config *c, const char *dir, const char *const tokenizer[2],
                        struct ku_pairs *p);

#endif
