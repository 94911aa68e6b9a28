/* SPDX-License-Identifier: Apache-2.0 */
#include "base/math/exact.h"

#include <math.h>
#include <string.h>

enum { MAX_ADDS = 1 << 30, BIAS = 1074, RADIX_BITS = 32 };

void ku_exact_zero(struct ku_exact *a)
{
    memset(a, 0, sizeof *a);
}

static void count_special(struct ku_exact *a, double x)
{
    if (isnan(x))
        a->n_nan++;
    else if (x > 0)
        a->n_pos_inf++;
    else
        a->n_neg_inf++;
}

/*
 * Adds x. A 53-bit significand shifted to bit `at` of the fixed-point number spans at most 3 limbs.
 */
static inline void deposit(struct ku_exact *a, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    int exponent = (int)(bits >> 52) & 0x7ff;
    if (exponent == 0x7ff) {
        count_special(a, x);
        return;
    }
    uint64_t significand = bits & 0xfffffffffffffu;
    if (exponent)
        significand |= (uint64_t)1 << 52;
    int at = exponent ? exponent - 1 : 0; /* weight 2^(at - 1074) */
    int limb = at / RADIX_BITS, shift = at % RADIX_BITS;
    uint64_t low = significand << shift;
    int64_t part[3] = {(int64_t)(low & 0xffffffffu), (int64_t)(low >> 32),
                       shift ? (int64_t)(significand >> (64 - shift)) : 0};
    int64_t sign = bits >> 63 ? -1 : 1;
    a->limb[limb] += sign * part[0];
    a->limb[limb + 1] += sign * part[1];
    a->limb[limb + 2] += sign * part[2];
}

static inline void tick(struct ku_exact *a, int64_t n)
{
    a->n_adds += n;
    if (a->n_adds >= MAX_ADDS)
        ku_exact_normalize(a);
}

void ku_exact_add(struct ku_exact *a, double x)
{
    deposit(a, x);
    tick(a, 1);
}

void ku_exact_add_f32(struct ku_exact *a, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        ku_exact_add(a, (double)x[i]);
}

void ku_exact_add_f64(struct ku_exact *a, const double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        ku_exact_add(a, x[i]);
}

void ku_exact_merge(struct ku_exact *a, const struct ku_exact *b)
{
    if (a->n_adds + b->n_adds + 1 >= MAX_ADDS)
        ku_exact_normalize(a);
    for (int i = 0; i < KU_EXACT_LIMBS; i++)
        a->limb[i] += b->limb[i];
    a->n_pos_inf += b->n_pos_inf;
    a->n_neg_inf += b->n_neg_inf;
    a->n_nan += b->n_nan;
    a->n_adds += b->n_adds + 1;
}

void ku_exact_normalize(struct ku_exact *a)
{
    int64_t carry = 0;
    for (int i = 0; i < KU_EXACT_LIMBS - 1; i++) {
        int64_t x = a->limb[i] + carry;
        carry = x >> RADIX_BITS; /* arithmetic shift: rounds down */
        a->limb[i] = x - carry * ((int64_t)1 << RADIX_BITS);
    }
    a->limb[KU_EXACT_LIMBS - 1] += carry;
    a->n_adds = 0;
}

bool ku_exact_is_finite(const struct ku_exact *a)
{
    return a->n_pos_inf == 0 && a->n_neg_inf == 0 && a->n_nan == 0;
}

static bool test_bit(const struct ku_exact *m, int64_t bit)
{
    return bit >= 0 && (m->limb[bit / RADIX_BITS] >> (bit % RADIX_BITS)) & 1;
}

/*
 * Rounds a magnitude to `keep` significant bits, to nearest even. No result bit is below bit
 * `least`.
 */
static double round_magnitude(const struct ku_exact *m, int keep, int64_t least)
{
    int64_t top = (int64_t)KU_EXACT_LIMBS * RADIX_BITS - 1;
    while (top >= 0 && !test_bit(m, top))
        top--;
    if (top < 0)
        return 0;
    int64_t low = top - keep + 1;
    if (low < least)
        low = least;
    uint64_t significand = 0;
    for (int64_t b = top; b >= low; b--)
        significand = significand << 1 | (uint64_t)test_bit(m, b);
    int half = test_bit(m, low - 1), rest = 0;
    for (int64_t b = low - 2; b >= 0 && !rest; b--)
        rest = test_bit(m, b);
    if (half && (rest || (significand & 1)))
        significand++;
    return ldexp((double)significand, (int)(low - BIAS));
}

static double special(const struct ku_exact *a)
{
    if (a->n_nan || (a->n_pos_inf && a->n_neg_inf))
        return (double)NAN;
    return a->n_pos_inf ? (double)INFINITY : (double)-INFINITY;
}

static double round_to(const struct ku_exact *a, int keep, int64_t least)
{
    if (!ku_exact_is_finite(a))
        return special(a);
    struct ku_exact m = *a;
    ku_exact_normalize(&m);
    int is_negative = m.limb[KU_EXACT_LIMBS - 1] < 0;
    if (is_negative) {
        for (int i = 0; i < KU_EXACT_LIMBS; i++)
            m.limb[i] = -m.limb[i];
        ku_exact_normalize(&m);
    }
    double x = round_magnitude(&m, keep, least);
    return is_negative ? -x : x;
}

double ku_exact_round(const struct ku_exact *a)
{
    return round_to(a, 53, 0);
}

float ku_exact_round_f32(const struct ku_exact *a)
{
    return (float)round_to(a, 24, BIAS - 149); /* the cast is exact */
}
