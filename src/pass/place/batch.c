/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data parallelism: places input ports and state; the ops' placement rules give the rest.
 *
 *   input ports   S(n) on replicate, shard, local, vs and mb
 *   parameters    R on these axes
 *   KV caches     S(0) on these axes
 *
 * Synchronised batch norm gets its collective here. Axis tp: tensor_parallel.h.
 */
#include "base/err.h"
#include "ir/placement_rules.h"
#include "pass/pass.h"
#include "pass/pipe/block_schedule.h"
#include "pass/pipe/layer_stages.h"
#include "pass/place/tensor_parallel.h"

static const int batch_axis[] = {KU_AX_REPLICATE, KU_AX_SHARD, KU_AX_LOCAL, KU_AX_VS, KU_AX_MB};
enum { N_BATCH_AXES = sizeof batch_axis / sizeof batch_axis[0] };

static int place_inputs(struct ku_graph *g, const struct ku_mesh *mesh)
{
    int64_t parts = (int64_t)ku_mesh_dp(mesh) * ku_mesh_n_micro(mesh);
    for (uint32_t i = 0; i < g->n_inputs; i++) {
        struct ku_value *v = &g->value[g->input[i].value];
        struct ku_layout l = ku_layout_all(KU_C);
        int dim = ku_shape_find(&g->shape[v->shape], 'n');
        if (dim < 0)
            continue; /* the control port */
        int64_t n = g->shape[v->shape].dim[dim].count;
        if (n % parts)
            return KU_ERR(KUMI_EINVAL,
                          "placement: port %s: %lld samples do not divide into %lld micro-batches",
                          g->input[i].name, (long long)n, (long long)parts);
        for (int a = 0; a < N_BATCH_AXES; a++)
            l.at[batch_axis[a]] = (struct ku_place){KU_S, (uint8_t)dim};
        v->layout = ku_graph_layout(g, &l);
        if (v->layout == 0)
            return KUMI_ENOMEM;
    }
    return KUMI_OK;
}

static int place_state(struct ku_graph *g)
{
    struct ku_layout l = ku_layout_all(KU_C), cut = l;
    for (int a = 0; a < N_BATCH_AXES; a++) {
        l.at[batch_axis[a]].kind = KU_R;
        cut.at[batch_axis[a]] = (struct ku_place){KU_S, 0}; /* samples of a KV cache */
    }
    ku_id id = ku_graph_layout(g, &l), samples = ku_graph_layout(g, &cut);
    if (id == 0 || samples == 0)
        return KUMI_ENOMEM;
    for (ku_id t = 1; t < g->n_tensors; t++)
        if (g->tensor[t].kind == KU_T_PARAM || g->tensor[t].kind == KU_T_DERIVED)
            g->value[g->tensor[t].value].layout = id;
        else if (g->tensor[t].kind == KU_T_CACHE)
            g->value[g->tensor[t].value].layout = samples;
    return KUMI_OK;
}

/* Statistics over the micro-batches that all ranks run at the same time. Each rank must run exactly
 * one virtual shard; otherwise the number of ranks would decide which samples are normalised
 * together. */
static int sync_statistics(struct ku_graph *g, ku_id node)
{
    const struct ku_node *n = &g->node[node];
    int n_ranks = ku_mesh_dp(&g->mesh), n_shards = n_ranks * g->mesh.extent[KU_AX_VS];
    if (n_shards != n_ranks)
        return KU_ERR(KUMI_EINVAL,
                      "placement: %s: synchronised batch norm needs as many ranks as virtual "
                      "shards; ranks: %d, train.virtual_shards: %d; start %d, or set sync to "
                      "false",
                      g->name[n->path], n_ranks, n_shards, n_shards);
    ku_id whole = ku_place_sync(g, ku_in(g, n, 0), n->phase, g->name[n->path], n->source);
    if (whole == 0)
        return ku_err_get()->status;
    g->refs[g->node[node].in] = whole;
    return KUMI_OK;
}

static int place_nodes(struct ku_graph *g, struct ku_tensor_plan *plan, ku_id n_model)
{
    for (ku_id n = 1; n < n_model; n++) {
        if (g->node[n].op == KU_OP_batch_norm_moments && g->attr[g->node[n].attr].sync)
            KU_TRY(sync_statistics(g, n));
        if (g->node[n].op == KU_OP_NONE)
            continue;
        if (plan)
            KU_TRY(ku_tensor_before(plan, n));
        if (g->node[n].op == KU_OP_NONE) /* in parts, which are placed */
            continue;
        KU_TRY(ku_place_node(g, n));
        if (plan)
            KU_TRY(ku_tensor_after(plan, n));
    }
    return plan ? ku_tensor_finish(plan) : KUMI_OK;
}

int ku_pass_placement(struct ku_graph *g, const struct ku_compile_opts *o,
                      const struct ku_target *t)
{
    struct ku_tensor_plan *plan;
    ku_id n_model = g->n_nodes;
    (void)t;
    g->mesh = o->mesh;
    KU_TRY(place_inputs(g, &o->mesh));
    KU_TRY(place_state(g));
    KU_TRY(ku_tensor_plan_create(g, o, &plan));
    int status = place_nodes(g, plan, n_model);
    ku_tensor_plan_destroy(plan);
    if (status < 0)
        return status;
    if (g->n_nodes > n_model)
        KU_TRY(ku_graph_sort(g));
    return o->schedule ? ku_stages_assign(g, o->stage_layers, o->schedule->n_stages) : KUMI_OK;
}
