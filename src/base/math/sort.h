/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_MATH_SORT_H
#define KU_BASE_MATH_SORT_H

#include <stdlib.h>

static inline int ku_by_f64(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Sort n numbers, none of which is NaN, in ascending order. */
static inline void ku_sort_f64(double *x, int n)
{
    if (n > 0)
        qsort(x, (size_t)n, sizeof *x, ku_by_f64);
}

/* The median of sorted numbers; 0 of none. */
static inline double ku_median_f64(const double *sorted, int n)
{
    return n > 0 ? (sorted[(n - 1) / 2] + sorted[n / 2]) / 2 : 0;
}

#endif
