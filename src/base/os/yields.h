/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_YIELDS_H
#define KU_BASE_OS_YIELDS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Yields of a thread that waits, as long as they are worth it.
 *
 * Among threads that wait a sched_yield takes a few us, less than a sleep and its wake-up: a
 * barrier of 8 ranks on 2 cores takes 6.5 us with yields and 28 to 40 us with sleeps. But a yield
 * to a thread that computes, of another rank or of another program, returns after that thread's
 * time slice, some ms, whereas a wake-up preempts it. So after a long yield the thread sleeps at
 * once in its next waits: in 8, after another long one in 16, up to 512; each short yield takes
 * one off. With a busy loop of another program on each core the tests of tensor parallelism, 8
 * ranks, take 26 to 30 s, and 218 s with all yields; without the loops 24 s. The price: after any
 * long yield a few waits are slow, so that barrier's p99 is 45 us, 7 with all yields.
 *
 * All-zero: no long yield yet. Of one thread.
 */
struct ku_yields {
    int n_skipped; /* next waits without yields */
    int n_next;    /* how many more after the next long one */
};

/* Whether this wait may yield. Called once a wait. */
bool ku_yields_begin(struct ku_yields *y);
/* Yield. Returns whether it was short; else the wait should sleep. */
bool ku_yields_once(struct ku_yields *y);
/* The same for a yield that took `ns` */
bool ku_yields_note(struct ku_yields *y, int64_t ns);

#endif
