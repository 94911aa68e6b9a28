/* SPDX-License-Identifier: Apache-2.0 */
#include "ir/placement_rules.h"

#include <string.h>

#include "base/err.h"

static bool has_letter(const char *letters, char name)
{
    return strcmp(letters, "*") == 0 || strchr(letters, name) != NULL;
}

static int refuse(const struct ku_graph *g, const struct ku_node *n, int axis, int operand,
                  const char *why)
{
    return KU_ERR(KUMI_EINVAL, "placement: %s %s, axis %s, operand %d: %s", ku_ops[n->op].name,
                  g->name[n->path], ku_axis_name(axis), operand, why);
}

/* Placements of the operands on one axis. */
struct brought {
    char letter; /* name of the split dim, 0 = none */
    int n_split, n_partial, n_blocks, n_common;
    int blocks; /* index of an operand in canonical chunks */
};

static int look(const struct ku_graph *g, const struct ku_node *n, int axis, struct brought *b)
{
    for (int i = 0; i < n->n_in; i++) {
        const struct ku_value *v = &g->value[ku_in(g, n, i)];
        struct ku_place p = g->layout[v->layout].at[axis];
        switch ((enum ku_place_kind)p.kind) {
        case KU_C:
            b->n_common++;
            break;
        case KU_R:
            break;
        case KU_P:
            b->n_partial++;
            break;
        case KU_Z:
            b->n_blocks++;
            b->blocks = i;
            break;
        case KU_S: {
            KU_ASSERT(p.dim < g->shape[v->shape].ndim);
            char letter = g->shape[v->shape].dim[p.dim].name;
            if (b->letter && b->letter != letter)
                return refuse(g, n, axis, i, "two operands are split along different dims");
            b->letter = letter;
            b->n_split++;
            break;
        }
        }
    }
    return KUMI_OK;
}

/* Every operand that has the split dim must be split along it. */
static int check_split(const struct ku_graph *g, const struct ku_node *n, int axis, char letter)
{
    for (int i = 0; i < n->n_in; i++) {
        const struct ku_value *v = &g->value[ku_in(g, n, i)];
        struct ku_place p = g->layout[v->layout].at[axis];
        if (ku_shape_find(&g->shape[v->shape], letter) >= 0 && p.kind != KU_S)
            return refuse(g, n, axis, i,
                          "is whole along a dim along which another operand is split");
        if (p.kind == KU_P && (ku_ops[n->op].traits & KU_OP_MICRO))
            continue;
        if (p.kind == KU_P || p.kind == KU_Z)
            return refuse(g, n, axis, i,
                          "is a partial sum or in blocks, but another operand is split");
    }
    return KUMI_OK;
}

static int place_split(const struct ku_graph *g, ku_id id, int axis, const struct brought *b,
                       struct ku_layout *out)
{
    const struct ku_node *n = &g->node[id];
    const struct ku_op_info *info = &ku_ops[n->op];
    KU_TRY(check_split(g, n, axis, b->letter));
    for (int o = 0; o < n->n_out; o++) {
        int dim = ku_shape_find(&g->shape[g->value[ku_out(g, id, o)].shape], b->letter);
        if (!has_letter(dim >= 0 ? info->map : info->sum, b->letter))
            return refuse(g, n, axis, 0, "the op cannot be split along this dim");
        out[o].at[axis].kind = dim >= 0 ? KU_S : KU_P;
        out[o].at[axis].dim = (uint8_t)(dim >= 0 ? dim : 0);
    }
    return KUMI_OK;
}

static int place_axis(const struct ku_graph *g, ku_id id, int axis, struct ku_layout *out)
{
    const struct ku_node *n = &g->node[id];
    struct brought b = {0};
    KU_TRY(look(g, n, axis, &b));
    if (b.n_split)
        return place_split(g, id, axis, &b, out);
    enum ku_place_kind kind = b.n_common == n->n_in ? KU_C : KU_R;
    if (b.n_blocks) {
        if (!(ku_ops[n->op].traits & KU_OP_ELEMENT))
            return refuse(g, n, axis, 0, "only element-wise ops take blocks");
        kind = KU_Z;
    } else if (b.n_partial) {
        if (!(ku_ops[n->op].traits & (KU_OP_LINEAR | KU_OP_MICRO)))
            return refuse(g, n, axis, 0, "only linear ops take a partial sum");
        kind = KU_P;
    }
    for (int o = 0; o < n->n_out; o++) {
        out[o].at[axis].kind = (uint8_t)kind;
        out[o].at[axis].dim = 0;
        /* a result with another shape (sumsq) is the partial sum over the chunks */
        if (kind == KU_Z && strcmp(ku_ops[n->op].sum, "*") == 0 &&
            g->value[ku_out(g, id, o)].shape != g->value[ku_in(g, n, b.blocks)].shape)
            out[o].at[axis].kind = KU_P;
    }
    return KUMI_OK;
}

/* Whether all operands have the same placement on this axis as on the one before. */
static bool is_as_before(const struct ku_graph *g, const struct ku_node *n, int axis)
{
    for (int i = 0; i < n->n_in; i++) {
        const struct ku_place *at = g->layout[g->value[ku_in(g, n, i)].layout].at;
        if (at[axis].kind != at[axis - 1].kind || at[axis].dim != at[axis - 1].dim)
            return false;
    }
    return true;
}

int ku_place_infer(const struct ku_graph *g, ku_id node, struct ku_layout *out)
{
    const struct ku_node *n = &g->node[node];
    memset(out, 0, KU_MAX_OUT * sizeof *out);
    for (int axis = 0; axis < KU_N_AXES; axis++) {
        if (axis == 0 || !is_as_before(g, n, axis)) {
            KU_TRY(place_axis(g, node, axis, out));
            continue;
        }
        for (int o = 0; o < n->n_out; o++)
            out[o].at[axis] = out[o].at[axis - 1];
    }
    return KUMI_OK;
}

int ku_place_node(struct ku_graph *g, ku_id node)
{
    struct ku_layout out[KU_MAX_OUT];
    KU_TRY(ku_place_infer(g, node, out));
    for (int i = 0; i < g->node[node].n_out; i++) {
        ku_id layout = ku_graph_layout(g, &out[i]);
        if (layout == 0)
            return KUMI_ENOMEM;
        g->value[ku_out(g, node, i)].layout = layout;
    }
    return KUMI_OK;
}

ku_id ku_place_sync(struct ku_graph *g, ku_id value, int phase, const char *path, ku_id source)
{
    KU_ASSERT(value > 0 && value < g->n_values);
    struct ku_attrs a = ku_attrs_default;
    struct ku_layout l = g->layout[g->value[value].layout];
    for (int axis = 0; axis < KU_N_AXES; axis++)
        if (KU_DP_AXES >> axis & 1 && l.at[axis].kind == KU_P) {
            l.at[axis].kind = KU_R;
            a.axes |= INT64_C(1) << axis;
        }
    ku_id node = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                    .phase = phase,
                                                    .n_in = 1,
                                                    .in = {value},
                                                    .attr = &a,
                                                    .path = path,
                                                    .source = source});
    ku_id layout = ku_graph_layout(g, &l);
    if (node == 0 || layout == 0)
        return 0;
    g->value[ku_out(g, node, 0)].layout = layout;
    return ku_out(g, node, 0);
}
