/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives that travel together. Gradients in the order in which backward completes them, up to
 * bucket_bytes each, the first up to first_bucket_bytes so that it starts early (DDP's rule); the
 * small sums of loss and metrics in one bucket per fold; gathers in the order of updates, those of
 * parameters by unit, up to gather_bucket_bytes. Elements are reduced one by one, so no
 * grouping can change a bit.
 */
#include "base/err.h"
#include "base/mem.h"
#include "pass/pass.h"

/* Sums over ranks, gathers after the update, and gathers of units of parameters. */
enum kind { SUMS, GATHERS, UNITS };

static int is_rank_convert(const struct ku_graph *g, ku_id n)
{
    const struct ku_node *node = &g->node[n];
    if (node->op != KU_OP_convert || node->phase != KU_PH_O)
        return 0;
    const struct ku_value *from = &g->value[ku_in(g, node, 0)];
    return g->node[from->def].phase != KU_PH_O &&
           (g->layout[from->layout].at[KU_AX_REPLICATE].kind == KU_P ||
            g->layout[from->layout].at[KU_AX_SHARD].kind == KU_P);
}

/* What forward and backward of this step read of a parameter in blocks. */
static int is_unit_gather(const struct ku_graph *g, ku_id n)
{
    const struct ku_node *node = &g->node[n];
    return node->op == KU_OP_convert && node->phase != KU_PH_O &&
           ku_layout_has(&g->layout[g->value[ku_in(g, node, 0)].layout], KU_Z);
}

/* What the update left in blocks and the next step reads whole. */
static int is_gather(const struct ku_graph *g, ku_id n)
{
    const struct ku_node *node = &g->node[n];
    return node->op == KU_OP_convert && node->phase == KU_PH_O &&
           ku_layout_has(&g->layout[g->value[ku_in(g, node, 0)].layout], KU_Z);
}

/* What one bucket may hold: one dtype, one fold, one kind of result; of parameters, one unit. */
static int is_alike(const struct ku_graph *g, ku_id a, ku_id b)
{
    const struct ku_value *x = &g->value[ku_out(g, a, 0)], *y = &g->value[ku_out(g, b, 0)];
    if (g->node[a].phase != KU_PH_O &&
        g->value[ku_in(g, &g->node[a], 0)].layout != g->value[ku_in(g, &g->node[b], 0)].layout)
        return 0; /* one group of ranks */
    return x->dtype == y->dtype && x->layout == y->layout && g->node[a].phase == g->node[b].phase &&
           (g->node[a].phase == KU_PH_O || g->node[a].path == g->node[b].path) &&
           g->attr[g->node[a].attr].reduce == g->attr[g->node[b].attr].reduce &&
           g->attr[g->node[a].attr].wire == g->attr[g->node[b].attr].wire &&
           g->attr[g->node[a].attr].by_micro == g->attr[g->node[b].attr].by_micro;
}

static int64_t bytes_of(const struct ku_graph *g, ku_id n)
{
    const struct ku_value *v = &g->value[ku_out(g, n, 0)];
    return ku_shape_count(&g->shape[v->shape]) *
           (int64_t)kumi_dtype_bytes((enum kumi_dtype)v->dtype);
}

/* Converts sorted by the node that completes their operand. */
static uint32_t in_completion_order(const struct ku_graph *g, enum kind kind, ku_id *list)
{
    ku_id *by_def = ku_calloc(2 * (size_t)g->n_nodes, sizeof *by_def);
    uint32_t n = 0;
    if (by_def == NULL)
        return UINT32_MAX;
    for (ku_id c = 1; c < g->n_nodes && kind == UNITS; c++) /* state is there */
        if (is_unit_gather(g, c))
            list[n++] = c;
    ku_id *next = by_def + g->n_nodes; /* converts of one node are chained, in order */
    for (ku_id c = g->n_nodes - 1; c > 0; c--) {
        if (kind == UNITS || !(kind == GATHERS ? is_gather(g, c) : is_rank_convert(g, c)))
            continue;
        ku_id def = g->value[ku_in(g, &g->node[c], 0)].def;
        next[c] = by_def[def];
        by_def[def] = c;
    }
    for (ku_id d = 1; d < g->n_nodes; d++)
        for (ku_id c = by_def[d]; c; c = next[c])
            list[n++] = c;
    ku_free(by_def);
    return n;
}

static int fill_buckets(struct ku_graph *g, const struct ku_compile_opts *o, enum kind kind)
{
    ku_id *list = ku_calloc(2 * (size_t)g->n_nodes, sizeof *list);
    if (list == NULL)
        return KUMI_ENOMEM;
    ku_id *group = list + g->n_nodes;
    int status = KUMI_OK;
    uint32_t n = in_completion_order(g, kind, list);
    if (n == UINT32_MAX)
        status = KUMI_ENOMEM;
    for (uint32_t i = 0; i < n && status == KUMI_OK; i++) {
        if (list[i] == 0)
            continue;
        int is_gradient =
            kind == SUMS && g->node[g->value[ku_in(g, &g->node[list[i]], 0)].def].phase != KU_PH_F;
        int64_t most = is_gradient && g->n_buckets <= 1 ? o->first_bucket_bytes
                       : kind == SUMS                   ? o->bucket_bytes
                                                        : o->gather_bucket_bytes,
                bytes = 0;
        uint32_t n_group = 0;
        for (uint32_t j = i; j < n; j++) {
            if (list[j] == 0 || !is_alike(g, list[i], list[j]))
                continue;
            if (n_group && bytes + bytes_of(g, list[j]) > most && (kind == SUMS || most > 0))
                break;
            bytes += bytes_of(g, list[j]);
            group[n_group++] = list[j];
            if (j > i)
                list[j] = 0;
        }
        status = ku_graph_bucket(g, group, n_group);
    }
    ku_free(list);
    return status;
}

int ku_pass_bucket(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t)
{
    (void)t;
    KU_TRY(fill_buckets(g, o, SUMS));
    KU_TRY(fill_buckets(g, o, GATHERS));
    return fill_buckets(g, o, UNITS);
}
