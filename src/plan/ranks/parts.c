/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a model, by the ops that read its parameters. A module that multiplies with a
 * parameter of heads (dim h) is attention's, and so are its other parameters:
 *
 *     h.0.attn.c_proj.weight [h d c], .bias [c]     attention
 *     h.0.mlp.c_proj.weight [f c], .bias [c]        layers
 */
#include "base/mem.h"
#include "pass/unit.h"
#include "plan/ranks/map.h"

/* modules: per name of the graph, whether it is the path of a module of attention. */
static enum ku_model_part part_of(const struct ku_graph *g, const struct ku_use *use,
                                  const bool *modules)
{
    const struct ku_node *n = &g->node[use->node];
    const int op = n->op;
    switch (op) {
    case KU_OP_embedding:
    case KU_OP_add_rows:
        return KU_MP_TABLES;
    case KU_OP_conv2d:
        return KU_MP_CONVOLUTIONS;
    case KU_OP_layer_norm:
    case KU_OP_rms_norm:
    case KU_OP_batch_norm:
    case KU_OP_batch_norm_moments:
        return KU_MP_NORMS;
    case KU_OP_linear:
    case KU_OP_bias_add:
        return modules[n->path]                                  ? KU_MP_ATTENTION
               : ku_unit_bytes(g->tensor[use->tensor].name) == 0 ? KU_MP_HEAD
                                                                 : KU_MP_LAYERS;
    default:
        return KU_MP_OTHER;
    }
}

int ku_model_parts(const struct ku_graph *g, uint8_t *part, bool *has_attention)
{
    bool *modules = ku_calloc(g->n_names + 1, sizeof *modules);
    if (modules == NULL)
        return KUMI_ENOMEM;
    *has_attention = false;
    for (ku_id t = 0; t < g->n_tensors; t++)
        part[t] = KU_N_MODEL_PARTS;
    for (uint32_t i = 1; i < g->n_uses; i++)
        if (ku_shape_find(&g->shape[g->tensor[g->use[i].tensor].shape], 'h') >= 0 &&
            g->node[g->use[i].node].op == KU_OP_linear)
            modules[g->node[g->use[i].node].path] = *has_attention = true;
    for (uint32_t i = 1; i < g->n_uses; i++) /* the first use decides */
        if (part[g->use[i].tensor] == KU_N_MODEL_PARTS)
            part[g->use[i].tensor] = (uint8_t)part_of(g, &g->use[i], modules);
    for (ku_id t = 0; t < g->n_tensors; t++)
        if (part[t] == KU_N_MODEL_PARTS)
            part[t] = KU_MP_OTHER;
    ku_free(modules);
    return KUMI_OK;
}
