/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_IR_PLACEMENT_RULES_H
#define KU_IR_PLACEMENT_RULES_H

#include "base/err.h"
#include "ir/graph.h"

/*
 * Placement inference: the placements of a node's results from those of its operands, axis by axis,
 * with the placement rule of the op (`map` and `sum`, op/op.h).
 *
 *     linear x[n c] w[c f] -> y[n f]      map "*", sum "*"
 *       x S(n), w R   -> y S(n)           the output has n
 *       x S(c), w S(c) -> y P             the output lacks c: partial sum
 *       x R,    w S(f) -> y S(f)
 *
 * On an axis with a split, operands without that dim must be R or C. P passes through linear ops
 * if the first operand has it (add: both). Ops on one micro-batch (KU_OP_MICRO) read P as it is.
 * Errors: KUMI_EINVAL names axis, op and operand.
 */
KU_STATUS ku_place_infer(const struct ku_graph *g, ku_id node, struct ku_layout *out);
/* Infers the placements and sets them in the results. */
KU_STATUS ku_place_node(struct ku_graph *g, ku_id node);
/*
 * Inserts a convert that completes the partial sums of `value` over data-parallel ranks, in any
 * phase. Returns its result, or 0 with the error record set.
 */
ku_id ku_place_sync(struct ku_graph *g, ku_id value, int phase, const char *path, ku_id source);

#endif
