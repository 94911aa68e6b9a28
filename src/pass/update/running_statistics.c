/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running statistics of batch norm. Forward leaves the mean and unbiased variance of every
 * micro-batch: concatenated over mb, summed over shards by the canonical tree. Phase O updates the
 * running tensors once per micro-batch index with the mean over shards, whether or not the step
 * applies.
 */
#include "base/err.h"
#include "ir/placement_rules.h"
#include "pass/pass.h"

/* Adds a node that makes the next version of `n` tensors from them and from value `from` (0: none).
 */
static int move(struct ku_graph *g, int op, const struct ku_attrs *a, const ku_id *tensor, int n,
                ku_id from, ku_id like)
{
    struct ku_make m = {.op = op,
                        .phase = KU_PH_O,
                        .attr = a,
                        .path = g->name[g->node[like].path],
                        .source = g->node[like].source};
    for (; m.n_in < n; m.n_in++)
        m.in[m.n_in] = g->tensor[tensor[m.n_in]].value;
    if (from)
        m.in[m.n_in++] = from;
    ku_id node = ku_graph_node(g, &m);
    if (node == 0)
        return ku_err_get()->status;
    for (int i = 0; i < n; i++)
        g->tensor[tensor[i]].next = ku_out(g, node, i);
    return ku_place_node(g, node);
}

static int track(struct ku_graph *g, const struct ku_compile_opts *o, ku_id node)
{
    int k = g->mesh.extent[KU_AX_MB];
    ku_id seen = ku_out(g, node, 2), tensor[3];
    struct ku_attrs a = ku_attrs_default, rule = g->attr[g->node[node].attr];
    int is_partial = (ku_layout_axes(&g->layout[g->value[seen].layout], KU_P) & KU_DP_AXES) != 0;
    int n_shards =
        g->mesh.extent[KU_AX_VS] * (is_partial && !o->remote.is_single ? ku_mesh_dp(&g->mesh) : 1);
    for (int i = 0; i < 3; i++)
        tensor[i] = g->value[ku_in(g, &g->node[node], i + 1)].tensor;
    a.axes = (1 << KU_N_AXES) - 1;
    a.concat = k;
    ku_id concat = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                      .phase = KU_PH_O,
                                                      .n_in = 1,
                                                      .in = {seen},
                                                      .attr = &a,
                                                      .path = g->name[g->node[node].path]});
    if (concat == 0)
        return ku_err_get()->status;
    KU_TRY(ku_place_complete(g, concat));
    rule.scale = 1.0 / n_shards;
    KU_TRY(move(g, KU_OP_batch_norm_track, &rule, tensor, 2, ku_out(g, concat, 0), node));
    a = ku_attrs_default;
    a.words = k;
    KU_TRY(move(g, KU_OP_count_up, &a, tensor + 2, 1, 0, node));
    g->node[node].n_in = 1; /* from here on only O reads the running tensors */
    return KUMI_OK;
}

int ku_update_track(struct ku_graph *g, const struct ku_compile_opts *o)
{
    ku_id n_nodes = g->n_nodes;
    for (ku_id n = 1; n < n_nodes; n++)
        if (g->node[n].op == KU_OP_batch_norm_moments && g->node[n].n_in == 4)
            KU_TRY(track(g, o, n));
    return KUMI_OK;
}
