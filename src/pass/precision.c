/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixed precision: states every rounding in the graph, by the table of op/dtype_rule.def.
 *
 *   f32         no change
 *   bf16, f16   activations have this dtype. Matrices and embedding tables are read through a copy
 *               in it (derived state, which the optimizer writes with the parameter) or, without a
 *               master, are stored in it alone. Gains, biases and masters stay f32. Nodes that
 *               keep_f32 matches read and write f32, with a cast where an operand is narrower.
 *   f64         the whole model is f64 (the reference)
 *
 * A rule of precision.modules gives the modules that it matches dtypes of their own
 * (precision_rules.h), and the casts stand where values enter and leave them:
 *
 *     x f32 ── cast ──> x bf16 ──> [ h.0.mlp, compute bf16 ] ──> y bf16 ── cast ──> y f32
 *              (casts_inputs)                                          (output f32)
 *
 * Ops compute in f32 and round once, to the dtype of their result.
 */
#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "op/dtype_rule.h"
#include "pass/precision_rules.h"

/* The compute copy of a parameter, named for example "wte.weight:bf16"; made on first use. */
static ku_id compute_copy(struct ku_graph *g, ku_id tensor, enum kumi_dtype dtype)
{
    char *name = ku_asprintf("%s:%s", g->tensor[tensor].name, kumi_dtype_name(dtype));
    if (name == NULL)
        return 0;
    ku_id copy = ku_graph_find_tensor(g, name);
    if (copy == 0) {
        struct ku_shape shape = g->shape[g->tensor[tensor].shape];
        copy = ku_graph_tensor(g, name, KU_T_DERIVED, dtype, &shape);
        if (copy)
            ku_graph_belong(g, copy, tensor);
    }
    ku_free(name);
    return copy ? g->tensor[copy].value : 0;
}

/* Infers the dtypes of a node's results again. */
static int infer_again(struct ku_graph *g, ku_id node)
{
    const struct ku_node *n = &g->node[node];
    struct ku_type in[KU_MAX_IN], out[KU_MAX_OUT];
    for (int i = 0; i < n->n_in; i++)
        in[i] = ku_type_of(g, ku_in(g, n, i));
    KU_TRY(ku_op_infer(n->op, &g->attr[n->attr], n->n_in, in, n->n_out, out));
    for (int i = 0; i < n->n_out; i++)
        g->value[ku_out(g, node, i)].dtype = (uint8_t)out[i].dtype;
    return KUMI_OK;
}

/* A cast of a value on the path of `node`; 0 on failure. */
static ku_id cast(struct ku_graph *g, ku_id value, ku_id node, enum kumi_dtype dtype)
{
    struct ku_attrs a = ku_attrs_default;
    a.dtype = dtype;
    ku_id made = ku_graph_node(g, &(struct ku_make){.op = KU_OP_cast,
                                                    .phase = KU_PH_F,
                                                    .n_in = 1,
                                                    .in = {value},
                                                    .attr = &a,
                                                    .path = g->name[g->node[node].path],
                                                    .source = g->node[node].source});
    return made ? ku_out(g, made, 0) : 0;
}

/* Casts a float operand of another dtype (for example of an f32 input port) to `dtype`. */
static int cast_operand(struct ku_graph *g, ku_id node, int operand, enum kumi_dtype dtype)
{
    ku_id v = ku_in(g, &g->node[node], operand);
    if (!ku_dtype_is_float((enum kumi_dtype)g->value[v].dtype) || g->value[v].dtype == dtype)
        return KUMI_OK;
    const ku_id made = cast(g, v, node, dtype);
    if (made == 0)
        return ku_err_get()->status;
    g->refs[g->node[node].in + (uint32_t)operand] = made;
    return KUMI_OK;
}

/* Sets the result dtype of a node whose operands do not determine it. */
static int write_in(struct ku_graph *g, ku_id node, enum kumi_dtype dtype)
{
    struct ku_attrs a = g->attr[g->node[node].attr];
    a.dtype = dtype;
    ku_id attr = ku_graph_attr(g, &a);
    if (attr == 0)
        return ku_err_get()->status;
    g->node[node].attr = attr;
    return KUMI_OK;
}

/* What the pass knows of the model's nodes and values. */
struct precision {
    struct ku_graph *g;
    const struct ku_compile_opts *o;
    struct of_node {
        const struct ku_precision_rule *rule; /* NULL: the options for the whole model */
        int n_bytes;                          /* of the path of its module instance */
    } * node;                                 /* [n_nodes] */
    ku_id *output; /* [n_values]: the value as other modules read it, once made; 0 */
};

static enum kumi_dtype compute_of(const struct precision *p, ku_id node)
{
    const struct ku_precision_rule *r = p->node[node].rule;
    return r && r->dtype[KU_ROLE_COMPUTE] >= 0 ? (enum kumi_dtype)r->dtype[KU_ROLE_COMPUTE]
                                               : p->o->compute;
}

static bool is_narrow(int dtype)
{
    return dtype == KUMI_BF16 || dtype == KUMI_F16;
}

/* The kind of state that a value is; -1: it is none. */
static int state_kind(const struct ku_graph *g, ku_id value)
{
    const struct ku_value *v = &g->value[value];
    return v->role == KU_STATE ? g->tensor[v->tensor].kind : -1;
}

/* In which dtypes the model reads each parameter: bits of enum kumi_dtype; f32 if it is no operand
 * that is read in compute precision. */
static unsigned char *find_reads(const struct precision *p)
{
    const struct ku_graph *g = p->g;
    unsigned char *read = ku_calloc(g->n_values, 1);
    for (ku_id n = 1; n < g->n_nodes && read; n++)
        for (int i = 0; g->node[n].op != KU_OP_NONE && i < g->node[n].n_in; i++)
            read[ku_in(g, &g->node[n], i)] |=
                (unsigned char)(1 << (ku_op_is_compute(g->node[n].op, i) ? compute_of(p, n)
                                                                         : KUMI_F32));
    return read;
}

/* The one narrow dtype of a set of reads; -1: none, -2: both. */
static int narrow_read(unsigned char reads)
{
    const int bf16 = reads >> KUMI_BF16 & 1, f16 = reads >> KUMI_F16 & 1;
    return bf16 && f16 ? -2 : bf16 ? KUMI_BF16 : f16 ? KUMI_F16 : -1;
}

/* Sets the dtype in which a parameter is stored. Without a master, that is the dtype in which all
 * ops read it, if they agree. */
static int store_param(struct precision *p, ku_id t, unsigned char reads)
{
    struct ku_graph *g = p->g;
    const struct ku_precision_rule *r = ku_precision_of_tensor(g, p->o, t);
    const int wanted = r ? r->dtype[KU_ROLE_PARAM] : -1, narrow = narrow_read(reads);
    const bool is_whole = narrow >= 0 && reads == 1 << narrow;
    if (narrow == -2)
        return KU_ERR(
            KUMI_EINVAL,
            "precision.modules: %.200s is read in bf16 by one module and in f16 by another; a "
            "parameter has one compute copy: give both modules one compute dtype",
            g->tensor[t].name);
    if (p->o->is_training && is_narrow(wanted) && narrow >= 0 && (!is_whole || narrow != wanted))
        return KU_ERR(
            KUMI_EINVAL,
            "precision.modules: param: %s of \"%.200s\": %.200s is read in %s too; use param "
            "f32, or give all of its readers compute %s",
            kumi_dtype_name((enum kumi_dtype)wanted), r->match[0], g->tensor[t].name,
            narrow == wanted ? "f32" : kumi_dtype_name((enum kumi_dtype)narrow),
            kumi_dtype_name((enum kumi_dtype)wanted));
    if (is_whole && (wanted < 0 ? p->o->no_master : is_narrow(wanted)))
        g->tensor[t].dtype = g->value[g->tensor[t].value].dtype = (uint8_t)narrow;
    return KUMI_OK;
}

static int store_params(struct precision *p)
{
    int status = KUMI_OK;
    unsigned char *read = find_reads(p);
    if (read == NULL)
        return KUMI_ENOMEM;
    for (ku_id t = 1; t < p->g->n_tensors && status == KUMI_OK; t++)
        if (p->g->tensor[t].kind == KU_T_PARAM)
            status = store_param(p, t, read[p->g->tensor[t].value]);
    ku_free(read);
    return status;
}

static void store_buffers(struct precision *p)
{
    struct ku_graph *g = p->g;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const struct ku_precision_rule *r = ku_precision_of_tensor(g, p->o, t);
        if (g->tensor[t].kind == KU_T_BUFFER && g->tensor[t].dtype == KUMI_F32 && r &&
            r->dtype[KU_ROLE_BUFFER] >= 0)
            g->tensor[t].dtype = g->value[g->tensor[t].value].dtype =
                (uint8_t)r->dtype[KU_ROLE_BUFFER];
    }
}

/* The KV cache has the compute dtype of the module that reads it, as in training. */
static void store_caches(struct precision *p)
{
    struct ku_graph *g = p->g;
    for (ku_id n = 1; n < g->n_nodes; n++)
        for (int i = 0; g->node[n].op != KU_OP_NONE && i < g->node[n].n_in; i++) {
            struct ku_value *v = &g->value[ku_in(g, &g->node[n], i)];
            if (v->role == KU_STATE && g->tensor[v->tensor].kind == KU_T_CACHE)
                g->tensor[v->tensor].dtype = v->dtype = (uint8_t)compute_of(p, n);
        }
}

/* Makes a node read a parameter in compute precision: directly, or through its copy. */
static int read_copy(struct ku_graph *g, ku_id node, int operand, enum kumi_dtype dtype)
{
    ku_id tensor = g->value[ku_in(g, &g->node[node], operand)].tensor;
    if (g->tensor[tensor].dtype == dtype)
        return KUMI_OK;
    ku_id copy = compute_copy(g, tensor, dtype);
    if (copy == 0)
        return ku_err_get()->status;
    g->refs[g->node[node].in + (uint32_t)operand] = copy;
    return KUMI_OK;
}

/* Whether node `a` lies in the module instance of node `b`. */
static bool is_inside(const struct precision *p, ku_id a, ku_id b)
{
    const char *path = p->g->name[p->g->node[a].path];
    const size_t n = (size_t)p->node[b].n_bytes;
    return strncmp(path, p->g->name[p->g->node[b].path], n) == 0 &&
           (path[n] == '.' || path[n] == '\0');
}

/* Whether a value has the output dtype of its module, in other modules than that. */
static bool has_output(const struct precision *p, ku_id value, ku_id n_model)
{
    const ku_id def = p->g->value[value].def;
    if (p->g->value[value].role != KU_TEMP || def == 0 || def >= n_model ||
        p->g->value[value].result != 0 || p->node[def].rule == NULL)
        return false;
    const int op = p->g->node[def].op, dtype = p->node[def].rule->dtype[KU_ROLE_OUTPUT];
    return dtype >= 0 && dtype != p->g->value[value].dtype &&
           (ku_op_precision[op].cls == KU_PREC_COMPUTE || ku_op_is_activation(op, 0)) &&
           (p->g->value[value].dtype == KUMI_F32 || is_narrow(p->g->value[value].dtype));
}

/* The value in the output dtype of its module; 0 on failure. */
static ku_id output_of(struct precision *p, ku_id value)
{
    const ku_id def = p->g->value[value].def;
    if (p->output[value] == 0)
        p->output[value] =
            cast(p->g, value, def, (enum kumi_dtype)p->node[def].rule->dtype[KU_ROLE_OUTPUT]);
    return p->output[value];
}

/* The dtype in which a node reads an operand that is neither cache nor running statistics; -1: as
 * it is. */
static int read_dtype(const struct precision *p, ku_id node, int operand)
{
    const struct ku_graph *g = p->g;
    const int op = g->node[node].op, dtype = compute_of(p, node);
    const ku_id v = ku_in(g, &g->node[node], operand);
    const struct ku_precision_rule *r = p->node[node].rule;
    const bool casts = r && r->dtype[KU_ROLE_COMPUTE] >= 0 && r->casts_inputs;
    if (ku_op_is_compute(op, operand))
        return dtype;
    if (casts && dtype == KUMI_F32)
        return is_narrow(g->value[v].dtype) ? KUMI_F32 : -1;
    return casts && ku_op_is_activation(op, operand) ? dtype : -1;
}

static int lower_operand(struct precision *p, ku_id node, int operand, ku_id n_model)
{
    struct ku_graph *g = p->g;
    const ku_id v = ku_in(g, &g->node[node], operand);
    const int kind = state_kind(g, v);
    if (kind == KU_T_CACHE)
        return KUMI_OK;
    if (kind == KU_T_BUFFER) /* evaluation reads running statistics in f32 */
        return g->node[node].op == KU_OP_batch_norm ? cast_operand(g, node, operand, KUMI_F32)
                                                    : KUMI_OK;
    if (has_output(p, v, n_model) && !is_inside(p, node, g->value[v].def)) {
        const ku_id value = output_of(p, v);
        if (value == 0)
            return ku_err_get()->status;
        g->refs[g->node[node].in + (uint32_t)operand] = value;
    }
    const int dtype = read_dtype(p, node, operand);
    if (dtype < 0)
        return KUMI_OK;
    return kind == KU_T_PARAM ? read_copy(g, node, operand, (enum kumi_dtype)dtype)
                              : cast_operand(g, node, operand, (enum kumi_dtype)dtype);
}

static int lower_node(struct precision *p, ku_id node, ku_id n_model)
{
    if (p->g->node[node].op == KU_OP_sinusoid)
        KU_TRY(write_in(p->g, node, compute_of(p, node)));
    for (int i = 0; i < p->g->node[node].n_in; i++)
        KU_TRY(lower_operand(p, node, i, n_model));
    return infer_again(p->g, node);
}

/* Values that leave the program leave their modules. */
static int lower_outputs(struct precision *p, ku_id n_model)
{
    for (uint32_t i = 0; i < p->g->n_outputs; i++) {
        if (!has_output(p, p->g->output[i].value, n_model))
            continue;
        const ku_id value = output_of(p, p->g->output[i].value);
        if (value == 0)
            return ku_err_get()->status;
        p->g->output[i].value = value;
    }
    return KUMI_OK;
}

static int lower_model(struct precision *p)
{
    const ku_id n_model = p->g->n_nodes;
    for (ku_id n = 1; n < n_model; n++)
        if (p->g->node[n].op != KU_OP_NONE)
            p->node[n].rule = ku_precision_of_node(p->g, p->o, n, &p->node[n].n_bytes);
    KU_TRY(store_params(p));
    store_buffers(p);
    store_caches(p);
    for (ku_id n = 1; n < n_model; n++)
        if (p->g->node[n].op != KU_OP_NONE)
            KU_TRY(lower_node(p, n, n_model));
    KU_TRY(lower_outputs(p, n_model));
    return ku_graph_sort(p->g);
}

static int all_f64(struct ku_graph *g)
{
    for (ku_id t = 1; t < g->n_tensors; t++) {
        if (!ku_dtype_is_float((enum kumi_dtype)g->tensor[t].dtype))
            continue;
        g->tensor[t].dtype = KUMI_F64;
        g->value[g->tensor[t].value].dtype = KUMI_F64;
    }
    for (uint32_t i = 0; i < g->n_inputs; i++)
        if (ku_dtype_is_float((enum kumi_dtype)g->value[g->input[i].value].dtype))
            g->value[g->input[i].value].dtype = KUMI_F64;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        int op = g->node[n].op;
        if (op == KU_OP_NONE)
            continue;
        if (op == KU_OP_sinusoid || op == KU_OP_batch_norm_moments)
            KU_TRY(write_in(g, n, KUMI_F64));
        KU_TRY(infer_again(g, n));
    }
    return KUMI_OK;
}

int ku_pass_precision(struct ku_graph *g, const struct ku_compile_opts *o,
                      const struct ku_target *t)
{
    (void)t;
    const bool has_rules = o->modules && o->modules->n > 0;
    if (o->compute == KUMI_F32 && !has_rules)
        return KUMI_OK;
    if (o->compute == KUMI_F64)
        return all_f64(g);
    if (o->compute != KUMI_F32 && !is_narrow(o->compute))
        return KU_ERR(
            KUMI_EINVAL,
            "precision.compute: %s; give one of f32, bf16, f16, f64 (f64 on device ref alone)",
            kumi_dtype_name(o->compute));
    KU_TRY(ku_precision_check_rules(g, o));
    struct precision p = {.g = g, .o = o};
    p.node = ku_calloc(g->n_nodes, sizeof *p.node);
    p.output = ku_calloc(g->n_values, sizeof *p.output);
    int status = p.node && p.output ? lower_model(&p) : KUMI_ENOMEM;
    ku_free(p.node);
    ku_free(p.output);
    return status;
}
