/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_JOB_CLIENT_H
#define TESTS_JOB_CLIENT_H

/* For tests of module job alone: the client of a segment, and a point where ranks meet. */
#include "base/clock.h"
#include "base/err.h"
#include "job/job.h"
#include "job/segment.h"

#include <stdio.h>
#include <unistd.h>

static inline size_t area_bytes(int n_local)
{
    return (size_t)n_local * 4096;
}

static inline void event_text(uint32_t slot, uint64_t what, uint64_t seq, uint64_t count,
                              char *text, size_t cap)
{
    (void)slot, (void)count;
    snprintf(text, cap, "operation %d (work %d)", (int)what, (int)seq);
}

static const struct ku_job_client client = {.area_bytes = area_bytes, .event_text = event_text};

/* Wait until n ranks, which share the memory of `count`, have come. */
static inline int meet_at(_Atomic int *count, int n, int64_t limit_ns)
{
    const int64_t deadline = ku_clock_ns() + limit_ns;
    ++*count;
    while (*count < n && ku_clock_ns() < deadline)
        usleep(500);
    return *count >= n ? 0 : KU_ERR(KUMI_ETIMEDOUT, "test: %d of %d ranks came", *count, n);
}

#endif
