/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor parallelism: the model as the state plan divides it. The plan says which parameters the
 * ranks of axis tp divide, and along which dim; all else follows:
 *
 *     weight split along a result of linear       x is gathered:  y = linear(gather(x), w)
 *     weight split along what linear contracts    y = bias_add(sum(linear(x, w)), bias)
 *
 *     table split along its rows                  y = sum(embedding(table, ids))
 *     logits split along the classes              the loss in three parts, with the maximum and the
 *                                                 sum over the ranks between them
 *
 * With sequence parallelism the sums of layers and embeddings are divided along t, and so is what
 * is computed from them: an op that cannot be divided along t reads it gathered, and one that can
 * reads its part of operands that are whole. The gradient of a parameter read there is a partial
 * sum.
 *
 *     convert      attr index   value                 its gradient
 *     sum          0            a sum over the ranks  the same on each, gathered if this divides t
 *     gather       1            the same              a sum over the ranks, divided if x is
 *     part         2            the same              joined
 *     join         3            the same              part
 *
 * Attr shift is the letter along which one side is divided, 0: neither is. A result that the user's
 * plan gathers is joined. Each value is whole on every rank, split along a dim (its letter), or a
 * partial sum (KU_SPLIT_SUM).
 *
 * Where axis tpi has several ranks, they share key and value heads. Split along h means then
 *
 *     a value with r, the query heads of a key head     h over tp, r over tpi
 *     one without: keys, values and their weights       h over tp, the same along tpi
 *
 * and what sums a value with r into one without leaves a partial sum along tpi (KU_SPLIT_SHARED).
 * All other values are divided over both axes as over one.
 */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "check/proof.h"

int ku_proof_tp(const struct ku_proof *c)
{
    return ku_mesh_wide(&c->p->mesh, KU_TP_AXES);
}

/* What the placements on tp and on tpi mean together, of several ranks on tpi. */
static char split_of_both(const struct ku_mesh *m, const struct ku_shape *s, struct ku_place outer,
                          struct ku_place inner)
{
    const char letter = outer.kind == KU_S ? s->dim[outer.dim].name : 0;
    const int r = letter == 'h' ? ku_shape_find(s, 'r') : -1;
    if (letter == 'h' && r < 0)
        return inner.kind == KU_S ? KU_SPLIT_BAD : inner.kind == KU_P ? KU_SPLIT_SHARED : letter;
    if (letter)
        return inner.kind == KU_S && inner.dim == (r < 0 ? outer.dim : r) ? letter : KU_SPLIT_BAD;
    if (inner.kind == KU_S || (inner.kind == KU_P && outer.kind != KU_P))
        return KU_SPLIT_BAD;
    return inner.kind == KU_P                              ? KU_SPLIT_SUM
           : outer.kind == KU_P && m->extent[KU_AX_TP] > 1 ? KU_SPLIT_OUTER
                                                           : 0;
}

static char split_of(const struct ku_proof *c, ku_id shape, ku_id layout)
{
    const struct ku_mesh *m = &c->p->mesh;
    const struct ku_shape *s = &c->p->shape[shape];
    const struct ku_place outer = c->p->layout[layout].at[KU_AX_TP];
    if (m->extent[KU_AX_TPI] > 1)
        return split_of_both(m, s, outer, c->p->layout[layout].at[KU_AX_TPI]);
    return m->extent[KU_AX_TP] == 1 ? 0
           : outer.kind == KU_P     ? KU_SPLIT_SUM
           : outer.kind == KU_S     ? s->dim[outer.dim].name
                                    : 0;
}

char ku_proof_split_of_state(const struct ku_proof *c, uint32_t s)
{
    const struct ku_program_state *x = &c->p->state[s];
    return x->split ? split_of(c, x->shape, x->split) : 0;
}

char ku_proof_split(const struct ku_proof *c, const struct ku_operand *o)
{
    return split_of(c, o->shape, o->layout);
}

char ku_held_split(const struct ku_proof *c, const struct ku_held *h)
{
    const int parts = h->partial & ku_proof_tp(c);
    if (parts == 0)
        return h->split;
    if (h->split)
        return h->split == 'h' && parts == 1 << KU_AX_TPI ? KU_SPLIT_SHARED : KU_SPLIT_BAD;
    return parts == ku_proof_tp(c)  ? KU_SPLIT_SUM
           : parts == 1 << KU_AX_TP ? KU_SPLIT_OUTER
                                    : KU_SPLIT_BAD;
}

int ku_proof_split_axes(const struct ku_proof *c, ku_id shape, char split)
{
    const bool is_shared = split == 'h' && ku_shape_find(&c->p->shape[shape], 'r') < 0;
    return split == 0 ? 0 : ku_proof_tp(c) & (is_shared ? ~(1 << KU_AX_TPI) : ~0);
}

static bool has_dim(const struct ku_graph *g, ku_id value, char letter)
{
    return ku_shape_find(&g->shape[g->value[value].shape], letter) >= 0;
}

/* How tensor-parallel ranks divide a value that no node computes. */
static char split_of_leaf(const struct ku_proof *c, const struct ku_graph *g, ku_id v)
{
    const ku_id t = g->value[v].role == KU_STATE ? g->value[v].tensor : 0;
    const uint32_t s = t ? ku_proof_state(c, ku_term_state(g->tensor[t].name, NULL)) : 0;
    return s ? ku_proof_split_of_state(c, s - 1) : 0;
}

static int refuse(struct ku_proof *c, const struct ku_graph *g, ku_id node, const char *rule)
{
    return ku_proof_refuse(c, 0, "%s %s: %s", ku_ops[g->node[node].op].name,
                           g->name[g->node[node].path], rule);
}

/* A convert of axes tp and tpi. */
static int split_of_convert(struct ku_proof *c, const struct ku_graph *g, ku_id node, char *split)
{
    const struct ku_attrs *a = &g->attr[g->node[node].attr];
    const ku_id x = ku_in(g, &g->node[node], 0);
    const char t = (char)a->shift;
    const char want = a->index == KU_TENSOR_SUM ? KU_SPLIT_SUM : a->index == KU_TENSOR_PART ? 0 : t;
    if (g->value[x].def == 0)
        split[x] = split_of_leaf(c, g, x);
    if (split[x] != want)
        return refuse(c, g, node, "an operand is not divided as its redistribution needs");
    split[ku_out(g, node, 0)] = a->index == KU_TENSOR_SUM || a->index == KU_TENSOR_PART ? t : 0;
    return KUMI_OK;
}

static bool has_letter(const struct ku_shape *s, char letter)
{
    return letter && ku_shape_find(s, letter) >= 0;
}

/* Whether the op can be divided along a dim, which its result has or adds up. */
static bool is_divisible(const struct ku_op_info *op, char letter, bool passes)
{
    const char *letters = passes ? op->map : op->sum;
    return strcmp(letters, "*") == 0 || strchr(letters, letter) != NULL;
}

/* Whether operand i of an op may be a partial sum along tpi alone. */
static bool takes_shared(const struct ku_split_op *x, int i)
{
    const unsigned traits = ku_ops[x->op].traits;
    if (traits & KU_OP_ADDS)
        return x->split[0] == x->split[x->n_in - 1];
    return traits & KU_OP_DY ? i == x->n_in - 1 : traits & KU_OP_LINEAR && i == 0;
}

/* Results of an op whose operands are split along h, of several ranks on axis tpi. */
static const char *heads_rule(const struct ku_split_op *x, char split[KU_MAX_OUT])
{
    const struct ku_op_info *op = &ku_ops[x->op];
    bool has_queries = false, is_shared = false;
    for (int i = 0; i < x->n_in; i++) {
        if (x->split[i] == KU_SPLIT_SHARED && !takes_shared(x, i))
            return "reads a partial sum over the ranks of axis tpi";
        is_shared = is_shared || x->split[i] == KU_SPLIT_SHARED;
        has_queries = has_queries || (x->split[i] == 'h' && has_letter(x->in[i], 'r'));
    }
    if (is_shared && has_queries)
        return "reads a partial sum over the ranks of axis tpi beside its queries";
    for (int o = 0; o < x->n_out; o++) {
        const bool passes = has_letter(x->out[o], 'h'), has_r = has_letter(x->out[o], 'r');
        if (!is_divisible(op, 'h', passes) || (has_queries && !is_divisible(op, 'r', has_r)) ||
            (has_r && !(passes && has_queries)))
            return "the op cannot be divided along this dim";
        if (!passes && !has_queries && !is_shared)
            return "every rank of axis tpi would add the same heads";
        split[o] = !passes                                ? KU_SPLIT_SUM
                   : !has_r && (has_queries || is_shared) ? KU_SPLIT_SHARED
                                                          : 'h';
    }
    return NULL;
}

const char *ku_tensor_rule(const struct ku_split_op *x, char split[KU_MAX_OUT])
{
    const struct ku_op_info *op = &ku_ops[x->op];
    char letter = 0;
    bool is_sum = false;
    KU_ASSERT(x->n_in <= KU_MAX_IN && x->n_out <= KU_MAX_OUT);
    for (int i = 0; i < x->n_in; i++) {
        const char own = x->split[i] == KU_SPLIT_SHARED ? 'h' : x->split[i];
        if (own == KU_SPLIT_BAD || own == KU_SPLIT_OUTER)
            return "an operand is divided otherwise over axis tp than over axis tpi";
        if (own == KU_SPLIT_SUM)
            is_sum = true;
        else if (own && letter && own != letter)
            return "operands are split along two dims";
        else if (own)
            letter = own;
    }
    for (int i = 0; i < x->n_in && letter; i++)
        if ((x->split[i] == 0 || x->split[i] == KU_SPLIT_SUM) && has_letter(x->in[i], letter))
            return "an operand is whole along a dim that ranks divide";
    if (x->op == KU_OP_embedding_dw && x->a->axes) {
        split[0] = x->out[0]->dim[0].name;
        return NULL;
    }
    if (x->op == KU_OP_xent_finish && letter && x->split[0] == letter && !is_sum)
        letter = 0; /* maximum and sums are complete */
    if (is_sum && (letter || !(op->traits & KU_OP_LINEAR)))
        return "reads a partial sum over the ranks of axis tp";
    if (letter == 'h' && x->has_inner)
        return heads_rule(x, split);
    for (int o = 0; o < x->n_out && o < KU_MAX_OUT; o++) {
        const bool passes = has_letter(x->out[o], letter);
        if (letter && !is_divisible(op, letter, passes))
            return "the op cannot be divided along this dim";
        split[o] = passes ? letter : letter || is_sum ? KU_SPLIT_SUM : 0;
    }
    return NULL;
}

int ku_tensor_split(struct ku_proof *c, const struct ku_graph *g, ku_id node, char *split)
{
    const struct ku_node *n = &g->node[node];
    struct ku_split_op x = {.op = n->op,
                            .n_in = n->n_in,
                            .n_out = n->n_out,
                            .has_inner = c->p->mesh.extent[KU_AX_TPI] > 1,
                            .a = &g->attr[n->attr]};
    char out[KU_MAX_OUT] = {0};
    if (n->op == KU_OP_convert)
        return split_of_convert(c, g, node, split);
    for (int i = 0; i < n->n_in; i++) {
        const ku_id v = ku_in(g, n, i);
        if (g->value[v].def == 0)
            split[v] = split_of_leaf(c, g, v);
        x.split[i] = split[v];
        x.in[i] = &g->shape[g->value[v].shape];
    }
    for (int o = 0; o < n->n_out; o++)
        x.out[o] = &g->shape[g->value[ku_out(g, node, o)].shape];
    const char *broken = ku_tensor_rule(&x, out);
    if (broken)
        return refuse(c, g, node, broken);
    for (int o = 0; o < n->n_out; o++)
        split[ku_out(g, node, o)] = out[o];
    return KUMI_OK;
}

struct divide {
    struct ku_proof *c;
    struct ku_graph *g;
    ku_id n_values;         /* of the model */
    char *split;            /* per value */
    ku_id *renamed, *whole; /* per value: what its readers read instead; gathered; 0: none */
    ku_id *part, *joined;   /* per value: its part of the sequence; whole again; 0: none */
};

static ku_id append(struct divide *d, ku_id node, int op, const struct ku_attrs *a, const ku_id *in,
                    int n_in)
{
    struct ku_graph *g = d->g;
    struct ku_make m = {.op = op,
                        .phase = KU_PH_F,
                        .n_in = n_in,
                        .attr = a,
                        .path = g->name[g->node[node].path],
                        .is_silent = 1};
    memcpy(m.in, in, (size_t)n_in * sizeof *in);
    const ku_id made = ku_graph_node(g, &m);
    return made && ku_tensor_split(d->c, g, made, d->split) == KUMI_OK ? made : 0;
}

static ku_id convert(struct divide *d, ku_id node, ku_id x, enum ku_tensor_convert index, char t)
{
    struct ku_attrs a = ku_attrs_default;
    a.index = index;
    a.shift = t;
    const ku_id made = append(d, node, KU_OP_convert, &a, (ku_id[]){x}, 1);
    return made ? ku_out(d->g, made, 0) : 0;
}

/* The sum, or the maximum, over the ranks. */
static ku_id complete(struct divide *d, ku_id node, ku_id x, enum ku_node_reduce reduce)
{
    struct ku_attrs a = ku_attrs_default;
    a.reduce = reduce;
    const ku_id made = append(d, node, KU_OP_convert, &a, (ku_id[]){x}, 1);
    return made ? ku_out(d->g, made, 0) : 0;
}

/* The slices of a sum that a rank has (op/slices.h). */
static int take_slices(const struct divide *d, ku_id node)
{
    struct ku_attrs a = d->g->attr[d->g->node[node].attr];
    if (a.slices == 0)
        return KUMI_OK;
    if (a.slices % ku_mesh_tp(&d->c->p->mesh))
        return refuse(d->c, d->g, node, "the ranks of axis tp do not divide its slices");
    a.slices /= ku_mesh_tp(&d->c->p->mesh);
    if (a.slices & (a.slices - 1))
        return refuse(d->c, d->g, node, "a rank's slices are no node of the tree of all");
    d->g->node[node].attr = ku_graph_attr(d->g, &a);
    return d->g->node[node].attr ? KUMI_OK : KUMI_ENOMEM;
}

/* The sum of a layer or an embedding. */
static ku_id sum_of(struct divide *d, ku_id node, ku_id x)
{
    const bool is_divided = d->c->o->sequence && has_dim(d->g, x, 't');
    return convert(d, node, x, KU_TENSOR_SUM, is_divided ? 't' : 0);
}

/* The loss of classes that the ranks divide. */
static int divide_loss(struct divide *d, ku_id node)
{
    struct ku_graph *g = d->g;
    const struct ku_node n = g->node[node];
    const ku_id x = ku_in(g, &n, 0), targets = ku_in(g, &n, 1);
    const struct ku_shape *s = &g->shape[g->value[x].shape];
    struct ku_attrs a = g->attr[n.attr];
    a.rows_seen = s->dim[s->ndim - 1].seen;
    g->node[node].op = KU_OP_NONE;
    ku_id made = append(d, node, KU_OP_xent_max, &a, &x, 1);
    const ku_id max = made ? complete(d, node, ku_out(g, made, 0), KU_REDUCE_MAX) : 0;
    made = max ? append(d, node, KU_OP_xent_sums, &a, (ku_id[]){x, max, targets}, 3) : 0;
    const ku_id sums = made ? complete(d, node, ku_out(g, made, 0), KU_REDUCE_SUM) : 0;
    made = sums ? append(d, node, KU_OP_xent_finish, &a, (ku_id[]){x, max, sums, targets}, 4) : 0;
    for (int i = 0; i < n.n_out && made; i++)
        d->renamed[ku_out(g, node, i)] = ku_out(g, made, i);
    return made ? KUMI_OK : ku_err_get()->status;
}

/* The product of a row-parallel linear, its sum over the ranks, then bias and rounding. slices: of
 * all ranks. */
static int divide_row(struct divide *d, ku_id node, int64_t slices)
{
    struct ku_graph *g = d->g;
    const struct ku_node n = g->node[node];
    const ku_id y = ku_out(g, node, 0), bias = n.n_in > 2 ? ku_in(g, &n, 2) : 0;
    const enum kumi_dtype dtype = (enum kumi_dtype)g->value[y].dtype;
    const enum kumi_dtype part = d->c->o->tp_reduce == KUMI_BF16                        ? KUMI_BF16
                                 : kumi_dtype_bytes(dtype) < kumi_dtype_bytes(KUMI_F32) ? KUMI_F32
                                                                                        : dtype;
    const bool is_rounded = part != dtype;
    struct ku_attrs a = g->attr[n.attr], add = ku_attrs_default;
    if (is_rounded || part == KUMI_BF16)
        a.dtype = g->value[y].dtype = part;
    g->node[node].n_in = 2;
    g->node[node].attr = ku_graph_attr(g, &a);
    if (g->node[node].attr == 0)
        return KUMI_ENOMEM;
    KU_TRY(ku_tensor_split(d->c, g, node, d->split));
    const ku_id sum = sum_of(d, node, y);
    d->renamed[y] = sum;
    if (sum && (bias || is_rounded)) {
        add.outs = a.outs;
        add.slices = slices / (d->split[sum] == 't' ? ku_mesh_tp(&d->c->p->mesh) : 1);
        add.dtype = is_rounded ? (int64_t)dtype : -1;
        const ku_id made =
            append(d, node, KU_OP_bias_add, &add, (ku_id[]){sum, bias}, 1 + (bias != 0));
        for (ku_id u = 1; made && bias && u < g->n_uses; u++)
            if (g->use[u].node == node && g->use[u].operand == 2)
                g->use[u].node = made, g->use[u].operand = 1;
        d->renamed[y] = made ? ku_out(g, made, 0) : 0;
    }
    return d->renamed[y] ? KUMI_OK : ku_err_get()->status;
}

/* The rows of an embedding, summed over the ranks that divide its table. */
static int divide_embedding(struct divide *d, ku_id node)
{
    const ku_id y = ku_out(d->g, node, 0);
    KU_TRY(ku_tensor_split(d->c, d->g, node, d->split));
    d->renamed[y] = sum_of(d, node, y);
    return d->renamed[y] ? KUMI_OK : ku_err_get()->status;
}

/* A part of the loss in slices: those of this rank, then the sum or maximum over the ranks. */
static int divide_part(struct divide *d, ku_id node)
{
    const ku_id y = ku_out(d->g, node, 0);
    const bool is_max = d->g->node[node].op == KU_OP_xent_max;
    KU_TRY(take_slices(d, node));
    KU_TRY(ku_tensor_split(d->c, d->g, node, d->split));
    d->renamed[y] = complete(d, node, y, is_max ? KU_REDUCE_MAX : KU_REDUCE_SUM);
    return d->renamed[y] ? KUMI_OK : ku_err_get()->status;
}

/*
 * Operand i of a node as another placement of the same value, which readers share, but for those
 * whose gradients are sums in slices.
 */
static int replace(struct divide *d, ku_id node, int i, enum ku_tensor_convert index, ku_id *made)
{
    struct ku_graph *g = d->g;
    const ku_id x = ku_in(g, &g->node[node], i);
    if (made[x] == 0 || g->attr[g->node[node].attr].slices)
        made[x] = convert(d, node, x, index, index == KU_TENSOR_PART ? 't' : d->split[x]);
    g->refs[g->node[node].in + (uint32_t)i] = made[x];
    return made[x] ? KUMI_OK : ku_err_get()->status;
}

/* The style of the module of a state value that a node reads. */
static enum ku_tp_style style_of(const struct divide *d, ku_id value)
{
    const struct ku_graph *g = d->g;
    ku_id t = g->value[value].role == KU_STATE ? g->value[value].tensor : 0;
    t = t && g->tensor[t].of ? g->tensor[t].of : t;
    return t ? ku_tp_plan_of_tensor(&d->c->o->plan, g->tensor[t].name) : KU_TP_DEFAULT;
}

/*
 * The operands of a node outside the divided layers: all parts of the sequence, or none. Statistics
 * of a micro-batch are those of whole sequences.
 */
static int divide_sequence(struct divide *d, ku_id node)
{
    struct ku_graph *g = d->g;
    const struct ku_node n = g->node[node];
    bool is_part = n.op == KU_OP_embedding && has_dim(g, ku_in(g, &n, 1), 't');
    bool is_able = n.op != KU_OP_batch_norm_sums && !(ku_ops[n.op].traits & KU_OP_MICRO);
    for (int i = 0; i < n.n_in; i++) {
        is_part = is_part || d->split[ku_in(g, &n, i)] == 't';
        is_able = is_able && style_of(d, ku_in(g, &n, i)) != KU_TP_REPLICATE;
    }
    for (int k = 0; k < n.n_out; k++)
        is_able = is_able && is_divisible(&ku_ops[n.op], 't', has_dim(g, ku_out(g, node, k), 't'));
    for (int i = 0; i < n.n_in && is_part; i++) {
        const ku_id x = ku_in(g, &n, i);
        if (is_able && d->split[x] == 0 && has_dim(g, x, 't'))
            KU_TRY(replace(d, node, i, KU_TENSOR_PART, d->part));
        else if (!is_able && d->split[x] == 't')
            KU_TRY(replace(d, node, i, KU_TENSOR_JOIN, d->joined));
    }
    return KUMI_OK;
}

static int divide_node(struct divide *d, ku_id node)
{
    struct ku_graph *g = d->g;
    const struct ku_node n = g->node[node];
    for (int i = 0; i < n.n_in; i++) {
        const ku_id v = ku_in(g, &n, i);
        if (v < d->n_values && d->renamed[v])
            g->refs[n.in + (uint32_t)i] = d->renamed[v];
    }
    const char of_x = n.n_in > 0 ? d->split[ku_in(g, &n, 0)] : 0;
    const bool is_split_loss = of_x && of_x != 't';
    if (n.op == KU_OP_softmax_xent && is_split_loss)
        return divide_loss(d, node);
    if ((n.op == KU_OP_xent_max || n.op == KU_OP_xent_sums) && is_split_loss)
        return divide_part(d, node);
    if (n.op == KU_OP_embedding && split_of_leaf(d->c, g, ku_in(g, &n, 0)))
        return divide_embedding(d, node);
    const char letter = n.op == KU_OP_linear ? split_of_leaf(d->c, g, ku_in(g, &n, 1)) : 0;
    if (letter)
        KU_TRY(take_slices(d, node));
    if (letter && has_dim(g, ku_in(g, &n, 0), letter))
        return divide_row(d, node, g->attr[n.attr].slices);
    if (letter)
        KU_TRY(replace(d, node, 0, KU_TENSOR_GATHER, d->whole));
    else if (d->c->o->sequence)
        KU_TRY(divide_sequence(d, node));
    const bool is_norm = n.op == KU_OP_layer_norm || n.op == KU_OP_rms_norm;
    if (is_norm && d->split[ku_in(g, &g->node[node], 0)] == 't')
        KU_TRY(take_slices(d, node));
    if (letter && style_of(d, ku_in(g, &n, 1)) == KU_TP_COL_GATHER) {
        const ku_id y = ku_out(g, node, 0);
        KU_TRY(ku_tensor_split(d->c, g, node, d->split));
        d->renamed[y] = convert(d, node, y, KU_TENSOR_JOIN, letter);
        return d->renamed[y] ? KUMI_OK : ku_err_get()->status;
    }
    return ku_tensor_split(d->c, g, node, d->split);
}

int ku_tensor_divide(struct ku_proof *c, struct ku_graph *g)
{
    struct divide d = {.c = c, .g = g, .n_values = g->n_values};
    const size_t n_values = 2 * ((size_t)g->n_values + 6 * (size_t)g->n_nodes);
    const ku_id n_model = g->n_nodes;
    int status = KUMI_ENOMEM;
    if (ku_mesh_tp(&c->p->mesh) == 1)
        return KUMI_OK;
    d.split = ku_calloc(n_values, 1);
    d.renamed = ku_calloc(g->n_values, sizeof *d.renamed);
    d.whole = ku_calloc(3 * n_values, sizeof *d.whole);
    d.part = d.whole + n_values, d.joined = d.part + n_values;
    if (d.split && d.renamed && d.whole)
        status = KUMI_OK;
    for (ku_id n = 1; n < n_model && status == KUMI_OK; n++)
        if (g->node[n].op != KU_OP_NONE)
            status = divide_node(&d, n);
    for (uint32_t i = 0; i < g->n_outputs && status == KUMI_OK; i++)
        if (g->output[i].value < d.n_values && d.renamed[g->output[i].value])
            g->output[i].value = d.renamed[g->output[i].value];
    ku_free(d.split);
    ku_free(d.renamed);
    ku_free(d.whole);
    return status == KUMI_OK ? ku_graph_sort(g) : status;
}
