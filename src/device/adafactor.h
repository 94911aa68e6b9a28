/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_ADAFACTOR_H
#define KU_DEVICE_ADAFACTOR_H

#include <math.h>
#include <string.h>

#include "device/device.h"

/*
 * Adafactor's sums of squares by row and by column, the same on every device. Ranks own blocks that
 * end inside of rows, so a row's sum has addends on several ranks: they are integers, and no layout
 * can move a bit of their sum. Squares are of gradients as backward leaves them; the means take the
 * factor of report in. A square counts 2^-88 of B, the least power of four above the squared norm
 * of all gradients, in two words: hi, units of 2^-50 B, whose sum stays below 2^51, and lo, the
 * rest in units of 2^-88 B, at most 2^37 in size each, so 2^25 of them fit. What is less is rounded
 * off: elements below 2^-44 of the norm. Adding 1.5 2^52 units leaves an integer below 2^51 in the
 * low bits of an f64, rounded to nearest even, which vectors of any instruction set can do.
 */
enum { KU_FACTOR_HI_BITS = 50, KU_FACTOR_LO_BITS = 38 };

/* 2^exponent is the least power of two above the norm of the gradients as they are. */
static inline int ku_factor_exponent(const double *report)
{
    const double norm = report[KU_REPORT_NORM] / report[KU_REPORT_SCALE];
    const int exponent = norm > 0 && isfinite(norm) ? ilogb(norm) + 1 : 0;
    return exponent < -480 ? -480 : exponent > 480 ? 480 : exponent;
}
/* The constants that round a square to units of hi, and what is left of it to units of lo. */
static inline void ku_factor_rounds(const double *report, double round[2])
{
    const int unit = 2 * ku_factor_exponent(report) - KU_FACTOR_HI_BITS;
    round[0] = ldexp(1.5, 52 + unit);
    round[1] = ldexp(1.5, 52 + unit - KU_FACTOR_LO_BITS);
}
static inline int64_t ku_factor_word(double sum, double round)
{
    int64_t a, b;
    memcpy(&a, &sum, sizeof a);
    memcpy(&b, &round, sizeof b);
    return a - b;
}
static inline void ku_factor_add(int64_t word[2], double x, const double round[2])
{
    const double one = x * x + round[0], rest = x * x - (one - round[0]);
    word[0] += ku_factor_word(one, round[0]);
    word[1] += ku_factor_word(rest + round[1], round[1]);
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
