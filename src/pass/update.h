/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_UPDATE_H
#define KU_PASS_UPDATE_H

#include "pass/pass.h"

/* What the update pass (update.c) and the layer-wise optimizers (update_layerwise.c) share. */

/* A node of phase O, placed; 0 on failure. */
ku_id ku_update_once(struct ku_graph *g, struct ku_make m);
/* The line that first uses a parameter: that of its gradient's and its update's nodes. */
ku_id ku_update_source(const struct ku_graph *g, ku_id tensor);
/* Whether a choice of parameters (matrices, all, patterns) has this one. */
int ku_update_selects(const struct ku_graph *g, ku_id tensor, int decay,
                      const char *const *patterns);

/* One parameter's optimizer: its state, operands in place and results. */
struct ku_update_node {
    ku_id tensor, grad, report;
    int n_own;      /* tensors of the optimizer's own */
    ku_id state[4]; /* the parameter, then its own */
    ku_id copy;     /* in compute precision, written with the parameter; 0 = none */
    struct ku_attrs attr;
};
/* Makes the optimizer's own tensors for op (KU_OP_sgd, adamw, lars, ..) and its attributes. */
int ku_update_begin(struct ku_graph *g, const struct ku_compile_opts *o, int op,
                    struct ku_update_node *u);
/* An element-wise optimizer, whole: p, own .., g, report -> p', own' .. [, copy]. */
int ku_update_element(struct ku_graph *g, const struct ku_compile_opts *o, int op, ku_id tensor,
                      ku_id grad, ku_id report);

/* update_scaler.c: the loss scaler's state as the step reads it, made at the first call; 0: there
 * is no scaler, or no memory. */
ku_id ku_update_scaler_state(struct ku_graph *g, const struct ku_compile_opts *o);
/* The scaler's part of a rule. */
void ku_update_scaler_attrs(const struct ku_attrs *rule, struct ku_attrs *a);
/* The scaler's move behind a report; nothing without a scaler. */
int ku_update_scaler(struct ku_graph *g, const struct ku_compile_opts *o, ku_id report);
/* Gradients clipped by value in place of themselves, where o->rule.clip_value is above 0. */
int ku_update_clip_values(struct ku_graph *g, const struct ku_compile_opts *o, ku_id *grad,
                          ku_id n_params, ku_id report);
/* update_narrow.c: a parameter without a master. The dtype in which an optimizer keeps its state
 * and reads the parameter: f32, f64 of f64. */
enum kumi_dtype ku_update_wide(const struct ku_graph *g, ku_id tensor);
/* What the optimizer reads of a parameter: itself, or a copy in that dtype, in the blocks of `grad`
 * (once the zero pass has dealt them). 0 on failure. */
ku_id ku_update_read(struct ku_graph *g, ku_id tensor, ku_id grad);
/* `value`, what the optimizer made of that, becomes the parameter's next version. */
int ku_update_write(struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor, ku_id value);
/* The next version as ku_update_read has it. 0 on failure. */
ku_id ku_update_read_next(struct ku_graph *g, ku_id tensor, ku_id grad);

/* Adafactor of all parameters with a gradient; operands as for ku_update_layerwise. */
int ku_update_adafactor(struct ku_graph *g, const struct ku_compile_opts *o, const ku_id *grad,
                        ku_id n_params, ku_id report);
/* update_groups.c: the attributes of one parameter: the rule's, its group's over them. */
struct ku_attrs ku_update_attrs(const struct ku_graph *g, const struct ku_compile_opts *o,
                                ku_id tensor);
/* KUMI_EINVAL: a group's pattern that no parameter has. */
int ku_update_check_groups(const struct ku_graph *g, const struct ku_compile_opts *o);
/* The average of a parameter, behind its update. Nothing where o->rule.ema is 0. */
int ku_update_average(struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor, ku_id grad,
                      ku_id report);
/* A tensor "param.suffix" of the state, or "suffix" with param 0; 0 on failure. */
ku_id ku_update_own(struct ku_graph *g, ku_id param, const char *suffix, enum ku_tensor_kind kind,
                    enum kumi_dtype dtype, const struct ku_shape *shape);

/*
 * LARS and LAMB of all parameters with a gradient: the adapted ones by their norms, which are exact
 * sums over all ranks' blocks, the others as sgd and adamw do.
 *
 *   grad   [n_params] complete gradients by tensor, 0 = none
 */
int ku_update_layerwise(struct ku_graph *g, const struct ku_compile_opts *o, const ku_id *grad,
                        ku_id n_params, ku_id report);

#endif
