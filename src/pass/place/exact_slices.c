/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parallel.tp_exact: every sum over a dim that axis tp may cut is computed in that many slices
 * (op/slices.h), whatever the number of ranks, so that no bit depends on it:
 *
 *     linear, linear_dx      attributes slices, slice_dim: of the weight's dim that tp cuts. The
 *                            gradient inherits them; a row-parallel layer has the dim in its
 *                            contraction, a column-parallel one in that of its dx
 *     layer_norm, rms_norm,  gradients of gains and whole biases: sums over tokens, which the ranks
 *     linear_db              divide with parallel.sp (ku_slices_of_tokens)
 *     softmax_xent           becomes xent_max, xent_sums in slices of the classes, xent_finish
 *     sums of squares        of a tensor that tp cuts: f64 inside chunks of one slice
 *
 * All else either has no sum over such a dim, adds zeros (the rows of an embedding) or is exact
 * (loss and norm). Placement then divides the slices among the ranks.
 */
#include "base/err.h"
#include "base/mem.h"
#include "op/slices.h"
#include "pass/pass.h"
#include "pass/place/tensor_parallel.h"

static int slice_linear(struct ku_graph *g, ku_id node, char letter, int parts)
{
    const struct ku_shape *w = &g->shape[g->value[ku_in(g, &g->node[node], 1)].shape];
    struct ku_attrs a = g->attr[g->node[node].attr];
    a.slices = parts;
    a.slice_dim = ku_shape_find(w, letter);
    g->node[node].attr = ku_graph_attr(g, &a);
    return g->node[node].attr ? KUMI_OK : KUMI_ENOMEM;
}

/* A norm whose gain gets a sum over tokens, which the ranks divide with parallel.sp. */
static int slice_norm(struct ku_graph *g, ku_id node, int parts)
{
    struct ku_attrs a = g->attr[g->node[node].attr];
    a.slices = parts;
    g->node[node].attr = ku_graph_attr(g, &a);
    return g->node[node].attr ? KUMI_OK : KUMI_ENOMEM;
}

/* The squares of a tensor add up within contiguous elements of one slice. */
static void set_chunk(struct ku_graph *g, ku_id t, char letter, int parts)
{
    const struct ku_shape *s = &g->shape[g->tensor[t].shape];
    const int d = ku_shape_find(s, letter);
    int64_t run = s->dim[d].count / parts;
    for (int i = d + 1; i < s->ndim; i++)
        run *= s->dim[i].count;
    g->tensor[t].chunk = (int32_t)ku_slices_chunk(run);
}

static ku_id part_of_loss(struct ku_graph *g, ku_id node, int op, const struct ku_attrs *a,
                          struct ku_make m)
{
    m.op = op;
    m.phase = KU_PH_F;
    m.attr = a;
    m.path = g->name[g->node[node].path];
    m.source = g->node[node].source;
    m.is_silent = 1;
    return ku_graph_node(g, &m);
}

/* The loss in three parts. renamed: its results, per value. */
static int slice_loss(struct ku_graph *g, ku_id node, int parts, ku_id *renamed)
{
    const struct ku_node n = g->node[node];
    const ku_id x = ku_in(g, &n, 0), targets = ku_in(g, &n, 1);
    const struct ku_shape *s = &g->shape[g->value[x].shape];
    struct ku_attrs a = g->attr[n.attr], in_slices;
    a.rows_seen = s->dim[s->ndim - 1].seen;
    in_slices = a;
    in_slices.slices = parts;
    const ku_id max =
        part_of_loss(g, node, KU_OP_xent_max, &a, (struct ku_make){.n_in = 1, .in = {x}});
    if (max == 0)
        return ku_err_get()->status;
    const ku_id sums =
        part_of_loss(g, node, KU_OP_xent_sums, &in_slices,
                     (struct ku_make){.n_in = 3, .in = {x, ku_out(g, max, 0), targets}});
    if (sums == 0)
        return ku_err_get()->status;
    const ku_id end = part_of_loss(
        g, node, KU_OP_xent_finish, &a,
        (struct ku_make){.n_in = 4, .in = {x, ku_out(g, max, 0), ku_out(g, sums, 0), targets}});
    for (int i = 0; i < n.n_out && end; i++)
        renamed[ku_out(g, node, i)] = ku_out(g, end, i);
    g->node[node].op = KU_OP_NONE;
    return end ? KUMI_OK : ku_err_get()->status;
}

static int slice_nodes(struct ku_graph *g, const struct ku_tensor_plan *p, int parts,
                       ku_id *renamed)
{
    const ku_id n_nodes = g->n_nodes, n_values = g->n_values;
    for (ku_id n = 1; n < n_nodes; n++) {
        const struct ku_node node = g->node[n]; /* nodes that are added may move the others */
        for (int i = 0; i < node.n_in; i++) {
            const ku_id v = ku_in(g, &node, i);
            if (v < n_values && renamed[v])
                g->refs[node.in + (uint32_t)i] = renamed[v];
        }
        if (node.op == KU_OP_softmax_xent && ku_tensor_split_of(p, ku_in(g, &node, 0)) == 'v')
            KU_TRY(slice_loss(g, n, parts, renamed));
        if (node.op == KU_OP_layer_norm || node.op == KU_OP_rms_norm)
            KU_TRY(slice_norm(g, n, parts));
        const struct ku_value *w =
            node.op == KU_OP_linear ? &g->value[ku_in(g, &node, 1)] : &g->value[0];
        ku_id t = w->role == KU_STATE ? w->tensor : 0;
        if (t && g->tensor[t].kind == KU_T_DERIVED)
            t = g->tensor[t].of;
        if (t && ku_tensor_letter(p, t))
            KU_TRY(slice_linear(g, n, ku_tensor_letter(p, t), parts));
    }
    for (uint32_t i = 0; i < g->n_outputs; i++)
        if (g->output[i].value < n_values && renamed[g->output[i].value])
            g->output[i].value = renamed[g->output[i].value];
    return ku_graph_sort(g);
}

int ku_pass_slices(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t)
{
    struct ku_tensor_plan *p;
    (void)t;
    if (o->tp_exact == 0)
        return KUMI_OK;
    const int tp = ku_mesh_tp(&o->mesh), each = o->tp_exact / tp;
    KU_ASSERT(o->tp_exact % tp == 0 && (tp == 1 || (each & (each - 1)) == 0));
    KU_TRY(ku_tensor_plan_choose(g, o, &p));
    ku_id *renamed = ku_calloc(g->n_values, sizeof *renamed);
    for (ku_id x = 1; x < g->n_tensors; x++)
        if (g->tensor[x].kind == KU_T_PARAM && ku_tensor_letter(p, x))
            set_chunk(g, x, ku_tensor_letter(p, x), o->tp_exact);
    const int status = renamed ? slice_nodes(g, p, o->tp_exact, renamed) : KUMI_ENOMEM;
    ku_free(renamed);
    ku_tensor_plan_destroy(p);
    return status;
}
