/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_ADAFACTOR_H
#define KU_DEVICE_ADAFACTOR_H

#include <math.h>
#include <string.h>

#include "device/device.h"

/*
 * Adafactor's sums of squares by row and by column, shared by all devices. Ranks own chunks that
 * end inside a row, so several ranks contribute to a row's sum. The sums are integers: every order
 * of addition gives the same bits.
 *
 * Squares are of the raw gradients; the scale factor of the report enters with the means. Let B be
 * the power of four above the squared norm of all gradients (ku_factor_exponent). A square is
 * rounded to units of 2^-88 B, in two int64:
 *
 *     hi   units of 2^-50 B; the sum stays below 2^51
 *     lo   the remainder in units of 2^-88 B; each at most 2^37 in magnitude, so 2^25 of them fit
 *
 * Smaller parts are rounded off: elements below 2^-44 sqrt(B). Adding 1.5 2^52 units leaves an
 * integer below 2^51 in the low bits of an f64, rounded to nearest even; every vector instruction
 * set can do this.
 */
enum { KU_FACTOR_HI_BITS = 50, KU_FACTOR_LO_BITS = 38 };

/*
 * The smallest e with 2^e above the norm of the raw gradients, limited to [-480, 480]. NORM is from
 * before clipping and SCALE from after it: NORM / SCALE times the factor of clipping is that norm.
 */
int ku_factor_exponent(const struct ku_attrs *a, const double *report);
/* The constants that round a square to units of hi, and its remainder to units of lo. */
void ku_factor_rounds(const struct ku_attrs *a, const double *report, double round[2]);
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

/*
 * Where the elements of an operand are in the whole tensor, of which it is a shard, a slice (tensor
 * parallelism), or a shard of a slice.
 */
struct ku_factor_place {
    struct ku_runs of;
    int64_t first, total; /* of element 0 in the slice; elements of the tensor */
};
struct ku_factor_place ku_factor_place_of(const struct ku_view *x);
static inline int64_t ku_factor_at(const struct ku_factor_place *p, int64_t i)
{
    return ku_runs_at(&p->of, p->first + i);
}
/* How many elements from element i on lie next to each other in the tensor, at most n. */
static inline int64_t ku_factor_run(const struct ku_factor_place *p, int64_t i, int64_t n)
{
    const int64_t left = p->of.run ? p->of.run - (p->first + i) % p->of.run : n;
    return left < n ? left : n;
}

/* Constants of one tensor in one step. */
struct ku_adafactor {
    double scale; /* of the gradient */
    double w;     /* weight of the new value in the variance: t^beta2_decay */
    double least; /* min of a variance: eps^2 */
    double keep;  /* factor of p: 1 - lr wd */
    double rate;  /* of the update; set only with norms */
};
/* norms: two f64 per tensor (parameter, update), or NULL. */
struct ku_adafactor ku_adafactor_of(const struct ku_attrs *a, const double *report,
                                    const double *norms);
/*
 * Op factor_means. A skipped update (APPLY 0) copies the variances.
 */
void ku_factor_means(const struct ku_call *call);

#endif
