/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups collectives into buckets, one collective each.
 *
 *   SUMS      gradients in the order in which backward completes them, up to bucket_bytes; the
 *             first bucket up to first_bucket_bytes so that it starts early (as PyTorch's DDP). The
 *             small sums of loss and metrics: one bucket per reduction op.
 *   GATHERS   all-gathers after the update, in the order of the updates
 *   UNITS     all-gathers of stage 3 parameters, by unit; both up to gather_bucket_bytes
 *
 * Each element is reduced on its own, so the grouping cannot change a bit.
 */
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "ir/placement_rules.h"
#include "pass/pass.h"
#include "pass/pipe/layer_stages.h"

/* Sums over ranks, gathers after the update, and gathers of units of parameters. */
enum kind { SUMS, GATHERS, UNITS };

static bool is_rank_convert(const struct ku_graph *g, ku_id n)
{
    const struct ku_node *node = &g->node[n];
    if (node->op != KU_OP_convert || node->phase != KU_PH_O)
        return 0;
    const struct ku_value *from = &g->value[ku_in(g, node, 0)], *to = &g->value[ku_out(g, n, 0)];
    const int left = ku_layout_axes(&g->layout[to->layout], KU_P); /* a worker pushes them */
    return g->node[from->def].phase != KU_PH_O &&
           ku_layout_axes(&g->layout[from->layout], KU_P) & ~left & KU_DP_AXES;
}

/* An all-gather of a partitioned parameter that forward or backward reads. */
static bool is_unit_gather(const struct ku_graph *g, ku_id n)
{
    const struct ku_node *node = &g->node[n];
    return node->phase != KU_PH_O && ku_place_is_gather(g, n);
}

/* An all-gather of a tensor that the update leaves partitioned and the next step reads whole. */
static bool is_gather(const struct ku_graph *g, ku_id n)
{
    const struct ku_node *node = &g->node[n];
    return node->phase == KU_PH_O && ku_place_is_gather(g, n);
}

/* The properties that all converts of a bucket share. Outside O also the unit (path) and the
 * operand's placement (of), which gives the group of ranks; in O the axes of its partial sums. */
struct key {
    ku_id layout, of, path;
    int64_t partial, dtype, phase, reduce, wire, by_micro, stage;
    int64_t from_phase; /* of gradients that are reduced after each micro-batch of a pipeline, in
                           which I of a micro-batch may come long before W */
};

/* The stage of a convert: of the node that computes its operand in a micro-batch, else of the
 * tensor that it belongs to. */
static int stage_of(const struct ku_graph *g, ku_id n)
{
    const struct ku_value *from = &g->value[ku_in(g, &g->node[n], 0)];
    if (g->mesh.extent[KU_AX_PP] == 1)
        return 0;
    if (from->def && g->node[from->def].phase != KU_PH_O)
        return g->node[from->def].stage;
    const ku_id t =
        from->role == KU_STATE ? from->tensor : ku_graph_find_tensor(g, g->name[g->node[n].path]);
    return t ? ku_stage_of_tensor(g, t) : 0;
}

static struct key key_of(const struct ku_graph *g, ku_id n)
{
    const struct ku_node *node = &g->node[n];
    const struct ku_value *to = &g->value[ku_out(g, n, 0)];
    const struct ku_attrs *a = &g->attr[node->attr];
    int is_unit = node->phase != KU_PH_O;
    struct key k;
    memset(&k, 0, sizeof k); /* padding is hashed too */
    k.layout = to->layout;
    k.of = is_unit ? g->value[ku_in(g, node, 0)].layout : 0;
    k.path = is_unit ? node->path : 0;
    k.partial = ku_layout_axes(&g->layout[g->value[ku_in(g, node, 0)].layout], KU_P);
    k.dtype = to->dtype, k.phase = node->phase;
    k.stage = is_unit ? node->stage : stage_of(g, n);
    k.reduce = a->reduce, k.wire = a->wire, k.by_micro = a->by_micro;
    if (a->by_micro && g->mesh.extent[KU_AX_PP] > 1)
        k.from_phase = g->node[g->value[ku_in(g, node, 0)].def].phase;
    return k;
}

static int64_t bytes_of(const struct ku_graph *g, ku_id n)
{
    const struct ku_value *v = &g->value[ku_out(g, n, 0)];
    const struct ku_coord first = {0};
    struct ku_shape local;
    ku_local_shape(&g->mesh, &g->shape[v->shape], &g->layout[v->layout], &first, &local);
    return ku_shape_count(&local) * (int64_t)kumi_dtype_bytes((enum kumi_dtype)v->dtype);
}

/* Lists the converts of a kind, sorted by the node that completes their operand. Returns their
 * number; UINT32_MAX: no memory. */
static uint32_t in_completion_order(const struct ku_graph *g, enum kind kind, ku_id *list)
{
    ku_id *by_def = ku_calloc(2 * (size_t)g->n_nodes, sizeof *by_def);
    uint32_t n = 0;
    if (by_def == NULL)
        return UINT32_MAX;
    for (ku_id c = 1; c < g->n_nodes && kind == UNITS; c++) /* operands are state: node order */
        if (is_unit_gather(g, c))
            list[n++] = c;
    ku_id *next = by_def + g->n_nodes; /* chains the converts whose operands one node makes */
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

/* A convert joins the open bucket of its key until that is full. Buckets are ordered by their first
 * convert. */
struct open {
    struct key key;
    uint32_t group; /* the open one, + 1; 0: a free slot */
};
struct filling {
    struct ku_graph *g;
    ku_id *list, *group_of; /* [n] converts in order, and the group of each */
    struct group {
        int64_t bytes, limit;
        uint32_t n, first;
    } * group;
    struct open *open; /* [mask + 1] hash table by key */
    uint32_t n, n_groups, mask;
};

static struct open *find(const struct filling *f, const struct key *key)
{
    uint32_t at = (uint32_t)ku_hash64(key, sizeof *key) & f->mask;
    while (f->open[at].group && memcmp(&f->open[at].key, key, sizeof *key) != 0)
        at = (at + 1) & f->mask;
    return &f->open[at];
}

static int64_t limit_of(const struct filling *f, const struct ku_compile_opts *o, enum kind kind,
                        ku_id n)
{
    const struct ku_graph *g = f->g;
    int is_gradient =
        kind == SUMS && g->node[g->value[ku_in(g, &g->node[n], 0)].def].phase != KU_PH_F;
    return is_gradient && g->n_buckets + f->n_groups <= 1 ? o->first_bucket_bytes
           : kind == SUMS                                 ? o->bucket_bytes
                                                          : o->gather_bucket_bytes;
}

static void assign(struct filling *f, const struct ku_compile_opts *o, enum kind kind)
{
    for (uint32_t i = 0; i < f->n; i++) {
        struct key key = key_of(f->g, f->list[i]);
        struct open *open = find(f, &key);
        struct group *at = open->group ? &f->group[open->group - 1] : NULL;
        int64_t bytes = bytes_of(f->g, f->list[i]);
        if (at == NULL || (at->bytes + bytes > at->limit && (kind == SUMS || at->limit > 0))) {
            at = &f->group[f->n_groups];
            *at = (struct group){.limit = limit_of(f, o, kind, f->list[i])};
            open->key = key;
            open->group = ++f->n_groups;
        }
        at->bytes += bytes;
        at->n++;
        f->group_of[i] = open->group - 1;
    }
}

/* Sorts the converts by group and makes one bucket per group. */
static int make_buckets(struct filling *f, ku_id *sorted)
{
    uint32_t at = 0;
    for (uint32_t b = 0; b < f->n_groups; b++) {
        f->group[b].first = at;
        at += f->group[b].n;
    }
    for (uint32_t i = 0; i < f->n; i++)
        sorted[f->group[f->group_of[i]].first++] = f->list[i];
    for (uint32_t b = 0; b < f->n_groups; b++)
        KU_TRY(ku_graph_bucket(f->g, &sorted[f->group[b].first - f->group[b].n], f->group[b].n));
    return KUMI_OK;
}

static int fill_buckets(struct ku_graph *g, const struct ku_compile_opts *o, enum kind kind)
{
    struct filling f = {.g = g, .list = ku_calloc(3 * (size_t)g->n_nodes, sizeof *f.list)};
    if (f.list == NULL)
        return KUMI_ENOMEM;
    f.group_of = f.list + g->n_nodes;
    f.n = in_completion_order(g, kind, f.list);
    int status = f.n == UINT32_MAX ? KUMI_ENOMEM : KUMI_OK;
    if (status == KUMI_OK && f.n) {
        for (f.mask = 15; f.mask < 2 * f.n;)
            f.mask = 2 * f.mask + 1;
        f.group = ku_calloc(f.n, sizeof *f.group);
        f.open = ku_calloc((size_t)f.mask + 1, sizeof *f.open);
        status = f.group && f.open ? KUMI_OK : KUMI_ENOMEM;
        if (status == KUMI_OK) {
            assign(&f, o, kind);
            status = make_buckets(&f, f.group_of + g->n_nodes);
        }
    }
    ku_free(f.group);
    ku_free(f.open);
    ku_free(f.list);
    return status;
}

int ku_pass_bucket(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t)
{
    (void)t;
    KU_TRY(fill_buckets(g, o, SUMS));
    KU_TRY(fill_buckets(g, o, GATHERS));
    return fill_buckets(g, o, UNITS);
}
