/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_COND_H
#define KU_BASE_COND_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/*
 * Condition variables whose waits have deadlines of ku_clock_ns (base/clock.h). The wall clock, the
 * default of pthreads, may be set back while a thread waits, and the wait then lasts that longer.
 */
static inline void ku_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* Wait until a signal, or `until_ns`: false. The caller holds the lock. */
static inline bool ku_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ns)
{
    const struct timespec until = {.tv_sec = until_ns / 1000000000,
                                   .tv_nsec = until_ns % 1000000000};
    return pthread_cond_timedwait(cond, lock, &until) == 0;
}

#endif
