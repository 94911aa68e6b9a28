/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BATCH_BATCH_SOURCE_H
#define KU_BATCH_BATCH_SOURCE_H

#include "base/err.h"
#include "config/batch_relation.h"
#include "config/config.h"
#include "data/data.h"
#include "data/loader.h"
#include "ir/graph.h"
#include "model/model.h"

/*
 * The batches of a run. A batch source opens the data of a configuration and says which rows each
 * run of a program reads. Sessions, plans and reports use it for every kind of data; what differs
 * between the kinds is in the ops of
 *
 *     text_source.c       windows of text, documents      one batch shape   fixed_shape.c
 *     image_source.c      images and labels               one batch shape   fixed_shape.c
 *     parallel_source.c   pairs of sentences              a few shapes, chosen from the lengths
 *
 * A run is one execution of a program: in training a step, in evaluation one of n_runs batches.
 *
 *     create ── open_data ── open ──┬── n_shapes, shape: what programs are compiled for
 *                                   └── per run: shape_at, then fill for each micro-batch
 *
 *     rows of a run    0 .. 3    4 .. 7    8 .. 11   12 .. 15
 *     rank             0         0         1         1
 *     micro-batch      0         1         0         1
 *
 * Rows are a function of (split, run, row): ranks, workers and a resume do not change them, so a
 * checkpoint stores no position, only the fingerprint of the data. Files that a run needs later
 * (vocabularies) are written once by `save`.
 */
struct ku_batch_shape {
    int64_t rows;             /* of one run of a program, all ranks together */
    int64_t src_len, tgt_len; /* positions per row; src_len 0: none */
    enum ku_data_split split; /* the split that has batches of this shape */
};

struct ku_batch_source;
struct ku_batch_source_ops {
    size_t bytes;   /* of the source's own struct, which begins with struct ku_batch_source */
    int has_shapes; /* shapes depend on the data: plans need them open */
    /* Of a configuration and its model, without a source. */
    const char *(*kind)(const struct ku_config *c); /* value of data.kind */
    int (*check)(const struct ku_config *c,
                 const struct ku_model *m); /* KUMI_EINVAL with the key */
    int (*seq_len)(const struct ku_config *c, const struct ku_model *m, int64_t *out);
    /* The tokenizer whose files checkpoints hold, of model and data alike; NULL: none. */
    const char *(*tokenizer)(const struct ku_config *c);

    int (*open_data)(struct ku_batch_source *s); /* sets data */
    int (*open)(struct ku_batch_source *s);      /* sets steps_per_epoch, eval_samples */
    void (*close)(struct ku_batch_source *s);    /* at any stage */
    /* Whether the data fit the inputs of a graph; n_shapes graphs for several shapes. */
    int (*check_graph)(const struct ku_batch_source *s, const struct ku_graph *g);

    int (*n_shapes)(const struct ku_batch_source *s);
    struct ku_batch_shape (*shape)(const struct ku_batch_source *s, int i);
    int (*largest_shape)(const struct ku_batch_source *s); /* of training */
    int (*shape_at)(const struct ku_batch_source *s, enum ku_data_split split, int64_t run);
    int64_t (*n_runs)(const struct ku_batch_source *s, enum ku_data_split split); /* one epoch */
    /* Read rows [first, first + n) of a run, as in fill, without read-ahead. */
    int (*rows)(const struct ku_batch_source *s, enum ku_data_split split, int64_t run,
                int64_t first, int64_t n, void *const *to);
    /*
     * Fill the ports for micro-batch u of this rank.
     *
     *   range   [n_micro], the rows of this rank's micro-batches, equal in all runs of a shape
     *   to      [data->n_ports], address of the first row of range[u] in each port
     */
    int (*fill)(struct ku_batch_source *s, enum ku_data_split split, int64_t run,
                const struct ku_loader_range *range, int n_micro, int u, void *const *to);
    /* Valid targets of a run of training, whose rows are all in `to`. */
    int64_t (*n_targets)(const struct ku_batch_source *s, int64_t run, void *const *to);
    size_t (*read_ahead_bytes)(const struct ku_batch_source *s, const struct ku_graph *g);
    int64_t (*n_unread)(const struct ku_batch_source *s); /* samples skipped so far on this rank */

    /* Append "global batch 16 = 2 shards x 8 x 1"; what a plan shows of shape i; its short form. */
    void (*print)(const struct ku_batch_source *s, struct ku_str *out);
    void (*print_plan)(const struct ku_batch_source *s, int i, struct ku_str *out);
    void (*print_title)(const struct ku_batch_source *s, int i, struct ku_str *out);
    /* For `kumi data verify`: lines about all data; about a split. */
    void (*print_data)(const struct ku_batch_source *s, struct ku_str *out);
    void (*print_split)(const struct ku_batch_source *s, enum ku_data_split split,
                        struct ku_str *out);
    /* The key that sets the size of a batch, and its value. */
    const char *(*size_key)(const struct ku_batch_source *s, int64_t *value);
    int (*save)(const struct ku_batch_source *s, const char *dir); /* KUMI_ESTORAGE */
};
extern const struct ku_batch_source_ops ku_text_batches, ku_image_batches, ku_parallel_batches;

struct ku_batch_source {
    const struct ku_batch_source_ops *ops;
    const struct ku_config *cfg; /* this and the next two are borrowed */
    struct ku_model *model;      /* open sets vocabulary sizes that it lacks */
    const struct ku_batch *batch;
    int64_t seq_len;
    struct ku_progress progress; /* called while files are read, and while a fill waits */
    struct ku_data *data;        /* NULL: not open */
    int64_t steps_per_epoch, eval_samples;
};

/* The kind that a configuration and its model imply. */
const struct ku_batch_source_ops *ku_batch_source_of(const struct ku_config *c,
                                                     const struct ku_model *m);
/*
 * Create a source.
 *
 *   seq_len   loss positions of a row, as by ops->seq_len
 *
 * Owns: *out, until ku_batch_source_destroy. Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_batch_source_create(const struct ku_config *c, struct ku_model *m,
                                 const struct ku_batch *b, int64_t seq_len,
                                 struct ku_batch_source **out);
void ku_batch_source_destroy(struct ku_batch_source *s); /* NULL is allowed */
/*
 * open_data and open.
 *
 *   progress   borrowed until destroy; NULL: none
 *
 * Blocks: while text is tokenized. Errors: KUMI_EINPUT, EINVAL, ENOMEM.
 */
KU_STATUS ku_batch_source_open(struct ku_batch_source *s, const struct ku_progress *progress);
/* Bytes of one row of a port in a batch of this shape. */
size_t ku_batch_row_bytes(const struct ku_data_port *port, const struct ku_batch_shape *shape);
/* Whether data.batch_tokens sets the size of a batch; else train.global_batch does. */
bool ku_batch_is_in_tokens(const struct ku_config *c, const struct ku_model *m);
/* Whether the loss counts samples instead of tokens. */
bool ku_batch_is_by_samples(const struct ku_batch_source *s);

/*
 * KUMI_EINVAL if a length exceeds the model's positions.
 *
 *   more   tokens that the model reads in addition
 */
KU_STATUS ku_batch_check_length(const struct ku_config *c, const struct ku_model *m,
                                const char *key, int64_t value, int64_t more);

#endif
