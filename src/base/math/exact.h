/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_MATH_EXACT_H
#define KU_BASE_MATH_EXACT_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Exact sum of f64 values, independent of the order of additions (Kulisch's long accumulator with
 * deferred carries).
 *
 * The sum is a fixed-point number from 2^-1074 to 2^1023, held in signed 64-bit limbs of radix
 * 2^32. A limb has 31 spare bits, so up to 2^30 additions of values or accumulators are exact
 * before ku_exact_normalize must run; the add functions normalize by themselves.
 *
 *     value  = sum over i of limb[i] * 2^(32 i - 1074)
 *     limb[i]  | 31 spare bits + sign | 32 bits |
 *
 * Ranks reduce two accumulators by adding all KU_EXACT_WORDS words as i64; every order gives the
 * same words. NaN and infinities are counted in n_nan, n_pos_inf and n_neg_inf, which are summed as
 * well. The rounded result is then NaN or the infinity.
 */
enum { KU_EXACT_LIMBS = 68, KU_EXACT_WORDS = 72 };
struct ku_exact {
    int64_t limb[KU_EXACT_LIMBS]; /* limb[i] has weight 2^(32 i - 1074) */
    int64_t n_pos_inf, n_neg_inf, n_nan;
    int64_t n_adds; /* since the last normalization; summed over ranks like the limbs */
};
_Static_assert(sizeof(struct ku_exact) == KU_EXACT_WORDS * 8, "reduced as KU_EXACT_WORDS i64");

void ku_exact_zero(struct ku_exact *a);
void ku_exact_add(struct ku_exact *a, double x);
void ku_exact_add_f32(struct ku_exact *a, const float *x, int64_t count);
void ku_exact_add_f64(struct ku_exact *a, const double *x, int64_t count);
void ku_exact_merge(struct ku_exact *a, const struct ku_exact *b);
/*
 * Carries into canonical limbs; the value is unchanged. Equal sums then have equal words, with
 * n_adds = 0.
 */
void ku_exact_normalize(struct ku_exact *a);
bool ku_exact_is_finite(const struct ku_exact *a);
double ku_exact_round(const struct ku_exact *a); /* rounded once, to nearest even */
/* The same rounded directly to f32, without double rounding. */
float ku_exact_round_f32(const struct ku_exact *a);

#endif
