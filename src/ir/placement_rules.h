/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_IR_PLACEMENT_RULES_H
#define KU_IR_PLACEMENT_RULES_H

#include "ir/graph.h"

/*
 * The placements of a node's results, from those of its operands, axis by axis, by the op's letters
 * (op.h): a split along a letter that outputs have stays a split there; a split along a letter that
 * they lack makes them partial. Forward operands beside a split must be R or C; P passes through
 * linear ops when it stands on the first operand (add: on both), and ops on one micro-batch read it
 * as it is (KU_OP_MICRO). KUMI_EINVAL names axis, op and operand.
 */
int ku_place_infer(const struct ku_graph *g, ku_id node, struct ku_layout *out);
/* The same, written to the results. */
int ku_place_node(struct ku_graph *g, ku_id node);
/* A convert of `value` that makes partial sums over data-parallel ranks whole there, in any phase;
 * its result. 0 with the error record set. */
ku_id ku_place_sync(struct ku_graph *g, ku_id value, int phase, const char *path, ku_id source);

#endif
