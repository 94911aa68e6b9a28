/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BATCH_FIXED_SHAPE_H
#define KU_BATCH_FIXED_SHAPE_H

#include "base/err.h"
#include "batch/batch_source.h"

/*
 * What batch sources with one batch shape share: a sampler draws the samples of a step, and a
 * loader per split reads them ahead. Such a source adds kind, check and open_data.
 */
struct ku_fixed_source {
    struct ku_batch_source base;
    struct ku_sampler sampler;
    struct ku_loader *loader[KU_N_SPLITS]; /* created by the first fill */
};

KU_STATUS ku_fixed_seq_len(const struct ku_config *c, const struct ku_model *m, int64_t *out);
const char *ku_fixed_tokenizer(const struct ku_config *c);
KU_STATUS ku_fixed_open(struct ku_batch_source *s);
void ku_fixed_close(struct ku_batch_source *s);
/*
 * The inputs of the graph, except `control`, must be exactly the ports of the data, with the same
 * types. Errors: KUMI_EINVAL with both types.
 */
KU_STATUS ku_fixed_check_graph(const struct ku_batch_source *s, const struct ku_graph *g);
int ku_fixed_n_shapes(const struct ku_batch_source *s);
struct ku_batch_shape ku_fixed_shape(const struct ku_batch_source *s, int i);
int ku_fixed_largest_shape(const struct ku_batch_source *s);
int ku_fixed_shape_at(const struct ku_batch_source *s, enum ku_data_split split, int64_t run);
int64_t ku_fixed_n_runs(const struct ku_batch_source *s, enum ku_data_split split);
KU_STATUS ku_fixed_rows(const struct ku_batch_source *s, enum ku_data_split split, int64_t run,
                        int64_t first, int64_t n, void *const *to);
KU_STATUS ku_fixed_fill(struct ku_batch_source *s, enum ku_data_split split, int64_t run,
                        const struct ku_loader_range *range, int n_micro, int u, void *const *to);
int64_t ku_fixed_n_targets(const struct ku_batch_source *s, int64_t run, void *const *to);
double ku_fixed_flops_per_item(const struct ku_batch_source *s, const double *flops);
size_t ku_fixed_read_ahead_bytes(const struct ku_batch_source *s, const struct ku_graph *g);
int64_t ku_fixed_n_unread(const struct ku_batch_source *s);
void ku_fixed_print(const struct ku_batch_source *s, struct ku_str *out);
void ku_fixed_print_plan(const struct ku_batch_source *s, int i, struct ku_str *out);
void ku_fixed_print_title(const struct ku_batch_source *s, int i, struct ku_str *out);
void ku_fixed_print_data(const struct ku_batch_source *s, struct ku_str *out);
void ku_fixed_print_split(const struct ku_batch_source *s, enum ku_data_split split,
                          struct ku_str *out);
const char *ku_fixed_size_key(const struct ku_batch_source *s, int64_t *value);
KU_STATUS ku_fixed_save(const struct ku_batch_source *s, const char *dir);

#define KU_FIXED_SHAPE_OPS                                                                         \
    .seq_len = ku_fixed_seq_len, .tokenizer = ku_fixed_tokenizer, .close = ku_fixed_close,         \
    .check_graph = ku_fixed_check_graph, .n_shapes = ku_fixed_n_shapes, .shape = ku_fixed_shape,   \
    .largest_shape = ku_fixed_largest_shape, .shape_at = ku_fixed_shape_at,                        \
    .n_runs = ku_fixed_n_runs, .rows = ku_fixed_rows, .fill = ku_fixed_fill,                       \
    .n_targets = ku_fixed_n_targets, .flops_per_item = ku_fixed_flops_per_item,                    \
    .read_ahead_bytes = ku_fixed_read_ahead_bytes, .n_unread = ku_fixed_n_unread,                  \
    .print = ku_fixed_print, .print_plan = ku_fixed_print_plan,                                    \
    .print_title = ku_fixed_print_title, .print_data = ku_fixed_print_data,                        \
    .print_split = ku_fixed_print_split, .size_key = ku_fixed_size_key, .save = ku_fixed_save

#endif
