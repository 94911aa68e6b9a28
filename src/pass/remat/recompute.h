/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_REMAT_RECOMPUTE_H
#define KU_PASS_REMAT_RECOMPUTE_H

#include "base/err.h"
#include "pass/pass.h"

/*
 * The cost of a unit (a repeated layer: "h.3", "layers.2", "layer1.0") at each level: bytes stored
 * per micro-batch until backward reaches the unit, and work of recomputation in FLOP, where a byte
 * moved counts as KU_FLOP_PER_BYTE.
 */
enum {
    KU_FLOP_PER_BYTE = 16 /* machines: 8 (CPU) to 300 (GPU); low, so that cheap ops stay cheap */
};
struct ku_recompute_unit {
    const char *name; /* owned by the graph */
    double bytes[KU_N_RECOMPUTE], work[KU_N_RECOMPUTE];
};
/*
 * Measure all units of a graph that the zero pass has finished.
 *
 *   unit, n   result [*n]; the caller frees *unit
 *
 * Errors: ENOMEM.
 */
KU_STATUS ku_recompute_measure(struct ku_graph *g, const struct ku_compile_opts *o,
                               struct ku_recompute_unit **unit, int *n);

#endif
