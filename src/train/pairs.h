/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_PAIRS_H
#define KU_TRAIN_PAIRS_H

#include "base/err.h"
#include "data/pairs/buckets.h"
#include "data/pairs/parallel_corpus.h"
#include "data/tokenizer/vocab.h"
#include "config/batch_relation.h"
#include "config/config.h"

/*
 * The parallel corpus of a configuration: vocabularies, data, and batches of a few shapes. Every
 * shape has its own program. Shapes are numbered 0 .. n_shapes - 1: first those of training, then
 * those of validation.
 */
struct ku_pairs {
    struct ku_vocab *src, *tgt; /* may be the same object */
    struct ku_data *data;
    struct ku_buckets *buckets[KU_N_SPLITS]; /* NULL: no such split */
    int64_t n_parts, n_at_once;              /* micro-batches per batch, and per run of a program */
};
/*
 * Open vocabularies, data and buckets.
 *
 *   b   virtual shards and micro-batches; their product divides the rows of every shape. Without
 *       data.batch_tokens, the rows are b's global batch. With b->n_parts, shapes have n_parts
 *       micro-batches, and one run of a program takes virtual_shards * k of them. Evaluation on any
 *       number of ranks then has the micro-batches of training.
 *
 * Errors: KUMI_EINPUT, EINVAL, ENOMEM; p is then empty.
 */
KU_STATUS ku_pairs_open(const struct ku_config *c, const struct ku_batch *b,
                        const struct ku_progress *progress, struct ku_pairs *p);
void ku_pairs_fini(struct ku_pairs *p);

int ku_pairs_n_shapes(const struct ku_pairs *p);
/*
 * Shape i, of 0 .. n_shapes - 1. Its rows are those of one run of a program.
 */
struct ku_bucket_shape ku_pairs_shape(const struct ku_pairs *p, int i);
/* Index of the largest training shape, which plans and graph dumps show. */
int ku_pairs_last_shape(const struct ku_pairs *p);
/*
 * Program runs in one epoch of a split. In training a run is a step.
 */
int64_t ku_pairs_n_runs(const struct ku_pairs *p, enum ku_data_split split);
/* Shape index of a run. */
int ku_pairs_shape_at(const struct ku_pairs *p, enum ku_data_split split, int64_t run);
/* Bytes per row of a port in batches of this shape. */
size_t ku_pairs_row_bytes(const struct ku_data_port *port, const struct ku_bucket_shape *shape);
/*
 * Read rows [first, first + n) of a run.
 *
 *   to   [n_ports], consecutive rows of each port
 *
 * Errors: KUMI_EINPUT.
 */
KU_STATUS ku_pairs_rows(const struct ku_pairs *p, enum ku_data_split split, int64_t run,
                        int64_t first, int64_t n, void *const *to);
/* Targets in one epoch of training: the sum of the loss positions of its steps. */
int64_t ku_pairs_targets(const struct ku_pairs *p);

#define KU_PAIRS_VOCAB_FILES "source.vocab", "target.vocab"
/*
 * Save word vocabularies as DIR/source.vocab and DIR/target.vocab. Nothing is written for
 * tokenizers. Errors: KUMI_ESTORAGE.
 */
KU_STATUS ku_pairs_save_vocab(const struct ku_pairs *p, const char *dir);
/*
 * Open the vocabularies of a run for translation: the files in DIR, or what the configuration
 * names.
 *
 *   tokenizer   replacements for source and target; NULL: not replaced
 */
KU_STATUS ku_pairs_open_vocab(const struct ku_config *c, const char *dir,
                              const char *const tokenizer[2], struct ku_pairs *p);

#endif
