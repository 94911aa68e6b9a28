/* SPDX-License-Identifier: Apache-2.0 */
#include "pass/place/sequence.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "op/op.h"
#include "pass/place/user_plan.h"
#include "pass/place/tensor_parallel.h"

struct ku_sequence {
    struct ku_graph *g;
    const struct ku_styles *styles;
    ku_id *part, *whole; /* per value: its convert to S(t), and from S(t) to C; 0: none yet */
    ku_id *reader;       /* per tensor: a node that reads it whole, 0: none */
    bool has_region;
};

static int dim_of(const struct ku_graph *g, ku_id value)
{
    return ku_shape_find(&g->shape[g->value[value].shape], 't');
}

static struct ku_place place_of(const struct ku_graph *g, ku_id value)
{
    return g->layout[g->value[value].layout].at[KU_AX_TP];
}

static bool is_part(const struct ku_graph *g, ku_id value)
{
    const struct ku_place at = place_of(g, value);
    return at.kind == KU_S && at.dim == dim_of(g, value);
}

int ku_sequence_create(struct ku_graph *g, const struct ku_styles *styles, size_t n_values,
                       struct ku_sequence **seq)
{
    struct ku_sequence *s = ku_calloc(1, sizeof *s);
    if (s == NULL)
        return KUMI_ENOMEM;
    s->g = g;
    s->styles = styles;
    s->part = ku_calloc(n_values, sizeof *s->part);
    s->whole = ku_calloc(n_values, sizeof *s->whole);
    s->reader = ku_calloc(g->n_tensors, sizeof *s->reader);
    if (!s->part || !s->whole || !s->reader) {
        ku_sequence_destroy(s);
        return KUMI_ENOMEM;
    }
    *seq = s;
    return KUMI_OK;
}

void ku_sequence_destroy(struct ku_sequence *s)
{
    if (s == NULL)
        return;
    ku_free(s->part);
    ku_free(s->whole);
    ku_free(s->reader);
    ku_free(s);
}

/* The tensor of a value that is a parameter or its compute copy; 0: it is none. */
static ku_id tensor_of(const struct ku_graph *g, ku_id value)
{
    const ku_id t = g->value[value].role == KU_STATE ? g->value[value].tensor : 0;
    const int kind = g->tensor[t].kind;
    return t && (kind == KU_T_PARAM || kind == KU_T_DERIVED) ? t : 0;
}

static struct ku_place split_of(struct ku_sequence *s, ku_id value)
{
    s->has_region = true;
    return (struct ku_place){KU_S, (uint16_t)dim_of(s->g, value)};
}

static int check_length(const struct ku_graph *g, ku_id value, ku_id node)
{
    const int64_t count = g->shape[g->value[value].shape].dim[dim_of(g, value)].count;
    const int tp = ku_mesh_tp(&g->mesh);
    const char *path = g->name[g->node[node].path];
    return count >= tp
               ? KUMI_OK
               : KU_ERR(KUMI_EINVAL,
                        "placement: parallel.sp: sequences of %lld tokens do not divide into the "
                        "%d parts of parallel.tp (%s); use sequences of at least %d tokens, or "
                        "parallel.sp false",
                        (long long)count, tp, path[0] ? path : ku_ops[g->node[node].op].name, tp);
}

int ku_sequence_read(struct ku_sequence *s, ku_id param, ku_id x, ku_id node)
{
    struct ku_graph *g = s->g;
    const ku_id t = tensor_of(g, param), of = g->tensor[t].of ? g->tensor[t].of : t;
    struct ku_layout l = g->layout[g->value[param].layout];
    if (t == 0 || !is_part(g, x))
        return KUMI_OK;
    if (l.at[KU_AX_TP].kind == KU_S || s->reader[t])
        return KU_ERR(KUMI_EINVAL,
                      "placement: parallel.sp: %s is read beside a part of the sequence (%s) and "
                      "otherwise (%s); use parallel.sp false",
                      g->tensor[t].name, g->name[g->node[node].path],
                      s->reader[t] ? g->name[g->node[s->reader[t]].path] : "divided over tp");
    l.at[KU_AX_TP].kind = KU_R;
    if (g->mesh.extent[KU_AX_TPI] > 1)
        l.at[KU_AX_TPI].kind = KU_R;
    const ku_id layout = ku_graph_layout(g, &l);
    for (ku_id i = 1; i < g->n_tensors && layout; i++) /* and the copies of the parameter */
        if (i == of || (g->tensor[i].of == of && g->tensor[i].kind == KU_T_DERIVED))
            g->value[g->tensor[i].value].layout = layout;
    return layout ? KUMI_OK : KUMI_ENOMEM;
}

/* The convert of a value, of which its readers share one; 0 with the error record set. */
static ku_id shared(struct ku_sequence *s, ku_id *made, ku_id value, struct ku_place to, ku_id node)
{
    if (made[value] == 0)
        made[value] = ku_tensor_convert(s->g, value, to, node);
    return made[value];
}

/* Whether an op can be computed on a part of the sequence, of results that have it. */
static bool passes(const struct ku_graph *g, ku_id node)
{
    const struct ku_op_info *op = &ku_ops[g->node[node].op];
    /* Statistics of a micro-batch are summed over data-parallel ranks, not over parts of samples */
    if (g->node[node].op == KU_OP_batch_norm_sums || (op->traits & KU_OP_MICRO))
        return false;
    for (int o = 0; o < g->node[node].n_out; o++) {
        const char *letters = dim_of(g, ku_out(g, node, o)) >= 0 ? op->map : op->sum;
        if (strcmp(letters, "*") != 0 && strchr(letters, 't') == NULL)
            return false;
    }
    return true;
}

/* Whether the user's plan leaves the module of a parameter that a node reads whole. */
static bool is_replicated(const struct ku_sequence *s, ku_id node)
{
    const struct ku_node *n = &s->g->node[node];
    for (int i = 0; i < n->n_in; i++) {
        const ku_id t = tensor_of(s->g, ku_in(s->g, n, i));
        if (t &&
            ku_styles_of(s->styles, s->g->tensor[t].of ? s->g->tensor[t].of : t) == KU_TP_REPLICATE)
            return true;
    }
    return false;
}

/* Whether a region begins here: rows of a whole table for every token. */
static bool begins(const struct ku_graph *g, ku_id node)
{
    const struct ku_node *n = &g->node[node];
    return n->op == KU_OP_embedding && place_of(g, ku_in(g, n, 0)).kind != KU_S &&
           dim_of(g, ku_in(g, n, 1)) >= 0;
}

/* Operand i as the node reads it: a part of the sequence. */
static int split_operand(struct ku_sequence *s, ku_id node, int i, ku_id beside)
{
    struct ku_graph *g = s->g;
    const ku_id v = ku_in(g, &g->node[node], i);
    if (tensor_of(g, v))
        return ku_sequence_read(s, v, beside, node);
    if (is_part(g, v) || dim_of(g, v) < 0)
        return KUMI_OK;
    KU_TRY(check_length(g, v, node));
    const ku_id part = shared(s, s->part, v, split_of(s, v), node);
    g->refs[g->node[node].in + (uint32_t)i] = part;
    return part ? KUMI_OK : ku_err_get()->status;
}

/* Operand i whole. */
static int gather_operand(struct ku_sequence *s, ku_id node, int i)
{
    struct ku_graph *g = s->g;
    const ku_id v = ku_in(g, &g->node[node], i), t = tensor_of(g, v);
    if (t)
        s->reader[t] = node;
    if (!is_part(g, v))
        return KUMI_OK;
    const ku_id whole = shared(s, s->whole, v, (struct ku_place){.kind = KU_C}, node);
    g->refs[g->node[node].in + (uint32_t)i] = whole;
    return whole ? KUMI_OK : ku_err_get()->status;
}

int ku_sequence_before(struct ku_sequence *s, ku_id node)
{
    struct ku_graph *g = s->g;
    ku_id beside = 0;
    for (int i = 0; i < g->node[node].n_in && beside == 0; i++)
        if (is_part(g, ku_in(g, &g->node[node], i)))
            beside = ku_in(g, &g->node[node], i);
    const bool is_whole = is_replicated(s, node), is_split = beside && !is_whole && passes(g, node);
    if (beside == 0 && !is_whole && begins(g, node)) {
        KU_TRY(split_operand(s, node, 1, 0));
        return split_operand(s, node, 0, ku_in(g, &g->node[node], 1));
    }
    for (int i = 0; i < g->node[node].n_in; i++)
        KU_TRY(is_split ? split_operand(s, node, i, beside) : gather_operand(s, node, i));
    return KUMI_OK;
}

ku_id ku_sequence_sum(struct ku_sequence *s, ku_id value, ku_id node)
{
    if (dim_of(s->g, value) < 0)
        return ku_tensor_convert(s->g, value, (struct ku_place){.kind = KU_C}, node);
    return check_length(s->g, value, node) == KUMI_OK
               ? ku_tensor_convert(s->g, value, split_of(s, value), node)
               : 0;
}

int ku_sequence_finish(struct ku_sequence *s)
{
    return s->has_region ? KUMI_OK
                         : KU_ERR(KUMI_EINVAL, "placement: parallel.sp: this model has no "
                                               "sequences to split; use false");
}
