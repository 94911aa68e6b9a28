/* SPDX-License-Identifier: Apache-2.0 */
#include "pass/place/tensor_parallel.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "ir/placement_rules.h"
#include "op/op.h"
#include "pass/pass.h"
#include "pass/place/user_plan.h"
#include "pass/place/sequence.h"
#include "pass/place/vocabulary.h"
#include "tensor/dtype.h"

static const char letters[] = "hfv";

struct ku_tensor_plan {
    struct ku_graph *g;
    const struct ku_compile_opts *o;
    int parts;               /* that divide a dim: ranks, or slices of every tp (op/slices.h) */
    int head_parts;          /* the same of key and value heads, which axis tp alone divides */
    ku_id n_nodes, n_values; /* of the model */
    size_t max_values;       /* with those that placement adds */
    char *letter;            /* per tensor: of the dim that is split, 0: none */
    struct ku_styles styles; /* of the user's plan */
    char *split;             /* per value: the letter along which it is split, 0: none */
    ku_id *by;               /* per value: the parameter that made it so */
    ku_id *renamed;          /* per value: what its readers read instead, 0: itself */
    ku_id *whole;            /* per value: its convert from C to R, 0: none yet */
    ku_id *bias_use;         /* per node: the use of its bias, 0: none */
    struct ku_sequence *seq; /* NULL: activations between the layers are whole */
};

static const struct ku_shape *shape_of(const struct ku_graph *g, ku_id value)
{
    return &g->shape[g->value[value].shape];
}

/* The parameter of a state value, which may be its compute copy; 0: none. */
static ku_id parameter_of(const struct ku_graph *g, ku_id value)
{
    const ku_id t = g->value[value].role == KU_STATE ? g->value[value].tensor : 0;
    if (t == 0 || g->tensor[t].kind == KU_T_PARAM)
        return t;
    return g->tensor[t].kind == KU_T_DERIVED ? g->tensor[t].of : 0;
}

/* The letter that a linear contracts or makes, by its weight, or an embedding looks up, by its
 * table; 0: the parameter is whole. */
static char letter_of(const struct ku_tensor_plan *p, const struct ku_node *n)
{
    const ku_id w = n->op == KU_OP_linear      ? parameter_of(p->g, ku_in(p->g, n, 1))
                    : n->op == KU_OP_embedding ? parameter_of(p->g, ku_in(p->g, n, 0))
                                               : 0;
    return w ? p->letter[w] : 0;
}

/* Whether a linear makes a result that is gathered whole. */
static bool is_gathered(const struct ku_tensor_plan *p, const struct ku_node *n)
{
    const ku_id w = n->op == KU_OP_linear ? parameter_of(p->g, ku_in(p->g, n, 1)) : 0;
    return w && p->letter[w] && ku_styles_of(&p->styles, w) == KU_TP_COL_GATHER;
}

/* Whether a linear contracts the letter of its weight, or an embedding that of its table: the
 * result is a partial sum. */
static bool is_row_parallel(const struct ku_tensor_plan *p, const struct ku_node *n)
{
    const char letter = letter_of(p, n);
    return letter && ku_shape_find(shape_of(p->g, ku_in(p->g, n, 0)), letter) >= 0;
}

/* Whether a dim has equal parts: a vocabulary if need be with more padding, as pass vocabulary
 * gives it. */
static bool has_parts(const struct ku_tensor_plan *p, const struct ku_dim *dim)
{
    const int parts = dim->name == 'h' ? p->head_parts : p->parts;
    return dim->count % parts == 0 || ku_vocabulary_can_grow(p->g, dim);
}

/*
 * Whether the letter of a dim is one that may be split. The vocabulary is, in models that look
 * tokens up in a table; by default only where it has equal parts.
 */
static bool is_splittable(const struct ku_tensor_plan *p, const struct ku_dim *dim)
{
    const struct ku_graph *g = p->g;
    if (dim->name != 'v')
        return strchr(letters, dim->name) != NULL;
    if (p->o->whole_vocabulary || (!p->o->split_vocabulary && !has_parts(p, dim)))
        return false;
    for (ku_id n = 1; n < p->n_nodes; n++)
        if (g->node[n].op == KU_OP_embedding &&
            ku_shape_find(shape_of(g, ku_in(g, &g->node[n], 0)), 'v') == 0)
            return true;
    return false;
}

/* The parameters that have one of the letters, or for which the user's plan names another, and that
 * linear and embedding alone read. */
static void find_candidates(struct ku_tensor_plan *p)
{
    const struct ku_graph *g = p->g;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const struct ku_shape *s = &g->shape[g->tensor[t].shape];
        for (int d = s->ndim - 1; d >= 0 && g->tensor[t].kind == KU_T_PARAM; d--)
            if (strchr(letters, s->dim[d].name) && is_splittable(p, &s->dim[d]))
                p->letter[t] = s->dim[d].name;
        if (g->tensor[t].kind == KU_T_PARAM)
            p->letter[t] = ku_styles_letter(&p->styles, t, p->letter[t]);
    }
    for (ku_id n = 1; n < p->n_nodes; n++)
        for (int i = 0; i < g->node[n].n_in; i++) {
            const ku_id t = parameter_of(g, ku_in(g, &g->node[n], i));
            if (t && p->letter[t] && g->node[n].op != KU_OP_linear &&
                !(g->node[n].op == KU_OP_embedding && p->letter[t] == 'v')) {
                ku_styles_note(&p->styles, t, n, "reads it whole");
                p->letter[t] = 0;
            }
            if (t && p->letter[t] == 'h' && p->head_parts < p->parts &&
                ku_styles_of(&p->styles, t) == KU_TP_COL_GATHER) {
                ku_styles_note(&p->styles, t, n, "has fewer key and value heads than ranks");
                p->letter[t] = 0;
            }
        }
}

/* Leaves the weight of a linear whole, and its bias with it. True: this changes the plan. */
static bool leave_whole(struct ku_tensor_plan *p, ku_id node, const char *why)
{
    const struct ku_node *n = &p->g->node[node];
    for (int i = 1; i < n->n_in; i++) {
        const ku_id t = parameter_of(p->g, ku_in(p->g, n, i));
        ku_styles_note(&p->styles, t, node, why);
        p->letter[t] = 0;
    }
    return true;
}

/*
 * The next letter of a weight whose own is contracted and whole in the input, as the rows of an
 * image that an MLP reads; 0: none that divides it, or the user's plan names the letter.
 */
static char next_letter(const struct ku_tensor_plan *p, ku_id weight)
{
    const struct ku_shape *s = &p->g->shape[p->g->tensor[weight].shape];
    const int first = ku_shape_find(s, p->letter[weight]) + 1;
    KU_ASSERT(first > 0);
    if (ku_styles_of(&p->styles, weight) != KU_TP_DEFAULT)
        return 0;
    for (int d = first; d < s->ndim; d++)
        if (is_splittable(p, &s->dim[d]) && has_parts(p, &s->dim[d]))
            return s->dim[d].name;
    return 0;
}

/* A linear contracts the letter of its weight, by which its input is not divided. Returns true. */
static bool try_next(struct ku_tensor_plan *p, ku_id node)
{
    const ku_id weight = parameter_of(p->g, ku_in(p->g, &p->g->node[node], 1));
    const char next = next_letter(p, weight);
    if (next == 0)
        return leave_whole(p, node, "contracts a dim that is whole in its input");
    p->letter[weight] = next;
    return true;
}

/* Whether an op is the loss, or a part of it. */
static bool is_loss(int op)
{
    return op == KU_OP_softmax_xent || op == KU_OP_xent_max || op == KU_OP_xent_sums ||
           op == KU_OP_xent_finish;
}

/* Follows the split of operands into the results of a node. True: a parameter must stay whole. */
static bool follow(struct ku_tensor_plan *p, ku_id id)
{
    const struct ku_graph *g = p->g;
    const struct ku_node *n = &g->node[id];
    const struct ku_op_info *op = &ku_ops[n->op];
    const char letter = letter_of(p, n);
    char split = 0;
    ku_id by = 0;
    for (int i = 0; i < n->n_in; i++)
        if (p->split[ku_in(g, n, i)])
            split = p->split[ku_in(g, n, i)], by = p->by[ku_in(g, n, i)];
    if (n->op == KU_OP_embedding && letter)
        return false;
    if (is_row_parallel(p, n))
        return split == letter ? false : try_next(p, id);
    if (is_loss(n->op) && split == 'v') /* in parts, with whole results */
        return false;
    if (n->op == KU_OP_linear && letter == 0 && n->n_in > 2 &&
        p->letter[parameter_of(g, ku_in(g, n, 2))])
        return leave_whole(p, id, "has a whole weight");
    if (split) {
        bool passes = strcmp(op->map, "*") == 0 || strchr(op->map, split);
        /* A whole parameter, as a gain that all heads share, would have a partial gradient. */
        for (int i = 0; i < n->n_in; i++)
            if (p->split[ku_in(g, n, i)] == 0 &&
                (parameter_of(g, ku_in(g, n, i)) ||
                 ku_shape_find(shape_of(g, ku_in(g, n, i)), split) >= 0))
                passes = false;
        for (int o = 0; o < n->n_out; o++)
            if (n->op == KU_OP_linear || !passes ||
                ku_shape_find(shape_of(g, ku_out(g, id, o)), split) < 0) {
                ku_styles_note(&p->styles, by, id,
                               n->op == KU_OP_linear ? "contracts or takes it whole"
                                                     : "reads its result and cannot be divided");
                p->letter[by] = 0;
                return true;
            }
    } else if (letter) {
        split = letter;
        by = parameter_of(g, ku_in(g, n, 1));
        if (n->n_in > 2 && p->letter[parameter_of(g, ku_in(g, n, 2))] != letter)
            return leave_whole(p, id, "has a whole bias");
        if (is_gathered(p, n))
            split = 0;
    }
    for (int o = 0; o < n->n_out; o++)
        p->split[ku_out(g, id, o)] = split, p->by[ku_out(g, id, o)] = by;
    return false;
}

/* Outputs of the graph are whole. True: a parameter must stay whole. */
static bool leave_outputs(struct ku_tensor_plan *p)
{
    for (uint32_t i = 0; i < p->g->n_outputs; i++)
        if (p->split[p->g->output[i].value]) {
            const ku_id by = p->by[p->g->output[i].value];
            ku_styles_note(&p->styles, by, p->g->value[p->g->output[i].value].def,
                           "makes an output of the model of it");
            p->letter[by] = 0;
            return true;
        }
    return false;
}

/* Chooses the parameters. A parameter that must stay whole may force others to: repeats. */
static void choose(struct ku_tensor_plan *p)
{
    bool again = true;
    find_candidates(p);
    while (again) {
        again = false;
        memset(p->split, 0, p->n_values);
        for (ku_id n = 1; n < p->n_nodes && !again; n++)
            if (p->g->node[n].op != KU_OP_NONE)
                again = follow(p, n);
        again = again || leave_outputs(p);
    }
}

static const char *key_of(const struct ku_tensor_plan *p)
{
    return p->o->tp_exact ? "parallel.tp_exact" : "parallel.tp";
}
/* The query heads of each key and value head; 1: queries are not grouped. heads: key and value
 * heads, 0: none are. */
static int64_t group_of(const struct ku_graph *g, int64_t *heads)
{
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const struct ku_shape *s = &g->shape[g->tensor[t].shape];
        const int r = ku_shape_find(s, 'r'), h = ku_shape_find(s, 'h');
        if (g->tensor[t].kind != KU_T_PARAM || r < 0 || h < 0)
            continue;
        *heads = s->dim[h].count;
        return s->dim[r].count;
    }
    *heads = 0;
    return 1;
}

int ku_tensor_inner(const struct ku_graph *g, int tp)
{
    int64_t heads;
    const int64_t group = group_of(g, &heads);
    return heads && tp > heads && tp % heads == 0 && group % (tp / heads) == 0 ? tp / (int)heads
                                                                               : 1;
}

static const char *unit_of(char letter, int64_t group)
{
    return letter != 'h' ? "elements" : group > 1 ? "key and value heads" : "heads";
}

/* Whether so many ranks can divide a dim; of heads with `group` query heads each, or their queries
 * too. */
static bool divides(int64_t ranks, int64_t count, int64_t group)
{
    return count % ranks == 0 || (ranks % count == 0 && group % (ranks / count) == 0);
}

static int refuse_count(const struct ku_tensor_plan *p, ku_id tensor, const struct ku_dim *dim)
{
    const struct ku_graph *g = p->g;
    int64_t ignored;
    const int64_t tp = p->parts, heads = dim->name == 'h' ? group_of(g, &ignored) : 1;
    const bool is_exact = p->o->tp_exact && heads > 1;
    const int64_t group = is_exact ? 1 : heads, most = dim->count * group;
    int64_t below = tp, above = tp;
    while (!divides(below, dim->count, group))
        below--;
    while (above < most && !divides(above, dim->count, group))
        above++;
    struct ku_str near = {0};
    ku_str_add(&near, "%lld", (long long)below);
    if (divides(above, dim->count, group))
        ku_str_add(&near, " or %lld", (long long)above);
    const int status = KU_ERR(
        KUMI_EINVAL,
        "placement: %s: %lld does not divide dim %c of %s, which has %lld %s%s; "
        "nearest: %s",
        key_of(p), (long long)tp, dim->name, g->tensor[tensor].name, (long long)dim->count,
        unit_of(dim->name, heads),
        is_exact && tp > dim->count ? ", whose gradients are not sums in slices of query heads"
                                    : "",
        ku_str_get(&near));
    ku_str_fini(&near);
    return status;
}

static bool has_split_vocabulary(const struct ku_tensor_plan *p)
{
    for (ku_id n = 1; n < p->n_nodes; n++)
        if (is_loss(p->g->node[n].op) && p->split[ku_in(p->g, &p->g->node[n], 0)] == 'v')
            return true;
    return false;
}

/*
 * KUMI_EINVAL unless parameters are split into equal parts. A model without such parameters, as a
 * convolutional net, is whole on every rank, but for what the user asks to be divided.
 */
static int check_counts(const struct ku_tensor_plan *p)
{
    const struct ku_graph *g = p->g;
    int n_split = 0;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const struct ku_shape *s = &g->shape[g->tensor[t].shape];
        const int d = p->letter[t] ? ku_shape_find(s, p->letter[t]) : -1;
        if (d >= 0 && !has_parts(p, &s->dim[d]))
            return refuse_count(p, t, &s->dim[d]);
        n_split += d >= 0;
    }
    if (p->o->split_vocabulary && !has_split_vocabulary(p))
        return KU_ERR(
            KUMI_EINVAL,
            "placement: parallel.loss_parallel: the vocabulary of this model cannot be "
            "split: its logits are read by more than the loss, or it has none; use false");
    if (n_split || !p->o->sequence)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL,
                  "placement: parallel.sp: no parameter of this model can be split: %s; use false",
                  p->o->plan.n ? "parallel.plan leaves all of them whole"
                               : "it has no attention heads and no pair of linear layers");
}

/*
 * Splits a parameter along a dim. Of heads axis tpi divides the queries; keys and values, which its
 * ranks share, are R there, since each rank has the gradient of its queries.
 */
static void split_along(const struct ku_graph *g, const struct ku_shape *s, char letter,
                        struct ku_layout *l)
{
    const int d = ku_shape_find(s, letter), inner = letter == 'h' ? ku_shape_find(s, 'r') : d;
    l->at[KU_AX_TP] = (struct ku_place){KU_S, (uint16_t)d};
    if (g->mesh.extent[KU_AX_TPI] > 1)
        l->at[KU_AX_TPI] =
            inner < 0 ? (struct ku_place){.kind = KU_R} : (struct ku_place){KU_S, (uint16_t)inner};
}

/* Places the parameters that are split, and their compute copies. */
static int place_parameters(struct ku_tensor_plan *p)
{
    struct ku_graph *g = p->g;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const ku_id of = parameter_of(g, g->tensor[t].value);
        if (of == 0 || p->letter[of] == 0)
            continue;
        struct ku_layout l = g->layout[g->value[g->tensor[t].value].layout];
        split_along(g, &g->shape[g->tensor[t].shape], p->letter[of], &l);
        const ku_id layout = ku_graph_layout(g, &l);
        if (layout == 0)
            return KUMI_ENOMEM;
        g->value[g->tensor[t].value].layout = layout;
    }
    return KUMI_OK;
}

static void find_uses(struct ku_tensor_plan *p)
{
    const struct ku_graph *g = p->g;
    for (ku_id u = 1; u < g->n_uses; u++)
        if (g->use[u].operand == 2)
            p->bias_use[g->use[u].node] = u;
}

int ku_tensor_plan_choose(struct ku_graph *g, const struct ku_compile_opts *o,
                          struct ku_tensor_plan **plan)
{
    struct ku_tensor_plan *p = ku_calloc(1, sizeof *p);
    if (p == NULL)
        return KUMI_ENOMEM;
    *p = (struct ku_tensor_plan){.g = g, .o = o, .n_nodes = g->n_nodes, .n_values = g->n_values};
    p->parts = o->tp_exact ? o->tp_exact : ku_mesh_tp(&o->mesh);
    p->head_parts = p->parts / o->mesh.extent[KU_AX_TPI];
    /* a row-parallel linear adds the results of a convert and of a bias_add, a loss six; each value
     * may get a convert */
    const size_t n_values = p->max_values = 2 * ((size_t)g->n_values + 6 * (size_t)g->n_nodes);
    p->letter = ku_calloc(g->n_tensors, 1);
    p->split = ku_calloc(g->n_values, 1);
    p->by = ku_calloc(g->n_values, sizeof *p->by);
    p->renamed = ku_calloc(g->n_values, sizeof *p->renamed);
    p->whole = ku_calloc(n_values, sizeof *p->whole);
    p->bias_use = ku_calloc(g->n_nodes, sizeof *p->bias_use);
    int status = KUMI_ENOMEM;
    if (p->letter && p->split && p->by && p->renamed && p->whole && p->bias_use)
        status = ku_styles_create(g, o, &p->styles);
    if (status == KUMI_OK) {
        choose(p);
        status = ku_styles_check(&p->styles, p->letter);
        if (status == KUMI_OK)
            status = check_counts(p);
    }
    if (status < 0)
        ku_tensor_plan_destroy(p);
    else
        *plan = p;
    return status;
}

int ku_tensor_plan_create(struct ku_graph *g, const struct ku_compile_opts *o,
                          struct ku_tensor_plan **plan)
{
    *plan = NULL;
    if (ku_mesh_tp(&g->mesh) == 1)
        return KUMI_OK;
    KU_TRY(ku_tensor_plan_choose(g, o, plan));
    find_uses(*plan);
    int status = place_parameters(*plan);
    if (status == KUMI_OK && o->sequence)
        status = ku_sequence_create(g, &(*plan)->styles, (*plan)->max_values, &(*plan)->seq);
    if (status < 0) {
        ku_tensor_plan_destroy(*plan);
        *plan = NULL;
    }
    return status;
}

char ku_tensor_letter(const struct ku_tensor_plan *p, ku_id tensor)
{
    return p->letter[tensor];
}
char ku_tensor_split_of(const struct ku_tensor_plan *p, ku_id value)
{
    return p->split[value];
}

void ku_tensor_plan_destroy(struct ku_tensor_plan *p)
{
    if (p == NULL)
        return;
    ku_free(p->letter);
    ku_free(p->split);
    ku_free(p->by);
    ku_free(p->renamed);
    ku_free(p->whole);
    ku_free(p->bias_use);
    ku_sequence_destroy(p->seq);
    ku_styles_fini(&p->styles);
    ku_free(p);
}

ku_id ku_tensor_convert(struct ku_graph *g, ku_id value, struct ku_place to, ku_id node)
{
    struct ku_attrs a = ku_attrs_default;
    struct ku_layout l = g->layout[g->value[value].layout];
    a.axes = INT64_C(1) << KU_AX_TP;
    a.reduce = ku_place_is_max(g, value) ? KU_REDUCE_MAX : KU_REDUCE_SUM;
    l.at[KU_AX_TP] = to;
    if (g->mesh.extent[KU_AX_TPI] > 1) {
        a.axes |= INT64_C(1) << KU_AX_TPI;
        l.at[KU_AX_TPI] = to;
    }
    const ku_id layout = ku_graph_layout(g, &l);
    const ku_id made = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                          .phase = KU_PH_F,
                                                          .n_in = 1,
                                                          .in = {value},
                                                          .attr = &a,
                                                          .path = g->name[g->node[node].path],
                                                          .source = g->node[node].source});
    if (layout == 0 || made == 0)
        return 0;
    g->value[ku_out(g, made, 0)].layout = layout;
    return ku_out(g, made, 0);
}

static ku_id convert(struct ku_graph *g, ku_id value, enum ku_place_kind to, ku_id node)
{
    return ku_tensor_convert(g, value, (struct ku_place){.kind = (uint16_t)to}, node);
}

/* An op of the loss on one rank's classes, or on sums of all. Returns its node; 0 on failure. */
static ku_id of_loss(struct ku_graph *g, ku_id like, int op, const struct ku_attrs *a, int n_in,
                     const ku_id *in)
{
    struct ku_make m = {.op = op,
                        .phase = KU_PH_F,
                        .n_in = n_in,
                        .attr = a,
                        .path = g->name[g->node[like].path],
                        .source = g->node[like].source,
                        .is_silent = 1};
    memcpy(m.in, in, (size_t)n_in * sizeof *in);
    const ku_id made = ku_graph_node(g, &m);
    return made && ku_place_node(g, made) == KUMI_OK ? made : 0;
}

/* softmax_xent of logits whose classes are split: in three parts, with maximum and sums over the
 * ranks between them. */
static int divide_loss(struct ku_tensor_plan *p, ku_id node)
{
    struct ku_graph *g = p->g;
    const struct ku_node n = g->node[node];
    const ku_id x = ku_in(g, &n, 0), targets = ku_in(g, &n, 1);
    struct ku_attrs a = g->attr[n.attr];
    a.rows_seen = shape_of(g, x)->dim[shape_of(g, x)->ndim - 1].seen;
    g->node[node].op = KU_OP_NONE;
    ku_id made = of_loss(g, node, KU_OP_xent_max, &a, 1, &x);
    const ku_id max = made ? convert(g, ku_out(g, made, 0), KU_C, node) : 0;
    made = max ? of_loss(g, node, KU_OP_xent_sums, &a, 3, (ku_id[]){x, max, targets}) : 0;
    const ku_id sums = made ? convert(g, ku_out(g, made, 0), KU_C, node) : 0;
    made = sums ? of_loss(g, node, KU_OP_xent_finish, &a, 4, (ku_id[]){x, max, sums, targets}) : 0;
    for (int i = 0; i < n.n_out && made; i++)
        p->renamed[ku_out(g, node, i)] = ku_out(g, made, i);
    return made ? KUMI_OK : ku_err_get()->status;
}

/* Of the slices of a sum, a rank has those of its part. */
static int take_slices(struct ku_graph *g, ku_id node)
{
    struct ku_attrs a = g->attr[g->node[node].attr];
    KU_ASSERT(a.slices % ku_mesh_tp(&g->mesh) == 0);
    a.slices /= ku_mesh_tp(&g->mesh);
    g->node[node].attr = ku_graph_attr(g, &a);
    return g->node[node].attr ? KUMI_OK : KUMI_ENOMEM;
}

static bool is_norm(int op)
{
    return op == KU_OP_layer_norm || op == KU_OP_rms_norm;
}

/* The dim of tokens by which the ranks divide a value with parallel.sp; -1: they do not. */
static int tokens_of(const struct ku_graph *g, ku_id value)
{
    const struct ku_place at = g->layout[g->value[value].layout].at[KU_AX_TP];
    const int t = ku_shape_find(shape_of(g, value), 't');
    return at.kind == KU_S && at.dim == t ? t : -1;
}

/*
 * With tp_exact the gradient of a parameter that is read beside x, a part of the sequence, has the
 * same bits for every tp.
 *
 *   has_slices   it is a sum in slices of the tokens (ku_slices_of_tokens), or of one rank's rows
 *                and zeros
 */
static int check_sum_over_tokens(const struct ku_tensor_plan *p, ku_id param, int op, ku_id x,
                                 bool has_slices)
{
    const struct ku_graph *g = p->g;
    const int t = tokens_of(g, x);
    KU_ASSERT(param && p->seq);
    if (p->o->tp_exact == 0 || t < 0)
        return KUMI_OK;
    const int64_t count = shape_of(g, x)->dim[t].count;
    if (!has_slices)
        return KU_ERR(KUMI_EINVAL,
                      "placement: parallel.sp: the gradient of %s (%s) sums over tokens in an "
                      "order that depends on tp; use false with parallel.tp_exact",
                      g->tensor[param].name, ku_ops[op].name);
    return count % p->parts == 0
               ? KUMI_OK
               : KU_ERR(KUMI_EINVAL,
                        "placement: parallel.sp: the gradient of %s (%s) is a sum over %lld "
                        "tokens that has no %d equal slices; use false with parallel.tp_exact",
                        g->tensor[param].name, ku_ops[op].name, (long long)count, p->parts);
}

/* The parameter of a value if it has a gradient; 0: it has none. */
static ku_id trained_of(const struct ku_tensor_plan *p, ku_id value)
{
    const ku_id t = parameter_of(p->g, value);
    return t && !ku_is_frozen(p->o, p->g->tensor[t].name) ? t : 0;
}

/* A node outside the divided layers, with parallel.sp. */
static int before_on_sequence(struct ku_tensor_plan *p, ku_id node)
{
    struct ku_graph *g = p->g;
    KU_TRY(ku_sequence_before(p->seq, node));
    const struct ku_node *n = &g->node[node];
    const ku_id x = n->n_in ? ku_in(g, n, 0) : 0;
    ku_id param = 0;
    for (int i = 0; i < n->n_in && param == 0; i++)
        param = trained_of(p, ku_in(g, n, i));
    for (int i = 0; i < n->n_in && param; i++) {
        const ku_id v = ku_in(g, n, i);
        const bool has_rows = is_norm(n->op) && tokens_of(g, v) == shape_of(g, v)->ndim - 2;
        KU_TRY(check_sum_over_tokens(p, param, n->op, v, has_rows || n->op == KU_OP_add_rows));
    }
    return is_norm(n->op) && p->o->tp_exact && tokens_of(g, x) >= 0 ? take_slices(g, node)
                                                                    : KUMI_OK;
}

int ku_tensor_before(struct ku_tensor_plan *p, ku_id node)
{
    struct ku_graph *g = p->g;
    const bool is_divided = g->node[node].op == KU_OP_softmax_xent &&
                            p->split[ku_in(g, &g->node[node], 0)] != 0; /* before it is renamed */
    for (int i = 0; i < g->node[node].n_in; i++) {
        const ku_id v = ku_in(g, &g->node[node], i);
        if (v < p->n_values && p->renamed[v])
            g->refs[g->node[node].in + (uint32_t)i] = p->renamed[v];
    }
    if (g->attr[g->node[node].attr].slices && !is_norm(g->node[node].op))
        KU_TRY(take_slices(g, node));
    const struct ku_node n = g->node[node];
    if (is_divided)
        return divide_loss(p, node);
    if (letter_of(p, &n) == 0 && p->seq)
        return before_on_sequence(p, node);
    if (letter_of(p, &n) == 0)
        return KUMI_OK;
    if (n.op == KU_OP_embedding)
        return KUMI_OK;
    const ku_id x = ku_in(g, &n, 0);
    if (is_row_parallel(p, &n)) { /* the product alone: bias and rounding follow the sum */
        struct ku_attrs a = g->attr[n.attr];
        ku_id y = ku_out(g, node, 0);
        KU_ASSERT(n.n_out == 1 && a.act == KU_ACT_NONE);
        g->node[node].n_in = 2;
        if (p->o->tp_reduce == KUMI_BF16 ||
            kumi_dtype_bytes((enum kumi_dtype)g->value[y].dtype) < kumi_dtype_bytes(KUMI_F32))
            a.dtype = g->value[y].dtype = p->o->tp_reduce == KUMI_BF16 ? KUMI_BF16 : KUMI_F32;
        g->node[node].attr = ku_graph_attr(g, &a);
        return g->node[node].attr ? KUMI_OK : KUMI_ENOMEM;
    }
    /* with tp_exact each reader's gradient is summed and rounded alone, as on one rank */
    const ku_id whole =
        p->whole[x] && p->o->tp_exact == 0 ? p->whole[x] : convert(g, x, KU_R, node);
    g->refs[n.in] = p->whole[x] = whole;
    return whole ? KUMI_OK : ku_err_get()->status;
}

/* The bias of a row-parallel layer beside its sum, with parallel.sp. */
static int read_bias(struct ku_tensor_plan *p, ku_id node, ku_id bias, ku_id sum)
{
    const struct ku_graph *g = p->g;
    const ku_id param = trained_of(p, bias);
    const int row = shape_of(g, sum)->ndim - 1 - (int)g->attr[g->node[node].attr].outs;
    KU_TRY(ku_sequence_read(p->seq, bias, sum, node));
    return param ? check_sum_over_tokens(p, param, KU_OP_bias_add, sum, tokens_of(g, sum) == row)
                 : KUMI_OK;
}

/* Adds the bias to the sum, if there is one, and rounds to `dtype`; 0 on failure. */
static ku_id add_bias(struct ku_tensor_plan *p, ku_id node, ku_id sum, enum kumi_dtype dtype)
{
    struct ku_graph *g = p->g;
    const ku_id use = p->bias_use[node];
    struct ku_attrs a = ku_attrs_default;
    if (use == 0 && g->value[sum].dtype == dtype)
        return sum;
    a.outs = g->attr[g->node[node].attr].outs;
    a.dtype = g->value[sum].dtype == dtype ? -1 : (int64_t)dtype;
    a.slices = p->o->tp_exact / (tokens_of(g, sum) < 0 ? 1 : ku_mesh_tp(&g->mesh));
    struct ku_make m = {.op = KU_OP_bias_add,
                        .phase = KU_PH_F,
                        .n_in = use ? 2 : 1,
                        .in = {sum},
                        .attr = &a,
                        .path = g->name[g->node[node].path],
                        .source = g->node[node].source,
                        .is_silent = 1};
    if (use) /* the third operand, which the node no longer counts */
        m.in[1] = g->refs[g->node[node].in + 2];
    if (use && p->seq && read_bias(p, node, m.in[1], sum) < 0)
        return 0;
    const ku_id made = ku_graph_node(g, &m);
    if (made == 0 || ku_place_node(g, made) < 0)
        return 0;
    if (use) {
        g->use[use].node = made;
        g->use[use].operand = 1;
    }
    return ku_out(g, made, 0);
}

int ku_tensor_after(struct ku_tensor_plan *p, ku_id node)
{
    struct ku_graph *g = p->g;
    const ku_id y = ku_out(g, node, 0);
    if (g->node[node].op == KU_OP_xent_max || g->node[node].op == KU_OP_xent_sums) {
        const bool is_part = g->layout[g->value[y].layout].at[KU_AX_TP].kind == KU_P;
        p->renamed[y] = is_part ? convert(g, y, KU_C, node) : y;
        return p->renamed[y] ? KUMI_OK : ku_err_get()->status;
    }
    if (is_gathered(p, &g->node[node])) {
        p->renamed[y] = convert(g, y, KU_C, node);
        return p->renamed[y] ? KUMI_OK : ku_err_get()->status;
    }
    if (!is_row_parallel(p, &g->node[node]))
        return KUMI_OK;
    const ku_id x = ku_in(g, &g->node[node], 0);
    const enum kumi_dtype dtype = (enum kumi_dtype)g->value[x].dtype;
    KU_ASSERT(g->layout[g->value[y].layout].at[KU_AX_TP].kind == KU_P);
    const ku_id sum = p->seq ? ku_sequence_sum(p->seq, y, node) : convert(g, y, KU_C, node);
    p->renamed[y] = sum ? add_bias(p, node, sum, dtype) : 0;
    return p->renamed[y] ? KUMI_OK : ku_err_get()->status;
}

int ku_tensor_finish(struct ku_tensor_plan *p)
{
    struct ku_graph *g = p->g;
    for (uint32_t i = 0; i < g->n_outputs; i++)
        if (g->output[i].value < p->n_values && p->renamed[g->output[i].value])
            g->output[i].value = p->renamed[g->output[i].value];
    return p->seq ? ku_sequence_finish(p->seq) : KUMI_OK;
}
