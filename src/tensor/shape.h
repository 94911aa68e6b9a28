/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TENSOR_SHAPE_H
#define KU_TENSOR_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef uint32_t ku_id; /* index into an array of the owning object; 0 = none */

enum { KU_MAX_DIMS = 8 };

/*
 * A logical dimension, i.e. of the whole job's tensor: dim n of an activation has all samples of
 * the global batch.
 *
 *   count  elements, padding included
 *   seen   elements without padding; [seen, count) is zero and appears in no file or digest
 *   name   one letter, unique in a shape; splits and placement rules refer to it
 *
 * Common names: n samples, t tokens, c channels, h heads, d head width, f hidden width, v
 * vocabulary, p positions.
 */
struct ku_dim {
    int64_t count, seen;
    char name;
};
struct ku_shape {
    int ndim;
    struct ku_dim dim[KU_MAX_DIMS];
};

/* Builds a shape with seen = count: ku_shape_of("ntc", (int64_t[]){8, 64, 128}). */
struct ku_shape ku_shape_of(const char *names, const int64_t *count);
bool ku_shape_is_equal(const struct ku_shape *a,
                       const struct ku_shape *b);       /* counts, seen and names */
int ku_shape_find(const struct ku_shape *s, char name); /* the dim's index, or -1 */
/* Number of elements, padding included; 1 for a scalar. */
int64_t ku_shape_count(const struct ku_shape *s);
int64_t ku_shape_seen(const struct ku_shape *s); /* elements without padding */
/*
 * Moves *at to the first element at or after it that is no padding, and returns how many elements
 * without padding follow one another there, in row-major order. 0: none before element `end`.
 */
int64_t ku_shape_seen_run(const struct ku_shape *s, int64_t *at, int64_t end);
/*
 * Returns 0, or KUMI_EINVAL: too many dims, a negative count, seen > count, a name that is repeated
 * or not printable, more than 2^48 elements.
 */
KU_STATUS ku_shape_check(const struct ku_shape *s, const char *what);
/*
 * Prints "[n=8 t=64 v=384:320]" (seen after the colon if it differs); "[]" for a scalar. Returns
 * out.
 */
char *ku_shape_print(const struct ku_shape *s, char *out, size_t bytes);

#endif
