/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_PAIRS_BUCKETS_H
#define KU_DATA_PAIRS_BUCKETS_H

#include "base/str.h"
#include "data/data.h"
#include "data/sampler.h"

#include <stdint.h>

/*
 * Batches of samples of like length. A handful of shapes (rows x source length x target length) is
 * chosen for the lengths of the data, so that each can be compiled once; every step has one shape,
 * the same for all ranks and micro-batches. Which sample stands at a position of a step is a
 * function of (step, position) in O(n_shapes) time, and ranks do not occur in it.
 *
 * Shapes grow in both lengths from the first to the last, and a sample belongs to the first that
 * holds it. What is left over when the samples of a shape are cut into its rows goes with the next
 * shape, so only the last shape has an incomplete batch: data.last_batch says what becomes of it
 * (ku_last_batch; short: it is the last step of the epoch). Samples of a shape and batches of an
 * epoch are seeded permutations of the epoch.
 *
 * Data of one shape are the case n_shapes = 1: the same samples at the same places as ku_sampler's.
 */
enum { KU_SHAPES_MAX = 16 };

struct ku_bucket_shape {
    int64_t rows; /* of a global batch */
    int64_t src_len, tgt_len;
};

struct ku_buckets_opts {
    int n_shapes_max;   /* 1 to KU_SHAPES_MAX; fewer are taken where more do not pay */
    int64_t batch_rows; /* rows of every shape; 0: batch_tokens / the longer length, rounded down */
    int64_t batch_tokens; /* of a global batch's longer side, padding counted */
    int64_t multiple;     /* rows are a multiple of it: virtual shards x micro-batches of a shard */
    int64_t len_multiple; /* lengths of shapes are multiples of it; 0: 1 */
    enum ku_last_batch last;
    int shuffle;
    uint64_t seed;
};

struct ku_buckets;

/*
 * Chooses the shapes of least padding and sorts the samples.
 *
 *   src_len, tgt_len   [n_samples], 0 or more; NULL: all 0. Read during the call only
 *
 * Memory: 4 bytes a sample where there are several shapes. Owns: *out, until ku_buckets_destroy.
 * Errors: EINVAL (options; a shape of `multiple` rows above batch_tokens; last_batch drop would
 * leave nothing), ENOMEM.
 */
int ku_buckets_create(const struct ku_buckets_opts *opts, const int32_t *src_len,
                      const int32_t *tgt_len, int64_t n_samples, struct ku_buckets **out);
/* The same for a split of data; one shape, of the ports' lengths, where they do not vary. */
int ku_buckets_of_data(const struct ku_data *d, enum ku_data_split split,
                       const struct ku_buckets_opts *opts, struct ku_buckets **out);
void ku_buckets_destroy(struct ku_buckets *b); /* NULL is fine */

int ku_buckets_n_shapes(const struct ku_buckets *b);
struct ku_bucket_shape ku_buckets_shape(const struct ku_buckets *b, int shape);
int64_t ku_buckets_steps_per_epoch(const struct ku_buckets *b);

/* The shape of a step, 0 to n_shapes - 1. */
int ku_buckets_shape_at(const struct ku_buckets *b, int64_t step);
/* Positions of this step that hold a sample: the shape's rows, or fewer in a short batch. They come
 * first. */
int64_t ku_buckets_batch(const struct ku_buckets *b, int64_t step);
/* The sample at a position of a step, or -1 behind the end of a short batch. 0 <= position < the
 * shape's rows. */
int64_t ku_buckets_at(const struct ku_buckets *b, int64_t step, int64_t position);
/* The number of that draw over all epochs, each draw once. -1 as above. */
int64_t ku_buckets_number(const struct ku_buckets *b, int64_t step, int64_t position);

/* The share of an epoch's tokens, source and target, that is padding: 0 to 1. */
double ku_buckets_padding(const struct ku_buckets *b);
/* "3 shapes: 64 x 8 x 12 (120 steps), …; 4.1 % padding" */
void ku_buckets_print(const struct ku_buckets *b, struct ku_str *out);

#endif
