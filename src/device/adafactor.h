/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_ADAFACTOR_H
#define KU_DEVICE_ADAFACTOR_H

#include <math.h>

#include "device/device.h"

/*
 * Adafactor's sums of squares by row and by column, the same on every device. Ranks own blocks that
 * end inside of rows, so a row's sum has addends on several ranks: they are integers, and no layout
 * can move a bit of their sum. A square counts 2^-96 of B, the least power of four above the
 * squared norm of all gradients, in two words: hi, units of 2^-60 B, whose sum therefore stays
 * below 2^61, and lo, the rest in units of 2^-96 B, below 2^36 each, so 2^27 of them fit. What is
 * less is cut off: elements below 2^-48 of the norm.
 */
enum { KU_FACTOR_HI_BITS = 60, KU_FACTOR_LO_BITS = 36 };

/* Factor of a gradient element in f64 whose square then counts units of hi. */
static inline double ku_factor_scale(const double *report)
{
    const double norm = report[KU_REPORT_NORM];
    return norm > 0 ? ldexp(report[KU_REPORT_SCALE], KU_FACTOR_HI_BITS / 2 - ilogb(norm) - 1) : 0;
}
static inline void ku_factor_add(int64_t sum[2], double scaled)
{
    const double square = scaled * scaled;
    const int64_t hi = (int64_t)square;
    sum[0] += hi;
    sum[1] += (int64_t)((square - (double)hi) * (double)(INT64_C(1) << KU_FACTOR_LO_BITS));
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
