/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_TARGET_H
#define KU_OP_TARGET_H

#include "op/op.h"

/* One op at one local shape, as a query to a device. */
struct ku_op_case {
    int op, n_in, n_out, accumulate;
    const struct ku_attrs *attr;
    struct ku_type in[KU_MAX_IN], out[KU_MAX_OUT];
};
/* The device's answer. */
struct ku_target_op {
    /* Live during the instruction only; planned like any buffer, 64-byte aligned. */
    size_t workspace_bytes;
};
/*
 * Description of a device for the compiler: one callback that a device provides (device/device.h)
 * or that reads a file. NULL query: no workspace for any op. The answer must depend on the case
 * alone, so that the plan is the same wherever it is made.
 */
struct ku_target {
    int (*query)(void *ctx, const struct ku_op_case *c, struct ku_target_op *out);
    void *ctx;
    int ranks_per_host; /* ranks that share memory; 1 = none */
};

#endif
