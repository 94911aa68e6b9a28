/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/bench.h"

#include <stdlib.h>

int ku_by_value(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

struct ku_spread ku_spread_of(int64_t *ns, int n, double units)
{
    qsort(ns, (size_t)n, sizeof ns[0], ku_by_value);
    return (struct ku_spread){.min = units * 1e9 / (double)ns[n - 1],
                              .median = units * 1e9 / (double)ns[n / 2],
                              .max = units * 1e9 / (double)ns[0]};
}
