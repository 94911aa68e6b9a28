/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_PAIRS_BUCKETS_H
#define KU_DATA_PAIRS_BUCKETS_H

#include "base/err.h"
#include "base/str.h"
#include "data/data.h"
#include "data/sampler.h"

#include <stdint.h>

/*
 * Batches of samples of similar length. A few shapes (rows x source length x target length) are
 * chosen for the data's lengths, so that each is compiled once. A step has one shape, the same for
 * all ranks and micro-batches. The sample at a position of a step is a function of (step,
 * position), in O(n_shapes) time; ranks are not an argument.
 *
 * Shapes ascend in both lengths, and a sample uses the first shape that holds it:
 *
 *     shape 0   64 rows x  8 x 12
 *     shape 1   40 rows x 16 x 20     takes the samples left over by shape 0
 *     shape 2   16 rows x 40 x 50     takes the samples left over by shape 1
 *
 * So only the last shape has an incomplete batch, for which data.last_batch applies (enum
 * ku_last_batch; with short it is the last step of the epoch). The samples of a shape and the
 * batches of an epoch are permuted by seed and epoch.
 *
 * With n_shapes = 1 the samples are those of ku_sampler.
 */
enum { KU_SHAPES_MAX = 16 };

struct ku_bucket_shape {
    int64_t rows; /* of a global batch */
    int64_t src_len, tgt_len;
};

struct ku_buckets_opts {
    int n_shapes_max;     /* 1 to KU_SHAPES_MAX; fewer are used if more do not reduce padding */
    int64_t batch_rows;   /* rows of every shape; 0: batch_tokens / longer length, rounded down */
    int64_t batch_tokens; /* tokens of a global batch's longer side, with padding */
    int64_t multiple;     /* rows are a multiple of it: virtual shards x micro-batches per shard */
    int64_t len_multiple; /* lengths of shapes are multiples of it; 0: 1 */
    enum ku_last_batch last;
    int shuffle;
    uint64_t seed;
};

struct ku_buckets;

/*
 * Choose the shapes with the least padding and sort the samples.
 *
 *   src_len, tgt_len   [n_samples], 0 or more; NULL: all 0. Read during the call only
 *
 * Memory: 4 bytes per sample if there are several shapes. Owns: *out, until ku_buckets_destroy.
 * Errors: EINVAL (options; `multiple` rows of the longest sample exceed batch_tokens; last_batch
 * drop leaves no batch), ENOMEM.
 */
KU_STATUS ku_buckets_create(const struct ku_buckets_opts *opts, const int32_t *src_len,
                            const int32_t *tgt_len, int64_t n_samples, struct ku_buckets **out);
/* The same for a split of a data set; one shape if its lengths do not vary. */
KU_STATUS ku_buckets_of_data(const struct ku_data *d, enum ku_data_split split,
                             const struct ku_buckets_opts *opts, struct ku_buckets **out);
void ku_buckets_destroy(struct ku_buckets *b);

int ku_buckets_n_shapes(const struct ku_buckets *b);
struct ku_bucket_shape ku_buckets_shape(const struct ku_buckets *b, int shape);
int64_t ku_buckets_steps_per_epoch(const struct ku_buckets *b);

/* The shape of a step, 0 to n_shapes - 1. */
int ku_buckets_shape_at(const struct ku_buckets *b, int64_t step);
/* Number of leading positions that hold a sample: the shape's rows, or fewer in a short batch. */
int64_t ku_buckets_batch(const struct ku_buckets *b, int64_t step);
/* The sample at position 0 to rows - 1 of a step; -1 after the end of a short batch. */
int64_t ku_buckets_at(const struct ku_buckets *b, int64_t step, int64_t position);
/* The number of that draw, unique over all epochs; -1 as above. */
int64_t ku_buckets_number(const struct ku_buckets *b, int64_t step, int64_t position);

/* Fraction of an epoch's tokens, source and target, that is padding: 0 to 1. */
double ku_buckets_padding(const struct ku_buckets *b);
/* "3 shapes: 64 x 8 x 12 (120 steps), …; 4.1 % padding" */
void ku_buckets_print(const struct ku_buckets *b, struct ku_str *out);

#endif
