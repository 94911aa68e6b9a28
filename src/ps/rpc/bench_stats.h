/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_RPC_BENCH_STATS_H
#define KU_PS_RPC_BENCH_STATS_H

#include <stdlib.h>
#include <sys/resource.h>

/* What the benchmarks of calls and of a server share. */

/* Processor time of this process. */
static inline double ku_bench_cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static inline int ku_bench_by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* v[n] is sorted. */
static inline double ku_bench_quantile(double *v, int n, double q)
{
    qsort(v, (size_t)n, sizeof *v, ku_bench_by_size);
    return v[(int)(q * (n - 1) + 0.5)];
}

#endif
