/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The placement rule of every op but convert (ir/convert_rules.c), exact on each mesh axis: what is
 * accepted has the right value on every rank and the right gradient, at any extent. A node is in
 * one of four cases on an axis:
 *
 *     split     an operand is S(d): `map` and `sum` of the op decide
 *     blocks    an operand is Z: element-wise ops of phase O
 *     partial   an operand is P: the op is linear in it (its first, or with KU_OP_DY its last)
 *     whole     C and R alone: C if all are C, else R
 *
 * C beside R, P or S(d) would give a wrong gradient: the adjoint that comes back is a partial sum,
 * that of a C value counts as complete. Constants, which depend on no parameter and have no
 * adjoint, may be C beside anything; so may every operand of phase O, which follows backward, and
 * of ops through which no adjoint passes (KU_OP_NO_ADJOINT).
 */
#include "ir/placement_rules.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "tensor/dtype.h"

/* A node on one axis. */
struct view {
    const struct ku_graph *g;
    ku_id id;
    const struct ku_node *n;
    const struct ku_op_info *op;
    int axis;
    struct ku_place at[KU_MAX_IN]; /* of the operands */
    int count[KU_Z + 1];           /* operands per kind */
    char letter;                   /* name of the split dim, 0 = none */
    int blocks;                    /* an operand in canonical chunks */
};

static bool has_letter(const char *letters, char name)
{
    return strcmp(letters, "*") == 0 || strchr(letters, name) != NULL;
}

static const struct ku_shape *shape_of(const struct ku_graph *g, ku_id value)
{
    return &g->shape[g->value[value].shape];
}

static int refuse(const struct view *v, const char *rule)
{
    char text[16 * KU_MAX_IN] = "";
    size_t at = 0;
    for (int i = 0; i < v->n->n_in; i++) {
        struct ku_place p = v->at[i];
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%c", i ? ", " : "", "CRPSZ"[p.kind]);
        if (p.kind == KU_S)
            at += (size_t)snprintf(text + at, sizeof text - at, "(%c)",
                                   shape_of(v->g, ku_in(v->g, v->n, i))->dim[p.dim].name);
    }
    return KU_ERR(KUMI_EINVAL, "placement: %s %s, axis %s, operands (%s): %s", v->op->name,
                  v->g->name[v->n->path], ku_axis_name(v->axis), text, rule);
}

/* Whether a value depends on no parameter. Paths longer than `depth` count as dependent. */
static bool is_constant(const struct ku_graph *g, ku_id value, int depth)
{
    const struct ku_value *v = &g->value[value];
    if (v->role == KU_INPUT)
        return true;
    if (v->role == KU_STATE)
        return g->tensor[v->tensor].kind != KU_T_PARAM && g->tensor[v->tensor].kind != KU_T_DERIVED;
    const struct ku_node *n = &g->node[v->def];
    for (int i = 0; i < n->n_in; i++)
        if (depth == 0 || !is_constant(g, ku_in(g, n, i), depth - 1))
            return false;
    return true;
}

bool ku_place_is_max(const struct ku_graph *g, ku_id value)
{
    return (ku_ops[g->node[g->value[value].def].op].traits & KU_OP_MAX) != 0;
}

/* Whether operand i collects sums in place: its result starts from it. */
static bool is_accumulator(const struct view *v, int i)
{
    for (int o = 0; o < v->n->n_out; o++)
        if (ku_op_pair(v->op->inout, o) == i)
            return true;
    return false;
}

/* Whether P of operand i is statistics of the micro-batch, which the op reads as they are. */
static bool is_statistics(const struct view *v, int i)
{
    const int axes = KU_DP_AXES | 1 << KU_AX_VS | 1 << KU_AX_MB;
    return (v->op->traits & KU_OP_MICRO) && (axes >> v->axis & 1) &&
           ku_shape_find(shape_of(v->g, ku_in(v->g, v->n, i)), 'n') < 0;
}

static int look(struct view *v)
{
    for (int i = 0; i < v->n->n_in; i++) {
        ku_id value = ku_in(v->g, v->n, i);
        v->at[i] = v->g->layout[v->g->value[value].layout].at[v->axis];
        KU_ASSERT(v->at[i].kind <= KU_Z);
        v->count[v->at[i].kind]++;
    }
    for (int i = 0; i < v->n->n_in; i++) {
        const struct ku_shape *s = shape_of(v->g, ku_in(v->g, v->n, i));
        if (v->at[i].kind == KU_Z)
            v->blocks = i;
        if (v->at[i].kind == KU_P && ku_place_is_max(v->g, ku_in(v->g, v->n, i)))
            return refuse(v, "a maximum per rank is read before a convert completes it");
        if (v->at[i].kind != KU_S)
            continue;
        KU_ASSERT(v->at[i].dim < s->ndim);
        if (v->letter && v->letter != s->dim[v->at[i].dim].name)
            return refuse(v, "two operands are split along different dims");
        v->letter = s->dim[v->at[i].dim].name;
    }
    return KUMI_OK;
}

static int check_common(const struct view *v)
{
    if (v->n->phase == KU_PH_O || v->count[KU_C] == 0 || v->count[KU_C] == v->n->n_in ||
        (v->op->traits & KU_OP_NO_ADJOINT))
        return KUMI_OK;
    for (int i = 0; i < v->n->n_in; i++)
        if (v->at[i].kind == KU_C && !is_constant(v->g, ku_in(v->g, v->n, i), 8))
            return refuse(v, "an operand is C beside R, P or S: its gradient would be partial; "
                             "convert it to R");
    return KUMI_OK;
}

/* A result that is a partial sum: nothing in it may be counted once per rank. */
static int check_sum(const struct view *v, int out)
{
    const struct ku_value *y = &v->g->value[ku_out(v->g, v->id, out)];
    const int pair = ku_op_pair(v->op->inout, out);
    if ((v->op->traits & KU_OP_PRODUCT) && v->n->n_in > 2)
        return refuse(v, "the bias would be added once per rank; add it after the sum");
    if (v->g->attr[v->n->attr].act != KU_ACT_NONE && (v->op->traits & KU_OP_LINEAR))
        return refuse(v, "the activation of a partial sum is not a part of the activation");
    if ((v->op->traits & KU_OP_LINEAR) && v->letter && v->g->attr[v->n->attr].dtype < 0 &&
        kumi_dtype_bytes((enum kumi_dtype)y->dtype) < kumi_dtype_bytes(KUMI_F32))
        return refuse(v, "a partial product is f32: it is rounded after the sum, or to attr dtype");
    if (pair < 0 || v->at[pair].kind == KU_P)
        return KUMI_OK;
    const struct ku_value *x = &v->g->value[ku_in(v->g, v->n, pair)];
    if (x->role != KU_TEMP || v->g->node[x->def].op != KU_OP_stats_zero)
        return refuse(v, "sums start from a value that would be counted once per rank");
    return KUMI_OK;
}

/* Every operand that has the split dim must be split along it. */
static int check_split(const struct view *v)
{
    for (int i = 0; i < v->n->n_in; i++) {
        const struct ku_shape *s = shape_of(v->g, ku_in(v->g, v->n, i));
        if (ku_shape_find(s, v->letter) >= 0 && v->at[i].kind != KU_S)
            return refuse(v, "an operand is whole along a dim along which another is split");
        if (v->at[i].kind == KU_Z)
            return refuse(v, "blocks beside a split");
        if (v->at[i].kind == KU_P && !is_statistics(v, i) && !is_accumulator(v, i))
            return refuse(v, "a partial sum beside a split");
    }
    return KUMI_OK;
}

static int place_split(const struct view *v, struct ku_layout *out)
{
    KU_TRY(check_split(v));
    for (int o = 0; o < v->n->n_out; o++) {
        const struct ku_shape *s = shape_of(v->g, ku_out(v->g, v->id, o));
        int dim = ku_shape_find(s, v->letter), pair = ku_op_pair(v->op->inout, o);
        if (!has_letter(dim >= 0 ? v->op->map : v->op->sum, v->letter))
            return refuse(v, "the op cannot be split along this dim");
        if (dim >= 0 && pair >= 0 && v->at[pair].kind == KU_P)
            return refuse(v, "a partial sum beside a split");
        if (dim < 0)
            KU_TRY(check_sum(v, o));
        out[o].at[v->axis].kind = dim >= 0 ? KU_S : KU_P;
        out[o].at[v->axis].dim = (uint8_t)(dim >= 0 ? dim : 0);
    }
    return KUMI_OK;
}

/* A result of another shape than the operand in chunks is the partial sum over the chunks. */
static int place_blocks(const struct view *v, struct ku_layout *out)
{
    const ku_id shape = v->g->value[ku_in(v->g, v->n, v->blocks)].shape;
    if (!(v->op->traits & KU_OP_ELEMENT))
        return refuse(v, "only element-wise ops take blocks");
    for (int i = 0; i < v->n->n_in; i++) {
        if (v->at[i].kind == KU_P && !is_accumulator(v, i))
            return refuse(v, "a partial sum beside blocks");
        if (v->at[i].kind == KU_Z && (v->at[i].dim != v->at[v->blocks].dim ||
                                      v->g->value[ku_in(v->g, v->n, i)].shape != shape))
            return refuse(v, "two operands are in different blocks");
    }
    for (int o = 0; o < v->n->n_out; o++) {
        int pair = ku_op_pair(v->op->inout, o);
        if (v->g->value[ku_out(v->g, v->id, o)].shape != shape) {
            if (strcmp(v->op->sum, "*") != 0)
                return refuse(v, "a result has another shape than the blocks");
            KU_TRY(check_sum(v, o));
            out[o].at[v->axis].kind = KU_P;
            continue;
        }
        if (pair >= 0 && v->at[pair].kind == KU_P)
            return refuse(v, "a partial sum beside blocks");
        out[o].at[v->axis].kind = KU_Z;
    }
    return KUMI_OK;
}

static int place_partial(const struct view *v, struct ku_layout *out)
{
    const bool adds = (v->op->traits & KU_OP_ADDS) != 0;
    if (v->op->traits & KU_OP_MICRO) {
        for (int i = 0; i < v->n->n_in; i++)
            if (v->at[i].kind == KU_P ? !is_statistics(v, i)
                                      : !is_constant(v->g, ku_in(v->g, v->n, i), 8))
                return refuse(v, "the op reads only statistics of a micro-batch as partial sums");
    } else if (v->op->traits & KU_OP_DY) {
        if (v->count[KU_P] > 1 || v->at[v->n->n_in - 1].kind != KU_P)
            return refuse(v, "the op is linear in its last operand only");
    } else if (!(v->op->traits & KU_OP_LINEAR)) {
        return refuse(v, "only linear ops take a partial sum");
    } else if (adds && v->count[KU_P] != v->n->n_in) {
        return refuse(v, "a partial sum is added to partial sums only: anything else would be "
                         "counted once per rank");
    } else if (!adds && (v->count[KU_P] > 1 || v->at[0].kind != KU_P)) {
        return refuse(v, "the op is linear in its first operand only");
    }
    for (int o = 0; o < v->n->n_out; o++) {
        KU_TRY(check_sum(v, o));
        out[o].at[v->axis].kind = KU_P;
    }
    return KUMI_OK;
}

/*
 * embedding_dw, on the axes on which the rows of its result are split (attr axes): no operand has
 * that dim. dy is the adjoint of a partial sum, so it is replicated.
 */
static int place_rows(const struct view *v, struct ku_layout *out)
{
    if (v->at[1].kind != KU_R || (v->at[0].kind != KU_R && v->at[0].kind != KU_C))
        return refuse(v, "rows are split of a replicated adjoint only");
    out[0].at[v->axis] = (struct ku_place){.kind = KU_S, .dim = 0};
    return KUMI_OK;
}

/*
 * xent_finish, on the axes on which the classes of the logits are split: the sums are complete, so
 * the results are, and the logits only stand for their gradient.
 */
static bool finishes_classes(const struct view *v)
{
    const struct ku_shape *s = shape_of(v->g, ku_in(v->g, v->n, 0));
    return v->n->op == KU_OP_xent_finish && v->at[0].kind == KU_S && v->at[0].dim == s->ndim - 1;
}
static int place_classes(const struct view *v, struct ku_layout *out)
{
    if (v->count[KU_C] != v->n->n_in - 1)
        return refuse(v, "maximum and sums are complete");
    for (int o = 0; o < v->n->n_out; o++)
        out[o].at[v->axis].kind = KU_C;
    return KUMI_OK;
}

static bool splits_rows(const struct ku_graph *g, const struct ku_node *n)
{
    return n->op == KU_OP_embedding_dw && g->attr[n->attr].axes != 0;
}

static int place_axis(const struct ku_graph *g, ku_id id, int axis, struct ku_layout *out)
{
    const struct ku_node *n = &g->node[id];
    struct view v = {.g = g, .id = id, .n = n, .op = &ku_ops[n->op], .axis = axis};
    KU_TRY(look(&v));
    if (splits_rows(g, n) && (g->attr[n->attr].axes >> axis & 1))
        return place_rows(&v, out);
    if (finishes_classes(&v))
        return place_classes(&v, out);
    KU_TRY(check_common(&v));
    if (v.letter)
        return place_split(&v, out);
    if (v.count[KU_Z])
        return place_blocks(&v, out);
    if (v.count[KU_P])
        return place_partial(&v, out);
    for (int o = 0; o < n->n_out; o++)
        out[o].at[axis].kind = (uint8_t)(v.count[KU_R] ? KU_R : KU_C);
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
    /* the rule of these depends on the axis itself */
    const bool is_own = splits_rows(g, n) || (ku_ops[n->op].traits & KU_OP_MICRO);
    memset(out, 0, KU_MAX_OUT * sizeof *out);
    for (int axis = 0; axis < KU_N_AXES; axis++) {
        if (axis == 0 || is_own || !is_as_before(g, n, axis)) {
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

int ku_place_complete(struct ku_graph *g, ku_id node)
{
    KU_ASSERT(g->node[node].op == KU_OP_convert);
    struct ku_layout l = g->layout[g->value[ku_in(g, &g->node[node], 0)].layout];
    const int64_t axes = g->attr[g->node[node].attr].axes;
    for (int axis = 0; axis < KU_N_AXES; axis++)
        if (l.at[axis].kind == KU_P && (axes == 0 || axes >> axis & 1))
            l.at[axis].kind = KU_C;
    ku_id layout = ku_graph_layout(g, &l);
    if (layout == 0)
        return KUMI_ENOMEM;
    g->value[ku_out(g, node, 0)].layout = layout;
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
