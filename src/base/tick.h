/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_TICK_H
#define KU_BASE_TICK_H

/*
 * Progress of a thread in long local work: reading, writing and removing files, hashing, measuring.
 * Such work calls ku_tick at least once per few MiB, or per file that it removes. A thread is bound
 * to a callback: on a rank's main thread it resets the deadline after which the other ranks call
 * the rank stuck (job/job.h). Without one ku_tick does nothing.
 */
struct ku_ticker {
    void (*call)(void *ctx); /* NULL: unbound */
    void *ctx;
};
extern _Thread_local struct ku_ticker ku_ticker;

static inline void ku_tick(void)
{
    if (ku_ticker.call)
        ku_ticker.call(ku_ticker.ctx);
}

#endif
