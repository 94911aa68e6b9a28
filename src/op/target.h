/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_TARGET_H
#define KU_OP_TARGET_H

#include "op/op.h"

/* One op at one local shape, as a device sees it. */
struct ku_op_case {
    int op, n_in, n_out, accumulate;
    const struct ku_attrs *attr;
    struct ku_type in[KU_MAX_IN], out[KU_MAX_OUT];
};
/* What a device says of it. */
struct ku_target_op {
    size_t workspace_bytes; /* alive during the instruction only; planned like any buffer, 64-byte
                               aligned */
};
/*
 * A device as the compiler sees it: one callback, which a device fills (device/device.h) or which
 * reads a file. NULL query = no workspace anywhere. A pure function of the case: the plan must come
 * out the same wherever it is made.
 */
struct ku_target {
    int (*query)(void *ctx, const struct ku_op_case *c, struct ku_target_op *out);
    void *ctx;
    int ranks_per_host; /* that share memory; 1 = none */
};

#endif
