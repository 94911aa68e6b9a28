/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm and its running statistics. */
#define KUMI_NO_SOURCE /* this file defines the functions */
#include <stdio.h>

#include "base/err.h"
#include "nn/builder.h"

/*
 * A state tensor that is part of the model but not trained. It is placed with a parameter of its
 * layer.
 */
static kumi_value buffer(struct kumi_graph *g, const char *name, const char *part,
                         enum kumi_dtype dtype, const struct ku_shape *s, double first, ku_id of)
{
    char full[2 * KU_MAX_SCOPE_BYTES];
    struct ku_attrs a = ku_attrs_default;
    if (ku_builder_has_failed(g))
        return 0;
    a.value = first;
    snprintf(full, sizeof full, "%s%s.%s", g->scope, name, part);
    ku_id id = ku_graph_tensor(g->ir, full, KU_T_BUFFER, dtype, s), attr = ku_graph_attr(g->ir, &a);
    if (id == 0 || attr == 0)
        return ku_builder_fail(g);
    g->ir->tensor[id].init_attr = attr;
    g->ir->tensor[id].of = of;
    return g->ir->tensor[id].value;
}

kumi_value kumi_batch_norm(struct kumi_graph *g, kumi_value x, const char *name,
                           const struct kumi_batch_norm *options)
{
    static const struct kumi_batch_norm defaults = {0};
    const struct kumi_batch_norm *o = options ? options : &defaults;
    if (!ku_builder_check_name(g, name) || !ku_builder_check_floating(g, x, name) ||
        !ku_builder_check_number(g, "eps", o->eps, 0, KU_MAX_NUMBER) ||
        !ku_builder_check_number(g, "momentum", o->momentum, 0, 1))
        return 0;
    struct ku_shape s = g->ir->shape[g->ir->value[x].shape], scalar = {0};
    struct ku_shape last = {.ndim = 1, .dim = {s.dim[s.ndim > 0 ? s.ndim - 1 : 0]}};
    struct ku_attrs a = ku_attrs_default;
    if (s.ndim < 2) {
        KU_ERR(KUMI_EINVAL,
               "graph: %s%s: batch norm of %d dimensions; give at least samples and channels",
               g->scope, name, s.ndim);
        return ku_builder_fail(g);
    }
    a.eps = o->eps > 0 ? o->eps : 1e-5;
    a.momentum = o->momentum > 0 ? o->momentum : 0.1;
    a.sync = o->sync != 0;
    kumi_value gain =
        ku_builder_param(g, name, "weight", &last, 1, &(struct kumi_init){.mean = !o->zero_gain});
    kumi_value bias = ku_builder_param(g, name, "bias", &last, 1, &(struct kumi_init){0});
    ku_id of = gain ? g->ir->value[gain].tensor : 0;
    kumi_value mean = buffer(g, name, "running_mean", KUMI_F32, &last, 0, of);
    kumi_value var = buffer(g, name, "running_var", KUMI_F32, &last, 1, of);
    kumi_value n = buffer(g, name, "num_batches_tracked", KUMI_I64, &scalar, 0, of);
    kumi_value sums = ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_batch_norm_sums, .n_in = 1, .in = {x}, .attr = &a}, name);
    struct ku_make m = {
        .op = KU_OP_batch_norm_moments, .n_in = 4, .in = {sums, mean, var, n}, .attr = &a};
    mean = ku_builder_node(g, &m, name);
    if (mean == 0)
        return 0;
    var = ku_out(g->ir, g->ir->value[mean].def, 1);
    m = (struct ku_make){
        .op = KU_OP_batch_norm, .n_in = 5, .in = {x, mean, var, gain, bias}, .attr = &a};
    return ku_builder_node(g, &m, name);
}
