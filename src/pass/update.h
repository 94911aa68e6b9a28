/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_UPDATE_H
#define KU_PASS_UPDATE_H

#include "base/err.h"
#include "pass/pass.h"

/*
 * Shared by the files of the update pass. update/update.c builds phase O:
 *
 *     gradients of all uses ── convert, add ──> g of each parameter
 *     every g               ── sumsq chain ──> stats
 *     stats, loss, count    ── step_scalars ──> report
 *     p, state, g, report   ── optimizer ──> p', state', compute copy'
 *
 * The report holds loss, gradient norm, learning rate and whether the step applies.
 */

/* Adds a node in phase O with its placement; 0 on failure. */
ku_id ku_update_once(struct ku_graph *g, struct ku_make m);
/* A partial sum of integers over the ranks of these axes; 0 on failure. */
ku_id ku_update_sum_over(struct ku_graph *g, ku_id value, int axes, const char *path);
/*
 * Sums over tensors of which tensor-parallel ranks have parts: tensors divided up to axis tpi are
 * added first, then those along tp alone, then whole ones (0), each after the sums are complete
 * along the axes that do not divide it.
 */
enum { KU_N_DIVISIONS = 3 };
extern const int ku_update_division[KU_N_DIVISIONS];
/* The innermost of axes tp and tpi along which a tensor is divided, by its gradient; 0: none. */
int ku_update_divided_by(const struct ku_graph *g, ku_id grad);
/* Integer sums, complete along the axes that do not divide a tensor of that division; 0 on failure.
 * axis: 0: along all. */
ku_id ku_update_sum_divided(struct ku_graph *g, ku_id sums, int axis, const char *path);
/* The source line of a parameter's first use, given to its gradient and update nodes. */
ku_id ku_update_source(const struct ku_graph *g, ku_id tensor);
/* Whether a selection of parameters (enum ku_decay, patterns) contains this one. */
bool ku_update_selects(const struct ku_graph *g, ku_id tensor, int decay,
                       const char *const *patterns);

/* The optimizer of one parameter. */
struct ku_update_node {
    ku_id tensor, grad, report;
    int n_own;      /* tensors of optimizer state */
    ku_id state[4]; /* the parameter, then the optimizer state */
    ku_id copy;     /* compute copy, written with the parameter; 0 = none */
    struct ku_attrs attr;
};
/* Creates the optimizer state for op (KU_OP_sgd, adamw, lars, ..) and fills u from u->tensor. */
KU_STATUS ku_update_begin(struct ku_graph *g, const struct ku_compile_opts *o, int op,
                          struct ku_update_node *u);
/* Adds an element-wise optimizer: p, state .., g, report -> p', state' .. [, copy]. */
KU_STATUS ku_update_element(struct ku_graph *g, const struct ku_compile_opts *o, int op,
                            ku_id tensor, ku_id grad, ku_id report);

/* update/loss_scaler_nodes.c */
/* The loss scaler's state at the start of the step, created at the first call; 0: no scaler, or no
 * memory. */
ku_id ku_update_scaler_state(struct ku_graph *g, const struct ku_compile_opts *o);
/* Copies the loss scaler's attributes of an optimizer config. */
void ku_update_scaler_attrs(const struct ku_attrs *rule, struct ku_attrs *a);
/* Adds the loss scaler's update after the report; nothing without a scaler. */
KU_STATUS ku_update_scaler(struct ku_graph *g, const struct ku_compile_opts *o, ku_id report);
/* Replaces grad[] by gradients clipped by value; nothing if o->rule.clip_value is 0. */
KU_STATUS ku_update_clip_values(struct ku_graph *g, const struct ku_compile_opts *o, ku_id *grad,
                                ku_id n_params, ku_id report);
/* update/narrow_wire.c: parameters without a master */
/* The dtype of optimizer state and of the parameter as the optimizer reads it: f32; f64 of f64. */
enum kumi_dtype ku_update_wide(const struct ku_graph *g, ku_id tensor);
/* The parameter as the optimizer reads it: itself, or widened to that dtype, with the placement of
 * `grad`. 0 on failure. */
ku_id ku_update_read(struct ku_graph *g, ku_id tensor, ku_id grad);
/* Makes `value`, the optimizer's result, the parameter's next version, rounded if it is narrow. */
KU_STATUS ku_update_write(struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor,
                          ku_id value);
/* ku_update_read of the parameter's next version. 0 on failure. */
ku_id ku_update_read_next(struct ku_graph *g, ku_id tensor, ku_id grad);

/* update/remote.c: cuts the step for a parameter server; nothing if the update runs here. */
KU_STATUS ku_update_cut(struct ku_graph *g, const struct ku_compile_opts *o);

/* update/groups.c: the optimizer attributes of one parameter, with its group's overrides. */
struct ku_attrs ku_update_attrs(const struct ku_graph *g, const struct ku_compile_opts *o,
                                ku_id tensor);
/* Errors: EINVAL, a group's pattern matches no parameter. */
KU_STATUS ku_update_check_groups(const struct ku_graph *g, const struct ku_compile_opts *o);
/* Adds a parameter's exponential moving average after its update; nothing if o->rule.ema is 0. */
KU_STATUS ku_update_average(struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor,
                            ku_id grad, ku_id report);
/* Creates the state tensor "param.suffix", or "suffix" if param is 0; 0 on failure. */
ku_id ku_update_own(struct ku_graph *g, ku_id param, const char *suffix, enum ku_tensor_kind kind,
                    enum kumi_dtype dtype, const struct ku_shape *shape);

/*
 * A builder adds the optimizer o->optimizer for all parameters with a gradient (column `update` of
 * op/ops.def; a missing one is a link error).
 *
 *   elementwise  one op per parameter
 *   layerwise    LARS, LAMB: parameters that o->adapt selects scale by their norms (exact sums over
 *                all shards), the others use sgd or adamw
 *   adafactor    sums by rows and columns
 *
 *   grad     [n_params] complete gradients by tensor, 0 = none
 *   report   the step's report
 */
typedef int ku_update_fn(struct ku_graph *g, const struct ku_compile_opts *o, const ku_id *grad,
                         ku_id n_params, ku_id report);
#define KU_OP(...)
#define KU_OPTIMIZER(name, s0, s1, s2, update, ...) ku_update_fn ku_update_##update;
#include "op/ops.def"
#undef KU_OP

#endif
