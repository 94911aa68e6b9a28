/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_ADAFACTOR_H
#define KU_DEVICE_ADAFACTOR_H

#include <math.h>
#include <string.h>

#include "device/device.h"

/*
 * Adafactor's sums of squares by row and by column, the same on every device. Ranks own blocks that
 * end inside of rows, so a row's sum has addends on several ranks: they are integers, and no layout
 * can move a bit of their sum. A square counts 2^-88 of B, the least power of four above the
 * squared norm of all gradients, in two words: hi, units of 2^-50 B, whose sum stays below 2^51,
 * and lo, the rest in units of 2^-88 B, at most 2^37 in size each, so 2^25 of them fit. What is
 * less is rounded off: elements below 2^-44 of the norm. Adding KU_FACTOR_ROUND leaves an integer
 * below 2^51 in the low bits of an f64, rounded to nearest even, which vectors of any instruction
 * set can do.
 */
enum { KU_FACTOR_HI_BITS = 50, KU_FACTOR_LO_BITS = 38 };
#define KU_FACTOR_ROUND 0x1.8p52

/* Factor of a gradient element in f64 whose square then counts units of hi. */
static inline double ku_factor_scale(const double *report)
{
    const double norm = report[KU_REPORT_NORM];
    return norm > 0 ? ldexp(report[KU_REPORT_SCALE], KU_FACTOR_HI_BITS / 2 - ilogb(norm) - 1) : 0;
}
static inline int64_t ku_factor_word(double x, double *rounded)
{
    const double one = x + KU_FACTOR_ROUND, zero = KU_FACTOR_ROUND;
    int64_t a, b;
    memcpy(&a, &one, sizeof a);
    memcpy(&b, &zero, sizeof b);
    *rounded = one - zero;
    return a - b;
}
static inline void ku_factor_split(double scaled, int64_t *hi, int64_t *lo)
{
    const double square = scaled * scaled;
    double whole, rest;
    *hi = ku_factor_word(square, &whole);
    *lo = ku_factor_word((square - whole) * (double)(INT64_C(1) << KU_FACTOR_LO_BITS), &rest);
}
static inline void ku_factor_add(int64_t sum[2], double scaled)
{
    int64_t hi, lo;
    ku_factor_split(scaled, &hi, &lo);
    sum[0] += hi, sum[1] += lo;
}

/* One step's constants of a tensor. */
struct ku_adafactor {
    double scale; /* of the gradient */
    double w;     /* weight of the new in a variance: t^beta2_decay */
    double least; /* of a variance: eps^2 */
    double keep;  /* factor of p: 1 - lr wd */
    double rate;  /* of the update; needs norms */
};
/* norms: NULL, or two of each tensor. */
struct ku_adafactor ku_adafactor_of(const struct ku_attrs *a, const double *report,
                                    const double *norms);
/* op factor_means, whole; a skipped update (APPLY 0) repeats the variances. */
void ku_factor_means(const struct ku_call *call);

#endif
