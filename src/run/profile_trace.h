/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_RUN_PROFILE_TRACE_H
#define KU_RUN_PROFILE_TRACE_H

#include "base/err.h"
#include "run/profile.h"

struct ku_profile_mark {
    enum ku_profile_what what;
    int64_t begin_ns, end_ns;
};
/* Data of the profiled steps [first, first + n_steps). */
struct ku_trace {
    const struct ku_trainer *t;
    int64_t first, n_steps;
    const int64_t *stamp; /* [n_steps][n_stamps] */
    size_t n_stamps;
    const int *shape;                   /* [n_steps] */
    const struct ku_profile_mark *mark; /* [n_marks] */
    int n_marks;
};
/*
 * Write DIR/profile.trace.json in Chrome's trace event format: one process per rank, with lanes for
 * steps, compute, communication (starts, and collectives from start to the end of their wait),
 * waits, data and checkpoints. The first ranks write one after the other.
 *
 * Collective. Errors: KUMI_ESTORAGE.
 */
KU_STATUS ku_trace_write(const struct ku_trace *trace, const char *dir);

#endif
