/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the model defines, derived anew: backward by the gradient templates of the op table, then
 * the terms of all values of every micro-batch, then the canonical sum of every gradient and
 * output:
 *
 *     grad_sync: step     per virtual shard v: s_v = g(v,0) + g(v,1) + .., then the tree over v,
 *                         then the sum over ranks
 *     grad_sync: micro    per m: the tree over v of g(v,m), the sum over ranks, then m in order
 *
 * The uses of a tied parameter are added in use order after that.
 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/math/exact.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "check/proof.h"
#include "tensor/dtype.h"

struct derive {
    struct ku_proof *c;
    struct ku_graph *g;
    ku_id n_forward;
    ku_id *adjoint;         /* per forward value */
    ku_id *use_grad;        /* per use */
    ku_id *use_at;          /* per forward node: its first use of a tensor */
    ku_id *next_use;        /* per use: the next one of its node */
    uint32_t *sum_of;       /* per value: index in `list` + 1; 0: not summed */
    unsigned char *wanted;  /* per forward value: depends on a trainable parameter */
    ku_id last;             /* node of the previous statement */
    uint64_t *attr;         /* per attribute id: its hash */
    uint64_t *term;         /* per value: of the current micro-batch */
    unsigned char *partial; /* per value: accumulated over micro-batches and ranks */
    char *split;            /* per value: how the ranks of axis tp divide it */
    uint8_t *samples;       /* per value: 1 + the index of its dim of samples (samples.c) */
    char *forward;  /* the same of the model's values, for differentiate; NULL: not needed */
    uint64_t *sum;  /* [n_sums][n_micro] terms to add up */
    uint64_t *leaf; /* [n_vs] scratch */
    struct sum {
        ku_id value;
        int by_micro, wire, is_max, is_concat;
        int is_common; /* ranks have added it up already */
        bool is_gradient;
        uint64_t port; /* hash of its port's name, for a parameter server */
    } * list;
    uint32_t n_sums;
};

static ku_id parameter_of(const struct ku_graph *g, ku_id value)
{
    if (g->value[value].role != KU_STATE)
        return 0;
    ku_id t = g->value[value].tensor;
    return g->tensor[t].kind == KU_T_DERIVED ? g->tensor[t].of : t;
}

static bool is_trainable(const struct ku_proof *c, ku_id t)
{
    const struct ku_tensor *x = &c->model->tensor[t];
    for (int i = 0; c->o->freeze && c->o->freeze[i]; i++)
        if (ku_str_glob(c->o->freeze[i], x->name))
            return 0;
    return x->kind == KU_T_PARAM && x->trainable && x->used;
}

static ku_id append(struct derive *d, int op, const ku_id *in, int n_in, const struct ku_attrs *a,
                    ku_id like)
{
    struct ku_make m = {.op = op,
                        .phase = KU_PH_I,
                        .n_in = n_in,
                        .attr = a,
                        .path = d->g->name[d->g->node[like].path],
                        .stream = d->g->node[like].stream,
                        .is_silent = 1};
    if (n_in > 0)
        memcpy(m.in, in, (size_t)n_in * sizeof *in);
    return ku_graph_node(d->g, &m);
}

static size_t bytes_of(int dtype)
{
    return kumi_dtype_bytes((enum kumi_dtype)dtype);
}

/* A value in a dtype; 0: no memory. */
static ku_id cast_to(struct derive *d, ku_id value, int dtype, ku_id like)
{
    struct ku_attrs a = ku_attrs_default;
    if (d->g->value[value].dtype == dtype)
        return value;
    a.dtype = dtype;
    const ku_id made = append(d, KU_OP_cast, &value, 1, &a, like);
    return made ? ku_out(d->g, made, 0) : 0;
}

/* One statement "g0,g1=op(d0,i1)" or "g0=d0". Returns the text after it; NULL: no memory. */
struct statement {
    int target[KU_MAX_IN], n_targets, op, n_in;
    char kind[KU_MAX_IN];
    int index[KU_MAX_IN];
};
static const char *read_statement(const char *p, int n_in, struct statement *s)
{
    char op[32] = {0};
    *s = (struct statement){0};
    p += strspn(p, " ;");
    for (; *p && *p != '='; p++)
        if (*p == 'g')
            s->target[s->n_targets++] = p[1] - '0';
    KU_ASSERT(*p == '=');
    size_t bytes = strcspn(++p, "(;");
    KU_ASSERT(bytes < sizeof op);
    memcpy(op, p, bytes);
    p += bytes;
    if (*p != '(') {
        s->kind[0] = op[0];
        s->index[0] = op[1] - '0';
        return p;
    }
    s->op = ku_op_find(op);
    KU_ASSERT(s->op != KU_OP_NONE);
    for (p++; *p != ')'; p += p[0] == ',') {
        int first = p[1] - '0', rest = p[2] == '+';
        for (int i = first; rest ? i < n_in : i == first; i++) {
            KU_ASSERT(s->n_in < KU_MAX_IN);
            s->kind[s->n_in] = *p;
            s->index[s->n_in++] = i;
        }
        p += rest ? 3 : 2;
    }
    return p + 1;
}

/* Whether the gradients of a node's parameters are sums of which each rank of axis tp has slices,
 * of its part of the sequence: they are complete before micro-batches add up. */
static bool has_slices(const struct derive *d, ku_id node)
{
    const struct ku_node *n = &d->g->node[node];
    return d->forward && d->g->attr[n->attr].slices && d->forward[ku_in(d->g, n, 0)] == 't';
}

static int contribute(struct derive *d, ku_id node, int operand, ku_id adjoint)
{
    struct ku_graph *g = d->g;
    const enum kumi_dtype grads = d->c->o->compute == KUMI_F64 ? KUMI_F64 : d->c->o->grads;
    ku_id v = ku_in(g, &g->node[node], operand), made;
    if (!d->wanted[v])
        return KUMI_OK;
    if (parameter_of(g, v)) {
        if (has_slices(d, node)) {
            made = append(d, KU_OP_convert, &adjoint, 1, &ku_attrs_default, node);
            struct ku_attrs a = ku_attrs_default;
            adjoint = made ? ku_out(g, made, 0) : 0;
            a.value = 1;
            made = made ? append(d, KU_OP_scale, &adjoint, 1, &a, node) : 0;
            if (made == 0)
                return ku_err_get()->status;
            adjoint = ku_out(g, made, 0);
        }
        adjoint = cast_to(d, adjoint, grads, node);
        if (adjoint == 0)
            return ku_err_get()->status;
        for (ku_id u = d->use_at[node]; u; u = d->next_use[u])
            if (g->use[u].operand == operand)
                d->use_grad[u] = adjoint;
        return KUMI_OK;
    }
    if (d->adjoint[v]) {
        const int one = g->value[d->adjoint[v]].dtype, two = g->value[adjoint].dtype;
        const int wide = bytes_of(one) < bytes_of(two) ? two : one;
        const ku_id pair[] = {cast_to(d, d->adjoint[v], wide, node),
                              cast_to(d, adjoint, wide, node)};
        made = pair[0] && pair[1] ? append(d, KU_OP_add, pair, 2, &ku_attrs_default, node) : 0;
        if (made == 0)
            return ku_err_get()->status;
        adjoint = ku_out(g, made, 0);
    }
    d->adjoint[v] = adjoint;
    return KUMI_OK;
}

/* An adjoint that passes through a node; what a parameter's use gets is a copy. */
static int pass_on(struct derive *d, ku_id node, int operand, ku_id adjoint)
{
    const ku_id v = ku_in(d->g, &d->g->node[node], operand);
    if (d->wanted[v] && parameter_of(d->g, v)) {
        struct ku_attrs a = ku_attrs_default;
        a.value = 1;
        const ku_id copy = append(d, KU_OP_scale, &adjoint, 1, &a, node);
        if (copy == 0)
            return ku_err_get()->status;
        adjoint = ku_out(d->g, copy, 0);
    }
    return contribute(d, node, operand, adjoint);
}

/* Whether a statement makes only parameter gradients by an op that accumulates in their dtype. */
static bool makes_gradients(const struct derive *d, ku_id node, const struct statement *s)
{
    for (int i = 0; i < s->n_targets; i++)
        if (s->target[i] < d->g->node[node].n_in &&
            !parameter_of(d->g, ku_in(d->g, &d->g->node[node], s->target[i])))
            return 0;
    return (ku_ops[s->op].traits & KU_OP_ACCUM) && ku_ops[s->op].max_out == s->n_targets;
}

/* Attribute dtype of an op of backward: a part of a product (axis tp) is f32. */
static int64_t result_dtype(const struct derive *d, ku_id node, int op)
{
    const struct ku_graph *g = d->g;
    const struct ku_node *n = &g->node[node];
    const enum kumi_dtype x = n->n_in ? (enum kumi_dtype)g->value[ku_in(g, n, 0)].dtype : KUMI_F32;
    const ku_id def = n->n_in ? g->value[ku_in(g, n, 0)].def : 0;
    if (op == KU_OP_cast)
        return x;
    const bool is_part = op == KU_OP_linear_dx && def && g->node[def].op == KU_OP_convert &&
                         g->attr[g->node[def].attr].index == 1;
    return is_part && kumi_dtype_bytes(x) < kumi_dtype_bytes(KUMI_F32) ? KUMI_F32 : -1;
}

/* Gradients of the converts of axis tp (tensor_split.c); a sum is rounded to x's dtype. */
static int pass_convert(struct derive *d, ku_id node)
{
    static const uint8_t dual[] = {[KU_TENSOR_SUM] = KU_TENSOR_GATHER,
                                   [KU_TENSOR_GATHER] = KU_TENSOR_SUM,
                                   [KU_TENSOR_PART] = KU_TENSOR_JOIN,
                                   [KU_TENSOR_JOIN] = KU_TENSOR_PART};
    struct ku_graph *g = d->g;
    ku_id adjoint = d->adjoint[ku_out(g, node, 0)];
    const struct ku_attrs own = g->attr[g->node[node].attr];
    const int x = g->value[ku_in(g, &g->node[node], 0)].dtype;
    struct ku_attrs a = ku_attrs_default;
    if (own.index == KU_TENSOR_SUM && own.shift == 0)
        return contribute(d, node, 0, adjoint);
    if (own.index == KU_TENSOR_GATHER && d->c->o->tp_reduce == KUMI_BF16)
        adjoint = cast_to(d, adjoint, KUMI_BF16, node); /* each rank rounds once */
    if (adjoint == 0)
        return ku_err_get()->status;
    a.index = dual[own.index];
    a.shift = own.shift;
    ku_id made = append(d, KU_OP_convert, &adjoint, 1, &a, node);
    adjoint = made ? ku_out(g, made, 0) : 0;
    if (made && own.index == KU_TENSOR_GATHER)
        adjoint = cast_to(d, adjoint, x, node);
    return adjoint ? contribute(d, node, 0, adjoint) : ku_err_get()->status;
}

/*
 * The adjoint of result y as a statement reads it: beside values in a narrow dtype one that is
 * wider than y is rounded to y's dtype. 0: no memory.
 */
static ku_id rounded(struct derive *d, ku_id node, const struct statement *s, ku_id y)
{
    const struct ku_graph *g = d->g;
    const ku_id adjoint = d->adjoint[y];
    const size_t bytes = bytes_of(g->value[adjoint].dtype);
    bool is_too_wide = false;
    for (int i = 0; i < s->n_in; i++) {
        const ku_id v = s->kind[i] == 'i' ? ku_in(g, &g->node[node], s->index[i]) : 0;
        const int dtype = g->value[v].dtype;
        if (v && ku_dtype_is_float((enum kumi_dtype)dtype) && bytes_of(dtype) < bytes)
            is_too_wide = bytes_of(g->value[y].dtype) < bytes;
    }
    return is_too_wide ? cast_to(d, adjoint, g->value[y].dtype, node) : adjoint;
}

static int apply(struct derive *d, ku_id node, const struct statement *s)
{
    struct ku_graph *g = d->g;
    ku_id in[KU_MAX_IN];
    for (int i = 0; i < (s->op ? s->n_in : 1); i++) {
        ku_id adjoint = s->kind[i] == 'd' ? d->adjoint[ku_out(g, node, s->index[i])] : 0;
        in[i] = s->kind[i] == 'i'   ? ku_in(g, &g->node[node], s->index[i])
                : s->kind[i] == 'o' ? ku_out(g, node, s->index[i])
                : s->kind[i] == 't' ? ku_out(g, d->last, s->index[i])
                                    : adjoint;
        if (in[i] == 0)
            return KUMI_OK;
    }
    if (s->op == KU_OP_NONE)
        return pass_on(d, node, s->target[0], in[0]);
    for (int i = 0; i < s->n_in; i++) {
        in[i] = s->kind[i] == 'd' ? rounded(d, node, s, ku_out(g, node, s->index[i])) : in[i];
        if (in[i] == 0)
            return ku_err_get()->status;
    }
    struct ku_attrs a = g->attr[g->node[node].attr];
    a.dtype = result_dtype(d, node, s->op);
    if (kumi_dtype_bytes(d->c->o->grads) < kumi_dtype_bytes(KUMI_F32) &&
        makes_gradients(d, node, s))
        a.dtype = d->c->o->grads;
    if (s->op == KU_OP_embedding_dw && ku_mesh_tp(&d->c->mesh) > 1) {
        const ku_id t = g->value[ku_in(g, &g->node[node], 0)].tensor;
        const uint32_t own = t ? ku_proof_state(d->c, ku_term_state(g->tensor[t].name, NULL)) : 0;
        const int axes = d->c->mesh.extent[KU_AX_TPI] > 1 ? KU_TP_AXES : 1 << KU_AX_TP;
        a.axes = own && ku_proof_split_of_state(d->c, own - 1) ? axes : 0;
    }
    ku_id made = append(d, s->op, in, s->n_in, &a, node);
    if (made == 0)
        return ku_err_get()->status;
    d->last = made;
    for (int i = 0; i < s->n_targets; i++)
        if (s->target[i] < g->node[node].n_in)
            KU_TRY(contribute(d, node, s->target[i], ku_out(g, made, i)));
    return KUMI_OK;
}

static int seed(struct derive *d)
{
    struct ku_graph *g = d->g;
    const struct ku_mesh *mesh = &d->c->mesh;
    ku_id loss = ku_graph_find_output(g, "loss_sum");
    struct ku_attrs a = ku_attrs_default;
    if (loss == 0 || g->value[loss].def == 0)
        return KU_ERR(KUMI_EPLAN, "check: the model has no loss to differentiate");
    const struct ku_value *v = &g->value[ku_in(g, &g->node[g->value[loss].def], 0)];
    int64_t each = ku_shape_count(&g->shape[v->shape]) / ku_mesh_dp(mesh) / ku_mesh_n_micro(mesh);
    for (d->c->shift = 0; ((int64_t)1 << d->c->shift) < each;)
        d->c->shift++;
    a.dtype = d->c->o->compute == KUMI_F64 ? KUMI_F64 : KUMI_F32;
    a.shift = d->c->shift;
    ku_update_scaler_of(&d->c->o->rule, &a);
    ku_id made = append(d, KU_OP_loss_seed, NULL, 0, &a, g->value[loss].def);
    if (made == 0)
        return ku_err_get()->status;
    d->adjoint[loss] = ku_out(g, made, 0);
    return KUMI_OK;
}

static int differentiate(struct derive *d)
{
    struct ku_graph *g = d->g;
    for (ku_id v = 1; v < g->n_values; v++) {
        ku_id t = parameter_of(g, v);
        d->wanted[v] = t && is_trainable(d->c, t);
    }
    for (ku_id n = 1; n < d->n_forward; n++)
        for (int i = 0; i < g->node[n].n_in && g->node[n].op; i++)
            for (int k = 0; k < g->node[n].n_out; k++)
                d->wanted[ku_out(g, n, k)] |= d->wanted[ku_in(g, &g->node[n], i)];
    KU_TRY(seed(d));
    for (ku_id n = d->n_forward - 1; n > 0; n--) {
        struct statement s;
        int has = 0;
        for (int i = 0; i < g->node[n].n_out && g->node[n].op; i++)
            has |= d->adjoint[ku_out(g, n, i)] != 0 && d->wanted[ku_out(g, n, 0)];
        const char *p = ku_ops[g->node[n].op].grad;
        if (has && g->node[n].op == KU_OP_convert)
            KU_TRY(pass_convert(d, n));
        while (has && *p) {
            p = read_statement(p, g->node[n].n_in, &s);
            KU_TRY(apply(d, n, &s));
        }
    }
    return KUMI_OK;
}

/* Values that micro-batches add up: gradients of uses, partial outputs, running statistics. */
static void add_sum(struct derive *d, struct sum s)
{
    d->partial[s.value] |= !s.is_common;
    if (d->sum_of[s.value])
        return;
    d->list[d->n_sums++] = s;
    d->sum_of[s.value] = d->n_sums;
}

/* The port of the gradient of a use. */
static uint64_t port_of_use(const struct derive *d, ku_id use)
{
    const struct ku_graph *m = d->c->model;
    int nth = 0;
    for (ku_id u = 1; u < use; u++)
        nth += d->use_grad[u] && m->use[u].tensor == m->use[use].tensor;
    return ku_cut_gradient(m, m->use[use].tensor, nth);
}

static void find_samples(struct derive *d)
{
    const struct ku_graph *g = d->g;
    for (uint32_t i = 0; i < g->n_inputs; i++)
        d->samples[g->input[i].value] = ku_model_samples(g, g->input[i].value, NULL);
    for (ku_id n = 1; n < g->n_nodes; n++)
        for (int i = 0; g->node[n].op != KU_OP_NONE && i < g->node[n].n_out; i++)
            d->samples[ku_out(g, n, i)] = ku_model_samples(g, ku_out(g, n, i), d->samples);
}

/* A metric of a value without samples, as of a parameter, is the same on all ranks and no sum. */
static void list_sums(struct derive *d)
{
    const struct ku_graph *g = d->g;
    const signed char *wire = d->c->o->wire;
    const bool is_cut = d->c->o->part != KU_CHECK_WHOLE;
    uint32_t index = 0;
    for (ku_id u = 1; u < d->c->model->n_uses; u++)
        if (d->use_grad[u])
            add_sum(d, (struct sum){.value = d->use_grad[u],
                                    .is_gradient = true,
                                    .port = is_cut ? port_of_use(d, u) : 0,
                                    .by_micro = d->c->mesh.mb_outer,
                                    .wire = wire && g->value[d->use_grad[u]].dtype == KUMI_F32 &&
                                                    wire[g->use[u].tensor] != KUMI_F32
                                                ? wire[g->use[u].tensor]
                                                : -1});
    for (uint32_t i = 0; i < g->n_outputs; i++) {
        ku_id def = g->value[g->output[i].value].def;
        int op = def ? g->node[def].op : 0;
        const bool is_sum = op == KU_OP_exact_sum || op == KU_OP_count_valid || op == KU_OP_max_all;
        if (is_sum && d->samples[ku_in(g, &g->node[def], 0)])
            add_sum(d, (struct sum){.value = g->output[i].value,
                                    .port = ku_cut_sum(index++, g->output[i].name),
                                    .wire = -1,
                                    .is_max = strncmp(g->output[i].name, "metric.max.", 11) == 0});
    }
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        if (node->op == KU_OP_batch_norm_moments && g->attr[node->attr].sync)
            d->partial[ku_in(g, node, 0)] = 1;
        if (node->op == KU_OP_batch_norm_dx && g->attr[node->attr].sync)
            d->partial[ku_in(g, node, 5)] = 1;
        if (node->op == KU_OP_batch_norm_moments && node->n_in == 4)
            add_sum(d, (struct sum){.value = ku_out(g, n, 2),
                                    .port = ku_cut_sum(index++, g->name[node->path]),
                                    .wire = -1,
                                    .is_concat = 1,
                                    .is_common = g->attr[node->attr].sync});
    }
}

static uint64_t term_in(struct derive *d, ku_id v, int u)
{
    const struct ku_graph *g = d->g;
    const struct ku_value *x = &g->value[v];
    const char *name = "";
    if (x->def)
        return d->term[v];
    if (x->role == KU_STATE)
        name = g->tensor[x->tensor].name;
    for (uint32_t i = 0; i < g->n_inputs && x->role == KU_INPUT; i++)
        if (g->input[i].value == v)
            name = g->input[i].name;
    int is_cut = x->role == KU_INPUT && ku_shape_find(&g->shape[x->shape], 'n') >= 0;
    return ku_term_of(x->role == KU_STATE ? KU_TERM_STATE : KU_TERM_INPUT,
                      ku_hash64(name, strlen(name)), is_cut ? (uint64_t)u + 1 : 0);
}

/* Synchronised statistics are summed over ranks before they are read. */
static uint64_t synced(const struct derive *d, const struct ku_node *n, int i, uint64_t term)
{
    int reads =
        (n->op == KU_OP_batch_norm_moments && i == 0) || (n->op == KU_OP_batch_norm_dx && i == 5);
    return reads && d->c->wide && d->g->attr[n->attr].sync ? ku_term_of(KU_TERM_COMPLETE, term, 0)
                                                           : term;
}

static int evaluate(struct derive *d, int u)
{
    struct ku_graph *g = d->g;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        struct ku_term_op x = {.op = node->op,
                               .n_in = node->n_in,
                               .n_out = node->n_out,
                               .attr = d->attr[node->attr],
                               .a = &g->attr[node->attr],
                               .stream = node->stream};
        uint64_t out[KU_MAX_OUT] = {0};
        if (node->op == KU_OP_NONE)
            continue;
        ku_term_draw(&x, u);
        for (int i = 0; i < node->n_in; i++) {
            ku_id v = ku_in(g, node, i);
            x.in[i] = synced(d, node, i, term_in(d, v, u));
            x.in_dtype[i] = g->value[v].dtype;
        }
        for (int i = 0; i < node->n_out; i++)
            x.out_dtype[i] = g->value[ku_out(g, n, i)].dtype;
        if (node->op == KU_OP_loss_seed && d->c->o->rule.loss_scale != 0)
            x.in[x.n_in++] = ku_term_state("loss_scale", NULL);
        if (u == 0 && ku_mesh_tp(&d->c->mesh) > 1)
            KU_TRY(ku_tensor_split(d->c, g, n, d->split));
        ku_term_results(d->c, &x, out);
        for (int i = 0; i < node->n_out; i++) {
            ku_id v = ku_out(g, n, i);
            d->term[v] = out[i];
            struct ku_term t = {.hash = out[i],
                                .shape = ku_shape_hash(&g->shape[g->value[v].shape]),
                                .dtype = g->value[v].dtype,
                                .is_partial = d->partial[v],
                                .split = d->split[v],
                                .samples = d->samples[v]};
            KU_TRY(ku_terms_add(&d->c->terms, &t));
        }
    }
    const size_t n_micro = (size_t)ku_mesh_n_micro(&d->c->mesh);
    for (uint32_t s = 0; s < d->n_sums; s++)
        d->sum[s * n_micro + (size_t)u] = d->term[d->list[s].value];
    for (uint32_t i = 0; i < g->n_outputs; i++)
        d->c->output_row[i * n_micro + (size_t)u] = d->term[g->output[i].value];
    return KUMI_OK;
}

/* The sum over virtual shards: neighbours pair, an odd one is carried up. */
static uint64_t tree(const struct sum *s, uint64_t *leaf, int n)
{
    for (; n > 1; n = (n + 1) / 2)
        for (int i = 0; i < n; i += 2)
            leaf[i / 2] = i + 1 == n ? leaf[i]
                                     : ku_term_of(s->is_max      ? KU_TERM_MAX
                                                  : s->wire >= 0 ? KU_TERM_TREE + 16 * (s->wire + 1)
                                                                 : KU_TERM_ADD,
                                                  leaf[i], leaf[i + 1]);
    return leaf[0];
}

static uint64_t complete(const struct derive *d, const struct sum *s, uint64_t term)
{
    const bool is_part = d->split[s->value] == KU_SPLIT_SUM && !s->is_gradient;
    int is_sum = (d->c->wide || is_part) && !ku_cut_is(d->c, KU_CHECK_WORKER) &&
                 !(s->is_concat && d->g->attr[d->g->node[d->g->value[s->value].def].attr].sync);
    return is_sum ? ku_term_of(KU_TERM_COMPLETE, term,
                               (uint64_t)(s->wire + 1) + 64u * (unsigned)s->is_max)
                  : term;
}

static uint64_t next_sum(const struct sum *s, uint64_t sum, uint64_t term, int m)
{
    if (m == 0)
        return term;
    return s->is_concat
               ? ku_term_of(KU_TERM_STACK, ku_term_of(KU_TERM_STACK, sum, (uint64_t)m), term)
               : ku_term_of(s->is_max ? KU_TERM_MAX : KU_TERM_ADD, sum, term);
}

/* The complete sum of one value; leaf: [n_vs] scratch. */
static uint64_t total(const struct derive *d, uint32_t which, uint64_t *leaf)
{
    const struct ku_mesh *mesh = &d->c->mesh;
    const struct sum *s = &d->list[which];
    const uint64_t *term = d->sum + (size_t)which * (size_t)ku_mesh_n_micro(mesh);
    int n_vs = mesh->extent[KU_AX_VS], n_mb = mesh->extent[KU_AX_MB];
    uint64_t sum = 0;
    if (ku_cut_is(d->c, KU_CHECK_SERVER))
        return ku_cut_input(s->port);
    for (int m = 0; s->by_micro && m < n_mb; m++) {
        for (int v = 0; v < n_vs; v++)
            leaf[v] = term[m * n_vs + v];
        sum = next_sum(s, sum, complete(d, s, tree(s, leaf, n_vs)), m);
    }
    if (s->by_micro)
        return sum;
    for (int v = 0; v < n_vs; v++)
        for (int m = 0; m < n_mb; m++)
            leaf[v] = next_sum(s, leaf[v], term[mesh->mb_outer ? m * n_vs + v : v * n_mb + m], m);
    return complete(d, s, tree(s, leaf, n_vs));
}

static uint64_t total_of(const struct derive *d, ku_id value, uint64_t *leaf)
{
    return d->sum_of[value] ? total(d, d->sum_of[value] - 1, leaf) : 0;
}

/* Generation: the model says what its caches of keys and values hold in the end. */
static int write_caches(struct derive *d)
{
    const struct ku_graph *g = d->g;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const struct ku_tensor *x = &g->tensor[t];
        const uint32_t s = ku_proof_state(d->c, ku_term_state(x->name, NULL));
        if (x->kind != KU_T_CACHE || x->next == 0 || d->term[x->next] == 0)
            continue;
        if (s == 0)
            return ku_proof_refuse(d->c, 0, "the state plan has no cache %s", x->name);
        d->c->next[s - 1] = d->term[x->next];
    }
    return KUMI_OK;
}

/* The same of a gradient: tensor-parallel ranks add up their parts of it last. */
static uint64_t total_of_gradient(const struct derive *d, ku_id value, uint64_t *leaf)
{
    const uint64_t sum = total_of(d, value, leaf);
    const char split = d->split[value];
    return split == KU_SPLIT_SUM || split == KU_SPLIT_SHARED ? ku_term_of(KU_TERM_COMPLETE, sum, 0)
                                                             : sum;
}

/* The uses of a tied parameter are added in use order. */
static int add_use(struct derive *d, ku_id u, uint64_t sum)
{
    struct ku_proof *c = d->c;
    ku_id t = d->g->use[u].tensor;
    t = d->g->tensor[t].kind == KU_T_DERIVED ? d->g->tensor[t].of : t;
    const bool is_first = c->gradient[t] == 0; /* else the end of the step adds it */
    c->gradient[t] = is_first ? sum : ku_term_of(KU_TERM_ADD, c->gradient[t], sum);
    return ku_terms_add(&c->terms, &(struct ku_term){.hash = c->gradient[t],
                                                     .dtype = d->g->value[d->use_grad[u]].dtype,
                                                     .is_end = !is_first});
}

/* A worker pushes every sum. */
static int expect_all(struct derive *d, uint64_t *leaf)
{
    for (uint32_t i = 0; i < d->n_sums; i++)
        KU_TRY(ku_cut_expect(d->c, d->list[i].port, total(d, i, leaf), !d->list[i].is_common));
    if (d->c->n_cuts < d->c->p->n_outputs)
        return ku_proof_refuse(d->c, 0, "a worker pushes more than the model's gradients and sums");
    for (ku_id u = 1; u < d->c->model->n_uses; u++)
        d->c->report_of.n_gradients += d->use_grad[u] != 0;
    return KUMI_OK;
}

static int add_up(struct derive *d, uint64_t *leaf)
{
    struct ku_proof *c = d->c;
    int64_t index = 0;
    if (ku_cut_is(c, KU_CHECK_WORKER))
        return expect_all(d, leaf);
    for (ku_id u = 1; u < c->model->n_uses; u++)
        if (d->use_grad[u])
            KU_TRY(add_use(d, u, total_of_gradient(d, d->use_grad[u], leaf)));
    c->stats = KU_TOTALS_ZERO;
    for (ku_id t = 1; t < c->model->n_tensors; t++)
        if (c->gradient[t]) {
            c->stats += ku_term_squares(c->gradient[t], index++, c->model->tensor[t].chunk);
            c->report_of.n_gradients++;
        }
    for (uint32_t i = 0; i < d->g->n_outputs; i++)
        c->output[i] = total_of(d, d->g->output[i].value, leaf);
    KU_TRY(write_caches(d));
    for (uint32_t i = 0; i < d->n_sums && c->o->kind == KU_CHECK_TRAIN; i++)
        if (d->list[i].is_concat)
            KU_TRY(ku_update_statistics(c, &d->g->node[d->g->value[d->list[i].value].def],
                                        total(d, i, leaf)));
    return ku_update_derive(c);
}

/* Lists the uses of each node. */
static void chain_uses(struct derive *d)
{
    for (ku_id u = d->c->model->n_uses; u-- > 1;) {
        d->next_use[u] = d->use_at[d->g->use[u].node];
        d->use_at[d->g->use[u].node] = u;
    }
}

static int derive_all(struct derive *d)
{
    struct ku_proof *c = d->c;
    const struct ku_graph *m = c->model;
    int n_micro = ku_mesh_n_micro(&c->mesh);
    KU_TRY(ku_tensor_divide(c, d->g));
    d->n_forward = d->g->n_nodes;
    d->adjoint = ku_calloc(d->g->n_values, sizeof *d->adjoint);
    d->use_grad = ku_calloc(m->n_uses + 1, sizeof *d->use_grad);
    d->use_at = ku_calloc(d->g->n_nodes, sizeof *d->use_at);
    d->next_use = ku_calloc(m->n_uses + 1, sizeof *d->next_use);
    d->wanted = ku_calloc(d->g->n_values, 1);
    c->gradient = ku_calloc(m->n_tensors + 1, sizeof *c->gradient);
    c->output = ku_calloc(m->n_outputs + 1, sizeof *c->output);
    c->output_row = ku_calloc(((size_t)m->n_outputs + 1) * (size_t)n_micro, sizeof *c->output_row);
    if (!d->adjoint || !d->use_grad || !d->use_at || !d->next_use || !d->wanted || !c->gradient ||
        !c->output || !c->output_row)
        return KUMI_ENOMEM;
    chain_uses(d);
    if (c->o->sequence) {
        d->forward = ku_calloc(d->g->n_values, 1);
        if (d->forward == NULL)
            return KUMI_ENOMEM;
        for (ku_id n = 1; n < d->n_forward; n++)
            if (d->g->node[n].op != KU_OP_NONE)
                KU_TRY(ku_tensor_split(c, d->g, n, d->forward));
    }
    if (c->o->kind == KU_CHECK_TRAIN)
        KU_TRY(differentiate(d));
    uint32_t max = m->n_uses + d->g->n_outputs + d->n_forward;
    d->attr = ku_calloc(d->g->n_attrs, sizeof *d->attr);
    d->term = ku_calloc(d->g->n_values, sizeof *d->term);
    d->partial = ku_calloc(d->g->n_values, 1);
    d->split = ku_calloc(d->g->n_values, 1);
    d->samples = ku_calloc(d->g->n_values, 1);
    d->list = ku_calloc(max, sizeof *d->list);
    d->sum_of = ku_calloc(d->g->n_values, sizeof *d->sum_of);
    d->leaf = ku_calloc((size_t)c->mesh.extent[KU_AX_VS] + 1, sizeof *d->leaf);
    if (!d->attr || !d->term || !d->partial || !d->split || !d->samples || !d->list || !d->sum_of ||
        !d->leaf)
        return KUMI_ENOMEM;
    for (ku_id a = 1; a < d->g->n_attrs; a++)
        d->attr[a] = ku_attrs_hash(&d->g->attr[a]);
    find_samples(d);
    list_sums(d);
    d->sum = ku_calloc(((size_t)d->n_sums + 1) * (size_t)n_micro, sizeof *d->sum);
    if (d->sum == NULL)
        return KUMI_ENOMEM;
    for (int u = 0; u < n_micro && !ku_cut_is(c, KU_CHECK_SERVER); u++)
        KU_TRY(evaluate(d, u));
    return add_up(d, d->leaf);
}

int ku_model_derive(struct ku_proof *c)
{
    KU_TRY(ku_graph_copy(c->model, &c->spec));
    struct derive d = {.c = c, .g = c->spec};
    int status = derive_all(&d);
    ku_free(d.adjoint);
    ku_free(d.use_grad);
    ku_free(d.use_at);
    ku_free(d.next_use);
    ku_free(d.sum_of);
    ku_free(d.leaf);
    ku_free(d.wanted);
    ku_free(d.attr);
    ku_free(d.term);
    ku_free(d.partial);
    ku_free(d.split);
    ku_free(d.samples);
    ku_free(d.forward);
    ku_free(d.list);
    ku_free(d.sum);
    return status;
}
