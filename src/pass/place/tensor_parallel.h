/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_PLACE_TENSOR_PARALLEL_H
#define KU_PASS_PLACE_TENSOR_PARALLEL_H

#include "base/err.h"
#include "ir/graph.h"

struct ku_compile_opts;

/*
 * Tensor parallelism: which parameters are split over mesh axis tp, and the converts that follow
 * (Shoeybi et al. 2019, section 3). Dims are chosen by their letter: heads (h) and the inner width
 * of MLPs (f). A weight whose result has the letter is column-parallel, one that contracts it is
 * row-parallel:
 *
 *     x {C} ─ convert ─> {R} ─ linear, w [c f] S(f) ─> {S(f)} ─ act ─> {S(f)}
 *       ─ linear, w [f c] S(f), f32 ─> {P} ─ convert ─> {C} ─ bias_add ─> {C}
 *
 * The first convert costs nothing and the second is an all-reduce; backward has them the other way
 * round. A parameter is split if `linear` alone reads it and every op between its result and the
 * contraction can be split along the letter; all others stay whole on every tp rank.
 *
 * Where the ranks outnumber the key and value heads, they form two axes: tp divides these heads,
 * tpi the query heads of each. All else is split over both as over one.
 *
 *     queries {tp:S(h) tpi:S(r)}    keys, values {tp:S(h) tpi:R}, their gradients {tp:S(h) tpi:P}
 *
 * A rank has the part of its queries of the gradients of keys and values, and so of their weights,
 * which the update adds up over tpi. The gradient of the input is partial over both axes for
 * queries as for keys and values, and is summed once.
 *
 * The vocabulary (v) is split likewise: each rank has the rows of some tokens in the table and, in
 * the output layer, some logits, of which it computes its part of the loss:
 *
 *     ids ─ embedding, table [v c] S(v) ─> {P} ─ convert ─> {C}
 *     logits {S(v)} ─ xent_max ─> {P max} ─ convert ─ xent_sums ─> {P} ─ convert ─ xent_finish {C}
 */
struct ku_tensor_plan;

/*
 * The extent of axis tpi of `tp` tensor-parallel ranks: the ranks that share a key and value head
 * of grouped queries. 1: tp divides these heads, or they and their queries cannot be divided so.
 */
int ku_tensor_inner(const struct ku_graph *g, int tp);

/*
 * Choose the parameters to split over the ranks of axis tp, or with tp_exact into its slices: the
 * letter of the dim of each, and of the values that follow; 0: whole.
 *
 * Errors: EINVAL: tp does not divide a dim, or what was asked to be split is whole.
 */
KU_STATUS ku_tensor_plan_choose(struct ku_graph *g, const struct ku_compile_opts *o,
                                struct ku_tensor_plan **plan);
char ku_tensor_letter(const struct ku_tensor_plan *plan, ku_id tensor);
char ku_tensor_split_of(const struct ku_tensor_plan *plan, ku_id value);

/*
 * Choose the parameters to split and place the state on axis tp. Nothing if tp has one rank: *plan
 * is NULL then. Errors: as above.
 */
KU_STATUS ku_tensor_plan_create(struct ku_graph *g, const struct ku_compile_opts *o,
                                struct ku_tensor_plan **plan);
void ku_tensor_plan_destroy(struct ku_tensor_plan *plan); /* NULL is allowed */

/*
 * For each node of the model, in order: rewrite its operands before it is placed, and sum and round
 * its result afterwards. New nodes are appended, placed.
 */
KU_STATUS ku_tensor_before(struct ku_tensor_plan *plan, ku_id node);
KU_STATUS ku_tensor_after(struct ku_tensor_plan *plan, ku_id node);
/* Last: make the outputs of the graph name the rewritten values. Errors: EINVAL of sequence.h. */
KU_STATUS ku_tensor_finish(struct ku_tensor_plan *plan);
/* A convert of `value` to another placement on axes tp and tpi, in the module of `node`. Returns
 * its result; 0 with the error record set. */
ku_id ku_tensor_convert(struct ku_graph *g, ku_id value, struct ku_place to, ku_id node);

#endif
