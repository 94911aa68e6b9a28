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
 * Ops compute in f32 and round once, to the dtype of their result.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "op/dtype_rule.h"
#include "pass/pass.h"

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

/* Casts a float operand of another dtype (for example of an f32 input port) to `dtype`. */
static int cast_operand(struct ku_graph *g, ku_id node, int operand, enum kumi_dtype dtype)
{
    ku_id v = ku_in(g, &g->node[node], operand);
    if (!ku_dtype_is_float((enum kumi_dtype)g->value[v].dtype) || g->value[v].dtype == dtype)
        return KUMI_OK;
    struct ku_attrs a = ku_attrs_default;
    a.dtype = dtype;
    ku_id cast = ku_graph_node(g, &(struct ku_make){.op = KU_OP_cast,
                                                    .phase = KU_PH_F,
                                                    .n_in = 1,
                                                    .in = {v},
                                                    .attr = &a,
                                                    .path = g->name[g->node[node].path],
                                                    .source = g->node[node].source});
    if (cast == 0)
        return ku_err_get()->status;
    g->refs[g->node[node].in + (uint32_t)operand] = ku_out(g, cast, 0);
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

/* Whether a pattern matches a module path, an enclosing module or, without a dot, one of its
 * names. */
static bool matches(const char *pattern, const char *path)
{
    const int is_name = strchr(pattern, '.') == NULL;
    char part[KU_NAME_BYTES];
    for (const char *name = path;;) {
        const size_t n = strcspn(name, ".");
        const char *const from[] = {path, name};
        for (int i = 0; i <= is_name; i++) {
            const size_t bytes = (size_t)(name + n - from[i]);
            memcpy(part, from[i], bytes);
            part[bytes] = '\0';
            if (ku_str_glob(pattern, part))
                return 1;
        }
        if (name[n] == '\0')
            return 0;
        name += n + 1;
    }
}

/* Whether a pattern matches the node's module or the module of a parameter that it reads: an output
 * layer tied to the embedding belongs to both. */
static bool is_of(const struct ku_graph *g, ku_id node, const char *pattern)
{
    const struct ku_node *n = &g->node[node];
    char module[KU_NAME_BYTES];
    if (matches(pattern, g->name[n->path]))
        return 1;
    for (int i = 0; i < n->n_in; i++) {
        const struct ku_value *v = &g->value[ku_in(g, n, i)];
        if (v->role != KU_STATE || g->tensor[v->tensor].kind != KU_T_PARAM)
            continue;
        const char *name = g->tensor[v->tensor].name, *dot = strrchr(name, '.');
        snprintf(module, sizeof module, "%.*s", dot ? (int)(dot - name) : 0, name);
        if (matches(pattern, module))
            return 1;
    }
    return 0;
}

static bool is_kept(const struct ku_graph *g, const struct ku_compile_opts *o, ku_id node)
{
    for (int i = 0; o->keep_f32 && o->keep_f32[i]; i++)
        if (is_of(g, node, o->keep_f32[i]))
            return 1;
    return 0;
}

/* At least one pattern must match the trained model; the others may be for other models. */
static int check_kept(const struct ku_graph *g, const struct ku_compile_opts *o)
{
    const char *example = "";
    if (!o->is_training || o->keep_f32 == NULL || o->keep_f32[0] == NULL)
        return KUMI_OK;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        if (is_kept(g, o, n))
            return KUMI_OK;
        example = g->node[n].op == KU_OP_linear ? g->name[g->node[n].path] : example;
    }
    return KU_ERR(KUMI_EINVAL,
                  "precision.keep_f32: %.200s: no module has such a path; paths are like %.200s",
                  o->keep_f32[0], example);
}

static bool reads_in_compute(const struct ku_graph *g, const struct ku_compile_opts *o, ku_id n,
                             int operand)
{
    return ku_op_is_compute(g->node[n].op, operand) && !is_kept(g, o, n);
}

/* Without a master: a parameter that all readers read in compute precision is stored in it. */
static int store_narrow(struct ku_graph *g, const struct ku_compile_opts *o)
{
    enum { IN_COMPUTE = 1, OTHERWISE = 2 };
    unsigned char *read = ku_calloc(g->n_values, 1);
    if (read == NULL)
        return KUMI_ENOMEM;
    for (ku_id n = 1; n < g->n_nodes; n++)
        for (int i = 0; g->node[n].op != KU_OP_NONE && i < g->node[n].n_in; i++)
            read[ku_in(g, &g->node[n], i)] |= reads_in_compute(g, o, n, i) ? IN_COMPUTE : OTHERWISE;
    for (ku_id t = 1; t < g->n_tensors; t++)
        if (g->tensor[t].kind == KU_T_PARAM && read[g->tensor[t].value] == IN_COMPUTE)
            g->tensor[t].dtype = g->value[g->tensor[t].value].dtype = (uint8_t)o->compute;
    ku_free(read);
    return KUMI_OK;
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

static int lower_precision(struct ku_graph *g, const struct ku_compile_opts *o, ku_id node)
{
    const int op = g->node[node].op;
    const int keeps = is_kept(g, o, node);
    const enum kumi_dtype dtype = keeps ? KUMI_F32 : o->compute;
    if (op == KU_OP_sinusoid)
        KU_TRY(write_in(g, node, dtype));
    for (int i = 0; i < g->node[node].n_in; i++) {
        const struct ku_value *v = &g->value[ku_in(g, &g->node[node], i)];
        const int is_param = v->role == KU_STATE && g->tensor[v->tensor].kind == KU_T_PARAM;
        if (keeps ? v->dtype != o->compute : !ku_op_is_compute(op, i))
            continue;
        if (is_param && !keeps)
            KU_TRY(read_copy(g, node, i, dtype));
        else
            KU_TRY(cast_operand(g, node, i, dtype));
    }
    return infer_again(g, node);
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

/* The KV cache has the compute dtype of the module that reads it, as in training. */
static void store_caches(struct ku_graph *g, const struct ku_compile_opts *o)
{
    for (ku_id t = 1; t < g->n_tensors; t++)
        if (g->tensor[t].kind == KU_T_CACHE)
            g->tensor[t].dtype = g->value[g->tensor[t].value].dtype = (uint8_t)o->compute;
    for (ku_id n = 1; n < g->n_nodes; n++)
        for (int i = 0; g->node[n].op != KU_OP_NONE && i < g->node[n].n_in; i++) {
            struct ku_value *v = &g->value[ku_in(g, &g->node[n], i)];
            if (v->role == KU_STATE && g->tensor[v->tensor].kind == KU_T_CACHE && is_kept(g, o, n))
                g->tensor[v->tensor].dtype = v->dtype = KUMI_F32;
        }
}

int ku_pass_precision(struct ku_graph *g, const struct ku_compile_opts *o,
                      const struct ku_target *t)
{
    (void)t;
    if (o->compute == KUMI_F32)
        return KUMI_OK;
    if (o->compute == KUMI_F64)
        return all_f64(g);
    if (o->compute != KUMI_BF16 && o->compute != KUMI_F16)
        return KU_ERR(KUMI_EINVAL,
                      "precision.compute: %s; one of f32, bf16, f16, f64 (f64 on device ref alone)",
                      kumi_dtype_name(o->compute));
    KU_TRY(check_kept(g, o));
    if (o->no_master)
        KU_TRY(store_narrow(g, o));
    ku_id n_model = g->n_nodes;
    store_caches(g, o);
    for (ku_id n = 1; n < n_model; n++)
        if (g->node[n].op != KU_OP_NONE)
            KU_TRY(lower_precision(g, o, n));
    return ku_graph_sort(g);
}
