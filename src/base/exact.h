/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_EXACT_H
#define KU_BASE_EXACT_H

#include <stdint.h>

/*
 * An order-independent exact sum of f64 values: a fixed-point number of 2^-1074 … 2^1023 in signed
 * 64-bit limbs of radix 2^32 (Kulisch's long accumulator with deferred carries). Each limb has 31
 * spare bits, so 2^30 adds, or additions of accumulators, are exact before ku_exact_normalize;
 * ku_exact_add_* normalise by themselves. Two accumulators combine by plain integer addition of all
 * words, which is how ranks reduce them (i64 sum): no order can show. A NaN or infinity sets counts
 * in `special` (also summed): the result is then NaN, or the infinity.
 */
enum { KU_EXACT_LIMBS = 68, KU_EXACT_WORDS = 72 };
struct ku_exact {
    int64_t limb[KU_EXACT_LIMBS]; /* limb[i] weighs 2^(32 i - 1074) */
    int64_t n_pos_inf, n_neg_inf, n_nan;
    int64_t n_adds; /* since the last normalisation; sums too */
};
_Static_assert(sizeof(struct ku_exact) == KU_EXACT_WORDS * 8, "reduced as KU_EXACT_WORDS i64");

void ku_exact_zero(struct ku_exact *a);
void ku_exact_add(struct ku_exact *a, double x);
void ku_exact_add_f32(struct ku_exact *a, const float *x, int64_t count);
void ku_exact_add_f64(struct ku_exact *a, const double *x, int64_t count);
void ku_exact_merge(struct ku_exact *a, const struct ku_exact *b);
void ku_exact_normalize(struct ku_exact *a); /* same value; canonical limbs: equal sums have equal
                                                words but n_adds = 0 */
int ku_exact_is_finite(const struct ku_exact *a);
double ku_exact_round(const struct ku_exact *a); /* the exact sum, rounded once to nearest even */
float ku_exact_round_f32(
    const struct ku_exact *a); /* likewise, directly to f32: no double rounding */

#endif
