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
 * The rules are exact (placement_rules.c): a value that is C is read beside R, P or S only if it
 * has no adjoint. P passes through linear ops if the first operand has it (add: both), without bias
 * and activation. Ops on one micro-batch (KU_OP_MICRO) read their statistics in P as they are.
 * Errors: KUMI_EINVAL names op, path, axis, the operands' placements and the rule.
 */
KU_STATUS ku_place_infer(const struct ku_graph *g, ku_id node, struct ku_layout *out);
/* Infers the placements and sets them in the results. */
KU_STATUS ku_place_node(struct ku_graph *g, ku_id node);
/* Checks that a convert makes only redistributions that exist (convert_rules.c). */
KU_STATUS ku_place_check_convert(const struct ku_graph *g, ku_id node);
/* Whether a convert gathers the chunks of an axis (Z to another placement). */
bool ku_place_is_gather(const struct ku_graph *g, ku_id node);
/* Whether `value` is a maximum (KU_OP_MAX), so that its P is completed by a maximum. */
bool ku_place_is_max(const struct ku_graph *g, ku_id value);
/*
 * Sets the placement of a convert's result: C on the axes on which the operand is a partial sum, of
 * those that attribute axes names if it names any; as the operand on the others.
 */
KU_STATUS ku_place_complete(struct ku_graph *g, ku_id node);
/*
 * Inserts a convert that completes the partial sums of `value` over data-parallel ranks, in any
 * phase. Returns its result, or 0 with the error record set.
 */
ku_id ku_place_sync(struct ku_graph *g, ku_id value, int phase, const char *path, ku_id source);

#endif
