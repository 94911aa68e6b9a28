/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of Llama-style decoders: rms_norm, rope, glu; and rename. */
#define KUMI_NO_SOURCE /* this file defines the functions */
#include "nn/builder.h"

#include "base/err.h"

kumi_value kumi_rms_norm(struct kumi_graph *g, kumi_value x, const char *name, double eps)
{
    if (!ku_builder_check_name(g, name) || !ku_builder_check_floating(g, x, name) ||
        !ku_builder_check_number(g, "eps", eps, 0, KU_MAX_NUMBER))
        return 0;
    struct ku_shape s = g->ir->shape[g->ir->value[x].shape];
    if (s.ndim < 1) {
        KU_ERR(KUMI_EINVAL, "graph: %s%s: norm of a scalar; give a value with dimensions", g->scope,
               name);
        return ku_builder_fail(g);
    }
    struct ku_shape last = {.ndim = 1, .dim = {s.dim[s.ndim - 1]}};
    struct ku_attrs a = ku_attrs_default;
    a.eps = eps > 0 ? eps : 1e-6;
    kumi_value gain = ku_builder_param(g, name, "weight", &last, 1, &(struct kumi_init){.mean = 1});
    return ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_rms_norm, .n_in = 2, .in = {x, gain}, .attr = &a}, name);
}

kumi_value kumi_rope(struct kumi_graph *g, kumi_value x, const struct kumi_rope *o)
{
    static const struct kumi_rope none;
    o = o ? o : &none;
    if (!ku_builder_check_floating(g, x, "rope") ||
        !ku_builder_check_number(g, "rope type", o->type, KUMI_ROPE_DEFAULT, KUMI_ROPE_LLAMA3) ||
        !ku_builder_check_number(g, "rope theta", o->theta, 0, KU_MAX_NUMBER) ||
        !ku_builder_check_number(g, "rope factor", o->factor, 0, KU_MAX_NUMBER) ||
        !ku_builder_check_number(g, "rope low_freq_factor", o->low_freq_factor, 0, KU_MAX_NUMBER) ||
        !ku_builder_check_number(g, "rope high_freq_factor", o->high_freq_factor, 0, KU_MAX_NUMBER))
        return 0;
    struct ku_attrs a = ku_attrs_default;
    _Static_assert((int)KUMI_ROPE_LINEAR == (int)KU_ROPE_LINEAR &&
                       (int)KUMI_ROPE_DYNAMIC == (int)KU_ROPE_DYNAMIC &&
                       (int)KUMI_ROPE_LLAMA3 == (int)KU_ROPE_LLAMA3,
                   "public and internal types");
    a.rope_type = o->type;
    a.theta = o->theta != 0 ? o->theta : a.theta;
    if (o->type != KUMI_ROPE_DEFAULT)
        a.factor = o->factor != 0 ? o->factor : a.factor;
    if (o->type == KUMI_ROPE_DYNAMIC || o->type == KUMI_ROPE_LLAMA3)
        a.original = o->original_max_position_embeddings;
    if (o->type == KUMI_ROPE_LLAMA3) {
        a.low_freq = o->low_freq_factor != 0 ? o->low_freq_factor : a.low_freq;
        a.high_freq = o->high_freq_factor != 0 ? o->high_freq_factor : a.high_freq;
    }
    const struct ku_shape *s = &g->ir->shape[g->ir->value[x].shape];
    if (o->type == KUMI_ROPE_DYNAMIC && s->ndim > 1 && !o->lengths)
        a.length = o->length ? o->length : s->dim[1].count;
    const int n_in = o->lengths ? 3 : o->positions ? 2 : 1;
    struct ku_make m = {
        .op = KU_OP_rope, .n_in = n_in, .in = {x, o->positions, o->lengths}, .attr = &a};
    return ku_builder_node(g, &m, "");
}

kumi_value kumi_glu(struct kumi_graph *g, kumi_value gate, kumi_value up, enum kumi_activation act)
{
    struct ku_attrs a = ku_attrs_default;
    a.act = act;
    if (!ku_builder_check_floating(g, gate, "glu") ||
        !ku_builder_check_number(g, "activation", act, KUMI_NO_ACTIVATION, KUMI_SILU))
        return 0;
    return ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_glu, .n_in = 2, .in = {gate, up}, .attr = &a}, "");
}

kumi_value kumi_rename(struct kumi_graph *g, kumi_value x, char name)
{
    struct ku_attrs a = ku_attrs_default;
    a.row_name = name;
    return ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_rename, .n_in = 1, .in = {x}, .attr = &a}, "");
}
