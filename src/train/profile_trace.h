/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_PROFILE_TRACE_H
#define KU_TRAIN_PROFILE_TRACE_H

#include "train/profile.h"

struct ku_profile_mark {
    enum ku_profile_what what;
    int64_t begin_ns, end_ns;
};
/* Stamps of steps [first, first + n_steps), [n_steps][n_instrs + 1], and their batch shapes. */
struct ku_trace {
    const struct ku_trainer *t;
    int64_t first, n_steps;
    const int64_t *stamp;
    const int *shape;                   /* [n_steps] */
    const struct ku_profile_mark *mark; /* [n_marks] */
    int n_marks;
};
/*
 * DIR/profile.trace.json, in the trace event format of Chrome: a process a rank, with lanes for
 * steps, computation, communication (starts, and exchanges in flight from start to the end of their
 * wait), waiting, data and checkpoints. The first ranks write one after the other. Collective.
 * Errors: KUMI_ESTORAGE.
 */
int ku_trace_write(const struct ku_trace *trace, const char *dir);

#endif
