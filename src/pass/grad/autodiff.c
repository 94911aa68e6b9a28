/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reverse-mode differentiation of the loss. Walks the forward nodes backwards; a node whose result
 * has an adjoint emits its op's gradient template, except for operands that need no gradient. A
 * template (op/op.h) is a list of statements:
 *
 *     g0=linear_dx(d0,i1); g1=linear_dw(i0,d0)    g gradient of an operand, d adjoint of a result,
 *     g0=d0                                       i operand, o result, t result of the previous
 *                                                 statement; i1+ means operands 1 and up
 *
 * The adjoint of a value with several readers is summed in reverse use order. A parameter's
 * gradient stays per use, partial on every axis where the use is replicated; only the update pass
 * reduces it.
 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "ir/placement_rules.h"
#include "pass/update.h"

struct diff {
    struct ku_graph *g;
    enum kumi_dtype grads; /* dtype of parameter gradients */
    bool is_tp_narrow;     /* sums over axis tp of parts of a product are bf16 */
    bool is_tp_exact;      /* parts over axis tp of a sum in slices are added up at once */
    ku_id n_values;        /* of the forward graph */
    ku_id *adjoint;        /* per forward value */
    ku_id last;            /* the node of the template's previous statement */
    ku_id rounded[2];      /* the last adjoint that was rounded, and the result */
    ku_id *first_use;      /* per forward node: index of its first use, 0 = none */
    ku_id *next_use;       /* per use: the next use of the same node */
    unsigned char *wanted; /* depends on a trainable parameter */
    unsigned char *data;   /* depends on an input port: its gradient is I, else W */
};

/* The parameter of a state value, which may be its compute copy; 0: no state. */
static ku_id parameter_of(const struct ku_graph *g, ku_id value)
{
    if (g->value[value].role != KU_STATE)
        return 0;
    ku_id t = g->value[value].tensor;
    return g->tensor[t].kind == KU_T_DERIVED ? g->tensor[t].of : t;
}

static int analyse(struct diff *d, const struct ku_compile_opts *o)
{
    struct ku_graph *g = d->g;
    for (ku_id u = g->n_uses - 1; u > 0; u--) {
        d->next_use[u] = d->first_use[g->use[u].node];
        d->first_use[g->use[u].node] = u;
    }
    for (ku_id t = 1; t < g->n_tensors; t++) {
        struct ku_tensor *x = &g->tensor[t];
        if (x->kind == KU_T_PARAM && ku_is_frozen(o, x->name))
            x->trainable = 0;
        if (x->kind == KU_T_PARAM && !x->used)
            KU_LOG(PASS, WARN, "parameter %s is not used: it gets no gradient and no update",
                   x->name);
    }
    for (ku_id v = 1; v < g->n_values; v++) {
        ku_id p = parameter_of(g, v);
        d->wanted[v] = p && g->tensor[p].trainable;
        d->data[v] = g->value[v].role == KU_INPUT;
    }
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        unsigned char wanted = 0, data = 0;
        for (int i = 0; i < node->n_in; i++) {
            wanted |= d->wanted[ku_in(g, node, i)];
            data |= d->data[ku_in(g, node, i)];
        }
        for (int i = 0; i < node->n_out; i++) {
            d->wanted[ku_out(g, n, i)] = wanted;
            d->data[ku_out(g, n, i)] = data;
        }
    }
    return KUMI_OK;
}

/* One statement of a template: targets g<k>.. and either an adjoint (op KU_OP_NONE) or an op with
 * operands. */
struct statement {
    int target[KU_MAX_OUT], n_targets, op, n_in;
    char kind[KU_MAX_IN]; /* 'i', 'o', 'd', 't' */
    int index[KU_MAX_IN];
};

/* Parses one statement. n_in: of the node that is differentiated. Returns the rest, NULL at the
 * end.
 */
static const char *parse_statement(const char *p, int n_in, struct statement *s)
{
    memset(s, 0, sizeof *s);
    while (*p == ' ' || *p == ';')
        p++;
    if (*p == '\0')
        return NULL;
    for (; *p == 'g' || *p == ','; p++)
        if (*p == 'g')
            s->target[s->n_targets++] = *++p - '0';
    KU_ASSERT(*p == '=');
    p++;
    char op[32];
    size_t bytes = strcspn(p, "(;");
    KU_ASSERT(bytes < sizeof op);
    memcpy(op, p, bytes);
    op[bytes] = '\0';
    p += bytes;
    if (*p != '(') { /* "g0=d0" */
        s->kind[0] = op[0];
        s->index[0] = op[1] - '0';
        return p;
    }
    s->op = ku_op_find(op);
    KU_ASSERT(s->op != KU_OP_NONE);
    for (p++; *p != ')'; p++) {
        if (*p == ',')
            continue;
        const int first = p[1] - '0', has_rest = p[2] == '+';
        for (int i = first; has_rest ? i < n_in : i == first; i++) {
            s->kind[s->n_in] = *p;
            s->index[s->n_in++] = i;
        }
        p += has_rest ? 2 : 1;
    }
    return p + 1;
}

/* An op of one adjoint of a node, in that adjoint's phase. 0 on failure. */
static ku_id unary(struct diff *d, ku_id node, int op, ku_id value, const struct ku_attrs *a)
{
    struct ku_graph *g = d->g;
    const ku_id made =
        ku_graph_node(g, &(struct ku_make){.op = op,
                                           .phase = g->node[g->value[value].def].phase,
                                           .n_in = 1,
                                           .in = {value},
                                           .attr = a,
                                           .path = g->name[g->node[node].path],
                                           .stage = g->node[node].stage,
                                           .source = g->node[node].source});
    return made && ku_place_node(g, made) == KUMI_OK ? ku_out(g, made, 0) : 0;
}

/* `value`, an adjoint, cast to a dtype; 0 on failure. */
static ku_id cast_to(struct diff *d, ku_id node, ku_id value, enum kumi_dtype dtype)
{
    struct ku_graph *g = d->g;
    struct ku_attrs a = ku_attrs_default;
    if (g->value[value].dtype == dtype)
        return value;
    a.dtype = dtype;
    return unary(d, node, KU_OP_cast, value, &a);
}

/* An adjoint has the dual placement of its value: what it lacks would never be summed. */
static int check_dual(const struct ku_graph *g, ku_id node, ku_id value, ku_id adjoint)
{
    const struct ku_layout *l = &g->layout[g->value[value].layout],
                           *have = &g->layout[g->value[adjoint].layout];
    char one[128], two[128];
    struct ku_layout want = *l;
    for (int axis = 0; axis < KU_N_AXES; axis++)
        want.at[axis] = ku_place_dual(l->at[axis]);
    if (ku_layout_is_equal(&want, have))
        return KUMI_OK;
    return KU_ERR(
        KUMI_EBUG,
        "autodiff: %s %s: the gradient of an operand placed %s is placed %s, which is not "
        "its dual",
        ku_ops[g->node[node].op].name, g->name[g->node[node].path],
        ku_layout_print(l, &g->shape[g->value[value].shape], one, sizeof one),
        ku_layout_print(have, &g->shape[g->value[adjoint].shape], two, sizeof two));
}

/* A copy of an adjoint of a node: times 1. 0 on failure. */
static ku_id copy_of(struct diff *d, ku_id node, ku_id value)
{
    struct ku_attrs a = ku_attrs_default;
    a.value = 1;
    return unary(d, node, KU_OP_scale, value, &a);
}

/*
 * A gradient whose slices the ranks of axis tp have (op/slices.h), whole: the upper levels of its
 * tree, before micro-batches add up. `scale` is the value that they add up. 0 on failure.
 */
static ku_id join_slices(struct diff *d, ku_id node, ku_id part)
{
    struct ku_graph *g = d->g;
    struct ku_attrs a = ku_attrs_default;
    struct ku_layout l = g->layout[g->value[part].layout];
    struct ku_make m = {.op = KU_OP_convert,
                        .phase = g->node[g->value[part].def].phase,
                        .n_in = 1,
                        .in = {part},
                        .attr = &a,
                        .path = g->name[g->node[node].path],
                        .stage = g->node[node].stage,
                        .source = g->node[node].source};
    a.axes = 1 << KU_AX_TP;
    l.at[KU_AX_TP].kind = KU_C;
    const ku_id layout = ku_graph_layout(g, &l), sum = ku_graph_node(g, &m);
    if (layout == 0 || sum == 0)
        return 0;
    g->value[ku_out(g, sum, 0)].layout = layout;
    return copy_of(d, node, ku_out(g, sum, 0));
}

/* Adds to the adjoint of an operand; if the operand is a parameter, stores it as the gradient of
 * the use. */
static int contribute(struct diff *d, ku_id node, int operand, ku_id adjoint)
{
    struct ku_graph *g = d->g;
    ku_id v = ku_in(g, &g->node[node], operand);
    KU_TRY(check_dual(g, node, v, adjoint));
    if (parameter_of(g, v)) {
        if (d->is_tp_exact && g->attr[g->node[node].attr].slices &&
            g->layout[g->value[adjoint].layout].at[KU_AX_TP].kind == KU_P)
            adjoint = join_slices(d, node, adjoint);
        adjoint = adjoint ? cast_to(d, node, adjoint, d->grads) : 0; /* of parameter gradients */
        if (adjoint == 0)
            return ku_err_get()->status;
        for (ku_id u = d->first_use[node]; u; u = d->next_use[u])
            if (g->use[u].operand == operand)
                g->use[u].grad = adjoint;
        return KUMI_OK;
    }
    if (d->adjoint[v] == 0) {
        d->adjoint[v] = adjoint;
        return KUMI_OK;
    }
    const enum kumi_dtype one = (enum kumi_dtype)g->value[d->adjoint[v]].dtype,
                          two = (enum kumi_dtype)g->value[adjoint].dtype,
                          wide = kumi_dtype_bytes(one) < kumi_dtype_bytes(two) ? two : one;
    const ku_id first = cast_to(d, node, d->adjoint[v], wide),
                second = cast_to(d, node, adjoint, wide);
    if (first == 0 || second == 0)
        return ku_err_get()->status;
    ku_id sum = ku_graph_node(g, &(struct ku_make){.op = KU_OP_add,
                                                   .phase = d->data[v] ? KU_PH_I : KU_PH_W,
                                                   .n_in = 2,
                                                   .in = {first, second},
                                                   .path = g->name[g->node[node].path],
                                                   .stage = g->node[node].stage,
                                                   .source = g->node[node].source});
    if (sum == 0)
        return ku_err_get()->status;
    d->adjoint[v] = ku_out(g, sum, 0);
    return ku_place_node(g, sum);
}

/*
 * An adjoint that passes through a node. A parameter's gradient is a copy of it: micro-batches add
 * up in the gradient, and other nodes, or another use, read the adjoint of each.
 */
static int pass_on(struct diff *d, ku_id node, int operand, ku_id adjoint)
{
    if (parameter_of(d->g, ku_in(d->g, &d->g->node[node], operand)))
        adjoint = copy_of(d, node, adjoint);
    return adjoint ? contribute(d, node, operand, adjoint) : ku_err_get()->status;
}

static ku_id operand_of(const struct diff *d, ku_id node, char kind, int index)
{
    const struct ku_graph *g = d->g;
    switch (kind) {
    case 'i':
        return ku_in(g, &g->node[node], index);
    case 'o':
        return ku_out(g, node, index);
    case 't':
        return ku_out(g, d->last, index);
    default:
        return d->adjoint[ku_out(g, node, index)];
    }
}

/* Sets *is_wanted if a statement's results are needed and *is_data if one of them depends on input
 * data: looks at its targets, and at those of the next statement if that reads its results. */
static void look_at(const struct diff *d, ku_id node, const struct statement *s,
                    const struct statement *next, int *is_wanted, int *is_data)
{
    const struct ku_graph *g = d->g;
    for (int i = 0; i < s->n_targets; i++) {
        if (s->target[i] >= g->node[node].n_in)
            continue; /* an absent optional operand (bias) */
        ku_id v = ku_in(g, &g->node[node], s->target[i]);
        *is_wanted |= d->wanted[v];
        *is_data |= d->data[v];
    }
    if (next && memchr(next->kind, 't', (size_t)next->n_in))
        look_at(d, node, next, NULL, is_wanted, is_data);
}

/* Whether a statement makes only parameter gradients, by an op that can accumulate: such an op
 * writes the gradient dtype itself. */
static bool is_gradient(const struct diff *d, ku_id node, const struct statement *s)
{
    const struct ku_graph *g = d->g;
    for (int i = 0; i < s->n_targets; i++)
        if (s->target[i] < g->node[node].n_in &&
            !parameter_of(g, ku_in(g, &g->node[node], s->target[i])))
            return 0;
    return (ku_ops[s->op].traits & KU_OP_ACCUM) && ku_ops[s->op].max_out == s->n_targets;
}

/* Synchronised batch norm: reduces the batch's sums over all data-parallel ranks. */
static int sync_operands(struct diff *d, const struct statement *s, struct ku_make *m)
{
    for (int i = 0; i < s->n_in; i++)
        if (s->kind[i] == 't' && m->attr->sync) {
            m->in[i] = ku_place_sync(d->g, m->in[i], m->phase, m->path, m->source);
            if (m->in[i] == 0)
                return ku_err_get()->status;
            d->g->node[d->g->value[m->in[i]].def].stage = (int16_t)m->stage;
        }
    return KUMI_OK;
}

/* The axes on which the rows of an embedding table are split. */
static int64_t axes_of_rows(const struct ku_graph *g, ku_id table)
{
    const struct ku_layout *l = &g->layout[g->value[table].layout];
    int64_t axes = 0;
    for (int axis = 0; axis < KU_N_AXES; axis++)
        if (l->at[axis].kind == KU_S && l->at[axis].dim == 0)
            axes |= INT64_C(1) << axis;
    return axes;
}

/* Whether a weight is split along a dim that its operand x lacks: dx is a partial sum then. */
static bool is_split_over_results(const struct ku_graph *g, ku_id x, ku_id weight)
{
    const struct ku_shape *s = &g->shape[g->value[weight].shape];
    const struct ku_layout *l = &g->layout[g->value[weight].layout];
    for (int axis = 0; axis < KU_N_AXES; axis++)
        if (l->at[axis].kind == KU_S &&
            ku_shape_find(&g->shape[g->value[x].shape], s->dim[l->at[axis].dim].name) < 0)
            return true;
    return false;
}

/*
 * Attribute dtype of a node of a gradient; -1: its operands decide. The adjoint of a sum of
 * products has the dtype of what the sum was rounded to, so dx names its own: that of x, or f32
 * for a partial sum.
 */
static int64_t result_dtype(const struct ku_graph *g, ku_id node, const struct statement *s)
{
    const struct ku_node *n = &g->node[node];
    const enum kumi_dtype x = (enum kumi_dtype)g->value[n->n_in ? ku_in(g, n, 0) : 0].dtype;
    if (s->op == KU_OP_cast)
        return x;
    if (s->op != KU_OP_linear_dx || kumi_dtype_bytes(x) >= kumi_dtype_bytes(KUMI_F32))
        return -1;
    return is_split_over_results(g, ku_in(g, n, 0), ku_in(g, n, 1)) ? KUMI_F32 : -1;
}

/* Whether a statement reads an adjoint that is wider than its value and than a value beside it. */
static bool is_too_wide(const struct ku_graph *g, ku_id node, const struct statement *s,
                        ku_id adjoint, ku_id value)
{
    const size_t bytes = kumi_dtype_bytes((enum kumi_dtype)g->value[adjoint].dtype);
    bool is_beside = false;
    for (int i = 0; i < s->n_in; i++) {
        const ku_id v = s->kind[i] == 'i' ? ku_in(g, &g->node[node], s->index[i]) : 0;
        const enum kumi_dtype dtype = (enum kumi_dtype)g->value[v].dtype;
        is_beside |= v && ku_dtype_is_float(dtype) && kumi_dtype_bytes(dtype) < bytes;
    }
    return is_beside && kumi_dtype_bytes((enum kumi_dtype)g->value[value].dtype) < bytes;
}

/*
 * Rounds the adjoints that a statement reads to the dtype of their values where it reads narrow
 * values, too. The gradient of a weight that is computed from parameters is wider than the weight,
 * and stays so in sums and casts.
 */
static int round_adjoints(struct diff *d, ku_id node, const struct statement *s, ku_id *in)
{
    struct ku_graph *g = d->g;
    KU_ASSERT(s->op != KU_OP_NONE); /* an adjoint that passes through stays as it is */
    for (int i = 0; i < s->n_in; i++) {
        const ku_id value = s->kind[i] == 'd' ? ku_out(g, node, s->index[i]) : 0;
        if (value == 0 || in[i] == 0 || !is_too_wide(g, node, s, in[i], value))
            continue;
        if (d->rounded[0] != in[i]) {
            d->rounded[0] = in[i];
            d->rounded[1] = cast_to(d, node, in[i], (enum kumi_dtype)g->value[value].dtype);
        }
        in[i] = d->rounded[1];
        if (in[i] == 0)
            return ku_err_get()->status;
    }
    return KUMI_OK;
}

static int emit(struct diff *d, ku_id node, const struct statement *s, const struct statement *next)
{
    struct ku_graph *g = d->g;
    int is_wanted = 0, is_data = 0;
    look_at(d, node, s, next, &is_wanted, &is_data);
    if (!is_wanted)
        return KUMI_OK;
    if (s->op == KU_OP_NONE)
        return pass_on(d, node, s->target[0], operand_of(d, node, s->kind[0], s->index[0]));
    struct ku_attrs a = g->attr[g->node[node].attr];
    a.dtype = result_dtype(g, node, s);
    if (kumi_dtype_bytes(d->grads) < kumi_dtype_bytes(KUMI_F32) && is_gradient(d, node, s))
        a.dtype = d->grads;
    if (s->op == KU_OP_embedding_dw)
        a.axes = axes_of_rows(g, ku_in(g, &g->node[node], 0));
    struct ku_make m = {.op = s->op,
                        .phase = is_data ? KU_PH_I : KU_PH_W,
                        .n_in = s->n_in,
                        .attr = &a,
                        .path = g->name[g->node[node].path],
                        .source = g->node[node].source,
                        .stage = g->node[node].stage,
                        .stream = g->node[node].stream};
    for (int i = 0; i < s->n_in; i++)
        m.in[i] = operand_of(d, node, s->kind[i], s->index[i]);
    KU_TRY(round_adjoints(d, node, s, m.in));
    KU_TRY(sync_operands(d, s, &m));
    ku_id made = ku_graph_node(g, &m);
    if (made == 0)
        return ku_err_get()->status;
    KU_TRY(ku_place_node(g, made));
    d->last = made;
    for (int i = 0; i < s->n_targets; i++)
        if (s->target[i] < g->node[node].n_in && d->wanted[ku_in(g, &g->node[node], s->target[i])])
            KU_TRY(contribute(d, node, s->target[i], ku_out(g, made, i)));
    return KUMI_OK;
}

/* A convert's gradient is the dual convert. */
static int differentiate_convert(struct diff *d, ku_id node)
{
    struct ku_graph *g = d->g;
    const struct ku_node n = g->node[node];
    const ku_id x = ku_in(g, &n, 0), y = ku_out(g, node, 0);
    KU_ASSERT(n.op == KU_OP_convert && n.n_in == 1 && d->adjoint[y] != 0);
    const struct ku_layout *from = &g->layout[g->value[x].layout],
                           *to = &g->layout[g->value[y].layout];
    struct ku_layout dual = g->layout[g->value[d->adjoint[y]].layout];
    struct ku_attrs a = ku_attrs_default;
    if (ku_place_is_max(g, x) || ku_layout_has(from, KU_Z) || ku_layout_has(to, KU_Z))
        return KU_ERR(KUMI_EINVAL, "autodiff: %s: this convert has no gradient", g->name[n.path]);
    for (int axis = 0; axis < KU_N_AXES; axis++)
        if (from->at[axis].kind != to->at[axis].kind || from->at[axis].dim != to->at[axis].dim) {
            dual.at[axis] = ku_place_dual(from->at[axis]);
            a.axes |= INT64_C(1) << axis;
        }
    ku_id layout = ku_graph_layout(g, &dual), part = d->adjoint[y];
    if (d->is_tp_narrow && (a.axes & ~KU_TP_AXES) == 0 && to->at[KU_AX_TP].kind == KU_R)
        part = cast_to(d, node, part, KUMI_BF16); /* P: each rank rounds once */
    if (part == 0)
        return ku_err_get()->status;
    ku_id made = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                    .phase = d->data[x] ? KU_PH_I : KU_PH_W,
                                                    .n_in = 1,
                                                    .in = {part},
                                                    .attr = &a,
                                                    .path = g->name[n.path],
                                                    .stage = n.stage,
                                                    .source = n.source});
    if (layout == 0 || made == 0)
        return ku_err_get()->status;
    g->value[ku_out(g, made, 0)].layout = layout;
    ku_id adjoint = ku_out(g, made, 0);
    const bool is_wider = kumi_dtype_bytes((enum kumi_dtype)g->value[adjoint].dtype) >
                          kumi_dtype_bytes((enum kumi_dtype)g->value[x].dtype);
    if (part != d->adjoint[y] || (is_wider && from->at[KU_AX_TP].kind != KU_P))
        adjoint = cast_to(d, node, adjoint, (enum kumi_dtype)g->value[x].dtype);
    return adjoint ? contribute(d, node, 0, adjoint) : ku_err_get()->status;
}

static int differentiate(struct diff *d, ku_id node)
{
    const struct ku_graph *g = d->g;
    const struct ku_op_info *info = &ku_ops[g->node[node].op];
    int has_adjoint = 0;
    for (int i = 0; i < g->node[node].n_out; i++)
        has_adjoint |= d->adjoint[ku_out(g, node, i)] != 0;
    if (!has_adjoint || !d->wanted[ku_out(g, node, 0)])
        return KUMI_OK;
    if (g->node[node].op == KU_OP_convert)
        return differentiate_convert(d, node);
    if (info->grad[0] == '\0')
        return KU_ERR(KUMI_EINVAL, "autodiff: %s: op %s has no gradient",
                      g->name[g->node[node].path], info->name);
    struct statement s, next;
    int n_in = g->node[node].n_in;
    const char *p = parse_statement(info->grad, n_in, &s);
    while (p != NULL) {
        p = parse_statement(p, n_in, &next);
        KU_TRY(emit(d, node, &s, p ? &next : NULL));
        s = next;
    }
    return KUMI_OK;
}

/* Backward starts at 2^-shift, where 2^shift is the min power of two >= the number of loss
 * positions of a micro-batch. */
static int64_t loss_shift(const struct ku_graph *g, ku_id loss)
{
    const struct ku_value *v =
        &g->value[ku_in(g, &g->node[g->value[loss].def], 0)]; /* the summed loss terms */
    int64_t positions = ku_shape_count(&g->shape[v->shape]), shift = 0;
    for (int a = 0; a < KU_N_AXES; a++) /* tp ranks divide the positions of one micro-batch */
        if (!(KU_TP_AXES >> a & 1) && g->layout[v->layout].at[a].kind == KU_S)
            positions /= g->mesh.extent[a];
    while (((int64_t)1 << shift) < positions)
        shift++;
    return shift;
}

/* Adds the seed: 2^-shift, times the loss scale if there is one. It is an exact power of two; the
 * update applies the remaining factor. */
static int seed(struct diff *d, const struct ku_compile_opts *o)
{
    struct ku_graph *g = d->g;
    ku_id loss = ku_graph_find_output(g, "loss_sum");
    if (loss == 0)
        return KU_ERR(KUMI_EINVAL,
                      "autodiff: the model has no loss; end it with kumi_loss_cross_entropy");
    struct ku_attrs a = ku_attrs_default;
    a.shift = loss_shift(g, loss);
    a.dtype = o->compute == KUMI_F64 ? KUMI_F64 : KUMI_F32;
    ku_update_scaler_attrs(&o->rule, &a);
    ku_id scaler = ku_update_scaler_state(g, o);
    ku_id node = ku_graph_node(g, &(struct ku_make){.op = KU_OP_loss_seed,
                                                    .phase = KU_PH_A,
                                                    .n_in = scaler != 0,
                                                    .in = {scaler},
                                                    .attr = &a,
                                                    .path = "loss"});
    if (node == 0)
        return ku_err_get()->status;
    d->adjoint[loss] = ku_out(g, node, 0);
    return ku_place_node(g, node);
}

/* Parameters from which no path leads to the loss are left as they are, like frozen ones. */
static int leave_unreached(struct ku_graph *g)
{
    unsigned char *is_reached = ku_calloc(g->n_tensors, 1);
    if (is_reached == NULL)
        return KUMI_ENOMEM;
    for (ku_id u = 1; u < g->n_uses; u++)
        is_reached[g->use[u].tensor] |= g->use[u].grad != 0;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        struct ku_tensor *x = &g->tensor[t];
        if (x->kind != KU_T_PARAM || !x->trainable || !x->used || is_reached[t])
            continue;
        x->trainable = 0;
        KU_LOG(PASS, WARN,
               "parameter %s does not reach the loss: it gets no gradient and no update", x->name);
    }
    ku_free(is_reached);
    return KUMI_OK;
}

int ku_pass_autodiff(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t)
{
    (void)t;
    ku_id n_forward = g->n_nodes;
    struct diff d = {.g = g, .n_values = g->n_values};
    d.grads = o->compute == KUMI_F64 ? KUMI_F64 : o->grads;
    d.is_tp_narrow = o->tp_reduce == KUMI_BF16;
    d.is_tp_exact = o->tp_exact != 0;
    d.adjoint = ku_calloc(g->n_values, sizeof *d.adjoint);
    d.first_use = ku_calloc(g->n_nodes, sizeof *d.first_use);
    d.next_use = ku_calloc(g->n_uses, sizeof *d.next_use);
    d.wanted = ku_calloc(g->n_values, 1);
    d.data = ku_calloc(g->n_values, 1);
    int status =
        d.adjoint && d.first_use && d.next_use && d.wanted && d.data ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = analyse(&d, o);
    if (status == KUMI_OK)
        status = seed(&d, o);
    for (ku_id n = n_forward - 1; n > 0 && status == KUMI_OK; n--)
        status = differentiate(&d, n);
    if (status == KUMI_OK)
        status = leave_unreached(g);
    ku_free(d.adjoint);
    ku_free(d.first_use);
    ku_free(d.next_use);
    ku_free(d.wanted);
    ku_free(d.data);
    return status;
}
