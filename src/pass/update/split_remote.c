/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts the step for a parameter server, after phase O has been built: at every convert of O that
 * completes what micro-batches left partial. These are the gradients of all uses, loss, counts,
 * metrics, and the statistics of batch norm; nothing else of forward and backward reaches O.
 *
 *     here       F, I, W ── x ── convert (vs, mb, ranks) ── y ── norm, optimizer ..
 *     worker     F, I, W ── x ── convert (vs, mb)        ── output "gradient.0.wte.weight"
 *     server                          input "gradient.0.wte.weight" ── y ── norm, optimizer ..
 *
 * A worker's output is its part of the canonical sum over the data-parallel ranks, which the server
 * finishes between the two (train/remote). Both sides cut the same graph on the same mesh, so ports
 * have equal names, shapes and order. Afterwards the server's graph is on the mesh of the servers:
 * axis shard alone, over which pass zero divides state and gradients.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "ir/placement_rules.h"
#include "pass/update.h"

enum { TIME_AXES = 1 << KU_AX_VS | 1 << KU_AX_MB };

static bool is_micro(const struct ku_graph *g, ku_id value)
{
    const ku_id def = g->value[value].def;
    const int phase = g->node[def].phase;
    return def && (phase == KU_PH_F || phase == KU_PH_I || phase == KU_PH_W);
}

/* Whether a node is where the step is cut. */
static bool is_cut(const struct ku_graph *g, ku_id node)
{
    const struct ku_node *n = &g->node[node];
    return n->op == KU_OP_convert && n->phase == KU_PH_O && is_micro(g, ku_in(g, n, 0));
}

/* The use whose gradient a value is; 0: it is none. */
static ku_id use_of(const struct ku_graph *g, ku_id value)
{
    for (ku_id u = 1; u < g->n_uses; u++)
        if (g->use[u].grad == value)
            return u;
    return 0;
}

/* The name of a cut's port: which use of which tensor, or a number and the module. */
static void name_of(const struct ku_graph *g, ku_id convert, uint32_t index, char name[])
{
    const ku_id use = use_of(g, ku_in(g, &g->node[convert], 0));
    int nth = 0;
    for (ku_id u = 1; u < use; u++)
        nth += g->use[u].tensor == g->use[use].tensor && g->use[u].grad;
    if (use)
        snprintf(name, KU_NAME_BYTES, "gradient.%d.%s", nth, g->tensor[g->use[use].tensor].name);
    else
        snprintf(name, KU_NAME_BYTES, "sum.%u.%s", index, g->name[g->node[convert].path]);
}

static struct ku_pushed pushed_of(const struct ku_graph *g, ku_id convert)
{
    const struct ku_attrs *a = &g->attr[g->node[convert].attr];
    const ku_id use = use_of(g, ku_in(g, &g->node[convert], 0));
    const enum kumi_dtype dtype = (enum kumi_dtype)g->value[ku_out(g, convert, 0)].dtype;
    return (struct ku_pushed){.is_pushed = true,
                              .reduce = (uint8_t)a->reduce,
                              .wire = (uint8_t)(a->wire >= 0 ? (int)a->wire : (int)dtype),
                              .tensor = use ? g->use[use].tensor : 0};
}

/* Forward and backward must not need the other data-parallel ranks. */
static int check(const struct ku_graph *g, const struct ku_compile_opts *o)
{
    const struct ku_mesh *m = &g->mesh;
    if (ku_mesh_tp(m) > 1 || m->extent[KU_AX_PP] > 1)
        return KU_ERR(KUMI_EINVAL,
                      "ps: a worker is one rank; set parallel.tp and parallel.pp to 1 "
                      "(tp %d, pp %d)",
                      ku_mesh_tp(m), m->extent[KU_AX_PP]);
    if (m->extent[KU_AX_SHARD] > 1 || m->extent[KU_AX_LOCAL] > 1 ||
        (o->zero > 0 && o->remote.update_by == KU_UPDATE_WORKER))
        return KU_ERR(KUMI_EINVAL,
                      "ps: a worker has no optimizer state to divide: set "
                      "parallel.zero to 0 (zero %d)",
                      o->zero);
    if (m->mb_outer)
        return KU_ERR(KUMI_EINVAL, "ps: parallel.grad_sync: micro: a worker pushes once a step; "
                                   "set it to step");
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *x = &g->node[n];
        if (x->op != KU_OP_convert || x->phase == KU_PH_O)
            continue;
        const int from = ku_layout_axes(&g->layout[g->value[ku_in(g, x, 0)].layout], KU_P),
                  to = ku_layout_axes(&g->layout[g->value[ku_out(g, n, 0)].layout], KU_P);
        if ((from & ~to) & KU_DP_AXES)
            return KU_ERR(
                KUMI_EINVAL,
                "ps: %s sums over data-parallel ranks in forward or backward, and workers "
                "exchange nothing; set batch norm's synchronisation to none",
                g->name[x->path]);
    }
    return KUMI_OK;
}

/* Worker: the convert accumulates over the time axes alone, and its result is an output. */
static int push(struct ku_graph *g, ku_id convert, const char *name)
{
    const ku_id from = ku_in(g, &g->node[convert], 0), to = ku_out(g, convert, 0);
    struct ku_attrs a = g->attr[g->node[convert].attr];
    struct ku_layout l = g->layout[g->value[from].layout];
    a.axes = TIME_AXES;
    for (int axis = KU_AX_FIRST_TIME; axis < KU_N_AXES; axis++)
        if (l.at[axis].kind == KU_P)
            l.at[axis].kind = KU_C;
    const ku_id attr = ku_graph_attr(g, &a), layout = ku_graph_layout(g, &l);
    if (attr == 0 || layout == 0)
        return KUMI_ENOMEM;
    const struct ku_pushed pushed = pushed_of(g, convert);
    KU_ASSERT(ku_layout_axes(&l, KU_P) >> KU_AX_FIRST_TIME == 0);
    g->node[convert].attr = attr;
    g->value[to].layout = layout;
    KU_TRY(ku_graph_output(g, name, to));
    g->output[g->n_outputs - 1].pushed = pushed;
    return KUMI_OK;
}

/* Everything of O but the cut converts, and all outputs, state writes and uses. */
static int drop_update(struct ku_graph *g)
{
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].phase == KU_PH_O && !is_cut(g, n))
            g->node[n].op = KU_OP_NONE;
    uint32_t n_outputs = 0;
    for (uint32_t i = 0; i < g->n_outputs; i++)
        if (g->output[i].pushed.is_pushed)
            g->output[n_outputs++] = g->output[i];
    g->n_outputs = n_outputs;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        g->tensor[t].next = g->tensor[t].value;
        g->tensor[t].trainable = 0;
    }
    return KUMI_OK;
}

static int cut_worker(struct ku_graph *g)
{
    char name[KU_NAME_BYTES];
    uint32_t index = 0;
    for (ku_id n = 1, n_nodes = g->n_nodes; n < n_nodes; n++) {
        if (!is_cut(g, n))
            continue;
        name_of(g, n, index++, name);
        KU_TRY(push(g, n, name));
    }
    return drop_update(g);
}

static void replace(struct ku_graph *g, ku_id from, ku_id to)
{
    KU_ASSERT(from > 0 && to > 0 && from != to);
    for (ku_id n = 1; n < g->n_nodes; n++)
        for (int i = 0; i < g->node[n].n_in; i++)
            if (ku_in(g, &g->node[n], i) == from)
                g->refs[g->node[n].in + (uint32_t)i] = to;
    for (uint32_t i = 0; i < g->n_outputs; i++)
        if (g->output[i].value == from)
            g->output[i].value = to;
}

/* Server: what the convert would complete is an input. */
static int receive(struct ku_graph *g, ku_id convert, const char *name)
{
    const ku_id from = ku_in(g, &g->node[convert], 0), to = ku_out(g, convert, 0);
    const ku_id use = use_of(g, from);
    const struct ku_pushed pushed = pushed_of(g, convert);
    const struct ku_shape shape = g->shape[g->value[to].shape];
    const ku_id in = ku_graph_input(g, name, (enum kumi_dtype)g->value[to].dtype, &shape);
    if (in == 0)
        return ku_err_get()->status;
    KU_ASSERT(g->value[in].shape == g->value[to].shape && g->value[in].role == KU_INPUT);
    g->input[g->n_inputs - 1].pushed = pushed;
    replace(g, to, in);
    if (use)
        g->use[use].grad = in;
    g->node[convert].op = KU_OP_NONE;
    return KUMI_OK;
}

/* Ports that no node reads: batches. */
static int drop_inputs(struct ku_graph *g)
{
    unsigned char *reads = ku_calloc(g->n_values, 1);
    uint32_t n_inputs = 0;
    if (reads == NULL)
        return KUMI_ENOMEM;
    for (ku_id n = 1; n < g->n_nodes; n++)
        for (int i = 0; g->node[n].op != KU_OP_NONE && i < g->node[n].n_in; i++)
            reads[ku_in(g, &g->node[n], i)] = 1;
    for (uint32_t i = 0; i < g->n_inputs; i++)
        if (reads[g->input[i].value] || g->input[i].pushed.is_pushed)
            g->input[n_inputs++] = g->input[i];
    g->n_inputs = n_inputs;
    ku_free(reads);
    return KUMI_OK;
}

/* Every node of forward and backward is dead; phase A alone may remain. */
static int cut_server(struct ku_graph *g, const struct ku_compile_opts *o)
{
    char name[KU_NAME_BYTES];
    uint32_t index = 0;
    for (ku_id n = 1, n_nodes = g->n_nodes; n < n_nodes; n++) {
        if (!is_cut(g, n))
            continue;
        name_of(g, n, index++, name);
        KU_TRY(receive(g, n, name));
    }
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].phase != KU_PH_O && g->node[n].phase != KU_PH_A)
            g->node[n].op = KU_OP_NONE;
    const int n_dropped = ku_graph_drop_dead(g);
    KU_TRY(n_dropped < 0 ? n_dropped : KUMI_OK);
    for (ku_id u = 1; u < g->n_uses; u++)
        g->tensor[g->use[u].tensor].first_use = 0;
    KU_TRY(drop_inputs(g));
    for (int a = 0; a < KU_N_AXES; a++)
        g->mesh.extent[a] = 1;
    KU_ASSERT(o->remote.n_servers > 0);
    g->mesh.extent[KU_AX_SHARD] = o->remote.n_servers;
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].op != KU_OP_NONE && g->node[n].op != KU_OP_convert)
            KU_TRY(ku_place_node(g, n));
    return KUMI_OK;
}

int ku_update_cut(struct ku_graph *g, const struct ku_compile_opts *o)
{
    if (o->remote.update_by == KU_UPDATE_HERE || !o->is_training)
        return KUMI_OK;
    KU_ASSERT(g->n_buckets == 0 && !(g->has & KU_HAS_ZERO));
    KU_TRY(check(g, o));
    return o->remote.update_by == KU_UPDATE_WORKER ? cut_worker(g) : cut_server(g, o);
}
