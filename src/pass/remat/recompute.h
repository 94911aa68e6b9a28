/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_REMAT_RECOMPUTE_H
#define KU_PASS_REMAT_RECOMPUTE_H

#include "pass/pass.h"

/*
 * What a unit (a repeated block: "h.3", "layers.2", "layer1.0") costs at each level: what backward
 * keeps of a micro-batch until it comes to the unit, and the time that recomputing takes, in units
 * of FLOP (a byte moved counts as KU_FLOP_PER_BYTE).
 */
enum { KU_FLOP_PER_BYTE = 16 /* of machines from CPUs (8) to GPUs (300): cheap ops stay cheap */ };
struct ku_recompute_unit {
    const char *name; /* the graph's */
    double bytes[KU_N_RECOMPUTE], work[KU_N_RECOMPUTE];
};
/* Of a graph that pass zero has left. The caller frees *unit. */
int ku_recompute_measure(struct ku_graph *g, const struct ku_compile_opts *o,
                         struct ku_recompute_unit **unit, int *n);

#endif
