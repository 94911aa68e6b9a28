/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/yields.h"

#include "base/clock.h"

#include <sched.h>

enum {
    LONG_NS = 200 * 1000, /* a yield among waiting threads takes a few us */
    MIN_SKIPPED = 8,
    MAX_SKIPPED = 512 /* a lost time slice of 3 ms is then 6 us a wait */
};

bool ku_yields_begin(struct ku_yields *y)
{
    if (y->n_skipped == 0)
        return true;
    y->n_skipped--;
    return false;
}

bool ku_yields_once(struct ku_yields *y)
{
    const int64_t from = ku_clock_ns();
    sched_yield();
    return ku_yields_note(y, ku_clock_ns() - from);
}

bool ku_yields_note(struct ku_yields *y, int64_t ns)
{
    if (ns > LONG_NS) {
        y->n_skipped = y->n_next < MIN_SKIPPED ? MIN_SKIPPED : y->n_next;
        y->n_next = y->n_skipped < MAX_SKIPPED ? 2 * y->n_skipped : MAX_SKIPPED;
        return false;
    }
    y->n_next -= y->n_next > 0;
    return true;
}
