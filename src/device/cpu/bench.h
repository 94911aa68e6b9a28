/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_CPU_BENCH_H
#define KU_DEVICE_CPU_BENCH_H

#include <stdint.h>

#include "device/peak_bench.h"

/* What the benchmarks of the device share. */
int ku_by_value(const void *a, const void *b); /* order of int64_t, for qsort */
/* Rates of n times, with `units` of work each. Sorts ns. */
struct ku_spread ku_spread_of(int64_t *ns, int n, double units);

#endif
