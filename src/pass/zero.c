/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ownership of state by canonical blocks. Where the ranks of a host share its state (RUNTIME 9),
 * gradients are reduced to their owner's blocks only, the norm's parts are reduced, owners update,
 * and everybody reads the one copy: gradients turn from C to Z, and Z goes through the element-wise
 * nodes of O. ZeRO's stages between hosts are this rewrite with gathers, and come into this place.
 */
#include "base/err.h"
#include "ir/place.h"
#include "pass/pass.h"

enum { DP_AXIS = KU_AX_REPLICATE };

/* Tensors' first owners: they run on from one to the next, so that the ranks' totals differ by one
 * block at most. */
static void deal_blocks(struct ku_graph *g, int dp)
{
    int64_t first = 0;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        struct ku_tensor *x = &g->tensor[t];
        if (x->kind == KU_T_COUNTER)
            continue;
        if (x->of) { /* optimizer state and copies lie with their parameter */
            x->first_block = g->tensor[x->of].first_block;
            continue;
        }
        int64_t n_blocks =
            (ku_shape_count(&g->shape[x->shape]) + KU_BLOCK_COUNT - 1) / KU_BLOCK_COUNT;
        x->first_block = (int32_t)first;
        first = (first + n_blocks) % dp;
    }
}

static int is_gradient(const struct ku_graph *g, const struct ku_node *n)
{
    const struct ku_value *from = &g->value[ku_in(g, n, 0)];
    return n->op == KU_OP_convert && n->phase == KU_PH_O && g->node[from->def].phase != KU_PH_F &&
           from->role == KU_TEMP;
}

/* The sum over ranks that blocks make necessary: what the nodes of `op` read first (statistics, the
 * sums of layer-wise optimizers) is partial now. */
static int complete_sums(struct ku_graph *g, int op)
{
    ku_id reader = 0;
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].op == op)
            reader = n;
    if (reader == 0)
        return KUMI_OK;
    ku_id sums = ku_in(g, &g->node[reader], 0);
    const char *path = g->name[g->node[reader].path];
    struct ku_attrs a = ku_attrs_default;
    a.axes = 1 << DP_AXIS;
    ku_id node = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                    .phase = KU_PH_O,
                                                    .n_in = 1,
                                                    .in = {sums},
                                                    .attr = &a,
                                                    .path = path});
    if (node == 0)
        return ku_err_get()->status;
    for (ku_id n = 1; n < node; n++)
        if (g->node[n].op == op && ku_in(g, &g->node[n], 0) == sums)
            g->refs[g->node[n].in] = ku_out(g, node, 0);
    for (uint32_t i = 0; i < g->n_outputs; i++)
        if (g->output[i].value == sums)
            g->output[i].value = ku_out(g, node, 0);
    return ku_graph_sort(g);
}

/* What every rank has made whole and state shall hold (derive): owners write their blocks of it. */
static int cut_derived(struct ku_graph *g, ku_id layout)
{
    for (ku_id n = 1, n_nodes = g->n_nodes; n < n_nodes; n++) {
        if (g->node[n].op != KU_OP_derive || g->node[n].phase != KU_PH_O)
            continue;
        struct ku_attrs a = ku_attrs_default;
        a.axes = 1 << DP_AXIS;
        ku_id cut = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                       .phase = KU_PH_O,
                                                       .n_in = 1,
                                                       .in = {ku_in(g, &g->node[n], 0)},
                                                       .attr = &a,
                                                       .path = g->name[g->node[n].path]});
        if (cut == 0)
            return ku_err_get()->status;
        g->value[ku_out(g, cut, 0)].layout = layout;
        g->refs[g->node[n].in] = ku_out(g, cut, 0);
    }
    return ku_graph_sort(g);
}

int ku_pass_zero(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t)
{
    (void)t;
    int dp = ku_mesh_dp(&g->mesh);
    deal_blocks(g, dp);
    if (!o->share_host_state || dp == 1)
        return KUMI_OK;
    struct ku_layout blocks = ku_layout_all(KU_C);
    blocks.at[DP_AXIS].kind = KU_Z;
    ku_id layout = ku_graph_layout(g, &blocks);
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (is_gradient(g, &g->node[n]))
            g->value[ku_out(g, n, 0)].layout = layout;
    for (ku_id x = 1; x < g->n_tensors; x++) /* owners move running statistics */
        if (g->tensor[x].kind == KU_T_BUFFER)
            g->value[g->tensor[x].value].layout = layout;
    KU_TRY(complete_sums(g, KU_OP_step_scalars));
    KU_TRY(complete_sums(g, KU_OP_factor_means));
    KU_TRY(complete_sums(g, KU_OP_trust_norms));
    KU_TRY(cut_derived(g, layout));
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].phase == KU_PH_O && g->node[n].op != KU_OP_convert &&
            g->node[n].op != KU_OP_NONE)
            KU_TRY(ku_place_node(g, n));
    return KUMI_OK;
}
