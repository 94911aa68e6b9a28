/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_PLACE_SEQUENCE_H
#define KU_PASS_PLACE_SEQUENCE_H

#include "base/err.h"
#include "ir/graph.h"

/*
 * Sequence parallelism on axis tp (Korthikanti et al. 2022, section 4.2.2): between the layers that
 * tensor parallelism divides (place/tensor.h) each rank has a part of every sequence. The two
 * converts of a layer change with it:
 *
 *     x {S(t)} ─ convert ─> {R} ─ linear, w [c f] S(f) ─> {S(f)} ─ .. ─ linear, w [f c] S(f) ─> {P}
 *       ─ convert ─> {S(t)} ─ bias_add, b {R} ─> {S(t)} ─ dropout, add, layer_norm, gain {R} ─ ..
 *
 * The first is an all-gather and the second a reduce-scatter. Parameters that are read beside S(t)
 * are R: each rank has the gradient of its part of the sequence, and the update adds them up.
 *
 * Regions of S(t) begin at the sums of row-parallel layers and of a split embedding, and at the
 * embedding of a whole table. An op that can be split along t joins the region of its operands: the
 * others become S(t) by a convert from C, which sends nothing. An op that cannot reads them
 * gathered.
 */
struct ku_sequence;
struct ku_styles;

/*
 *   styles     of the user's plan, borrowed: modules with replicate are whole
 *   n_values   of the graph when it is placed, at most
 *
 * Errors: ENOMEM.
 */
KU_STATUS ku_sequence_create(struct ku_graph *g, const struct ku_styles *styles, size_t n_values,
                             struct ku_sequence **seq);
void ku_sequence_destroy(struct ku_sequence *seq); /* NULL is allowed */

/* Rewrites the operands of a node outside the divided layers, before it is placed. */
KU_STATUS ku_sequence_before(struct ku_sequence *seq, ku_id node);
/* Lets `node` read a parameter beside `x`. Errors: EINVAL, it is read whole elsewhere. */
KU_STATUS ku_sequence_read(struct ku_sequence *seq, ku_id param, ku_id x, ku_id node);
/* Completes a partial sum: to S(t), or to C if it has no sequence. 0 with the error record set. */
ku_id ku_sequence_sum(struct ku_sequence *seq, ku_id value, ku_id node);
/* Errors: EINVAL, the model has no sequence. */
KU_STATUS ku_sequence_finish(struct ku_sequence *seq);

#endif
