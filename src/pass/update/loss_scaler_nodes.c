/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes between the report and the optimizers: the loss scaler, updated by the report's decision to
 * apply or skip the step, and gradient clipping by value. The scaler's state is a tensor: backward
 * multiplies its seed by the scale (grad/autodiff.c), step_scalars divides by it.
 */
#include "base/err.h"
#include "op/loss_scaler.h"
#include "pass/update.h"

static const char scaler_name[] = "loss_scale";

ku_id ku_update_scaler_state(struct ku_graph *g, const struct ku_compile_opts *o)
{
    int64_t words = KU_SCALER_WORDS;
    struct ku_shape shape = ku_shape_of("w", &words);
    ku_id t = ku_graph_find_tensor(g, scaler_name);
    if (o->rule.loss_scale == 0)
        return 0;
    if (t == 0)
        t = ku_graph_tensor(g, scaler_name, KU_T_COUNTER, KUMI_F64, &shape);
    return t ? g->tensor[t].value : 0;
}

void ku_update_scaler_attrs(const struct ku_attrs *rule, struct ku_attrs *a)
{
    a->loss_scale = rule->loss_scale;
    a->scaler = rule->scaler;
    a->scale_window = rule->scale_window;
    a->hysteresis = rule->hysteresis;
    a->consecutive_hysteresis = rule->consecutive_hysteresis;
    a->min_scale = rule->min_scale;
    a->growth_factor = rule->growth_factor;
    a->backoff_factor = rule->backoff_factor;
}

int ku_update_scaler(struct ku_graph *g, const struct ku_compile_opts *o, ku_id report)
{
    ku_id state = ku_update_scaler_state(g, o);
    struct ku_attrs a = ku_attrs_default;
    if (state == 0)
        return KUMI_OK;
    ku_update_scaler_attrs(&o->rule, &a);
    ku_id node = ku_update_once(g, (struct ku_make){.op = KU_OP_loss_scaler,
                                                    .n_in = 2,
                                                    .in = {state, report},
                                                    .attr = &a,
                                                    .path = scaler_name});
    if (node == 0)
        return ku_err_get()->status;
    g->tensor[g->value[state].tensor].next = ku_out(g, node, 0);
    return KUMI_OK;
}

int ku_update_clip_values(struct ku_graph *g, const struct ku_compile_opts *o, ku_id *grad,
                          ku_id n_params, ku_id report)
{
    struct ku_attrs a = ku_attrs_default;
    a.clip_value = o->rule.clip_value;
    for (ku_id t = 1; t < n_params && a.clip_value > 0; t++) {
        if (grad[t] == 0)
            continue;
        ku_id node = ku_update_once(g, (struct ku_make){.op = KU_OP_clip_value,
                                                        .n_in = 2,
                                                        .in = {grad[t], report},
                                                        .attr = &a,
                                                        .path = g->tensor[t].name,
                                                        .source = ku_update_source(g, t)});
        if (node == 0)
            return ku_err_get()->status;
        grad[t] = ku_out(g, node, 0);
    }
    return KUMI_OK;
}
