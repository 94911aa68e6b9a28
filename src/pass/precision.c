/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States every rounding. compute = f32 changes nothing. bf16 and f16: matrices and tables are read
 * through a copy in it (derived state, written by the optimizer with the parameter), activations
 * have it, everything else about parameters stays f32: master, gain, bias, gradient, sums. Ops
 * compute in f32 and round once to their result. f64 (the oracle): all of the model is f64.
 */
#include "base/err.h"
#include "base/mem.h"
#include "pass/pass.h"

/* Operands that a kernel reads in compute precision. */
static int is_compute_operand(int op, int operand)
{
    switch (op) {
    case KU_OP_linear:
    case KU_OP_conv2d:
    case KU_OP_add_rows:
        return operand == 1;
    case KU_OP_embedding:
        return operand == 0;
    default:
        return 0;
    }
}

/* The copy of a parameter in another dtype: "wte.weight:bf16". */
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
            g->tensor[copy].of = tensor;
    }
    ku_free(name);
    return copy ? g->tensor[copy].value : 0;
}

/* Types of all results again, in order. */
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

/* An activation that reaches a matrix op in another precision (an f32 input port) is rounded first.
 */
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

/* Of a node whose operands do not say in what it writes. */
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

static int lower_precision(struct ku_graph *g, ku_id node, enum kumi_dtype dtype)
{
    int op = g->node[node].op;
    if (op == KU_OP_sinusoid)
        KU_TRY(write_in(g, node, dtype));
    for (int i = 0; i < g->node[node].n_in; i++) {
        ku_id v = ku_in(g, &g->node[node], i);
        ku_id tensor = g->value[v].tensor;
        if (!is_compute_operand(op, i) || g->value[v].role != KU_STATE ||
            g->tensor[tensor].kind != KU_T_PARAM)
            continue;
        ku_id copy = compute_copy(g, tensor, dtype);
        if (copy == 0)
            return ku_err_get()->status;
        g->refs[g->node[node].in + (uint32_t)i] = copy;
    }
    int is_matrix = op == KU_OP_linear || op == KU_OP_conv2d || op == KU_OP_add_rows;
    int is_pair = op == KU_OP_add || op == KU_OP_mul || op == KU_OP_glu;
    int n_alike = is_pair ? 2 : op == KU_OP_attention_kv ? 3 : 0;
    if (is_matrix)
        KU_TRY(cast_operand(g, node, 0, dtype));
    if (op == KU_OP_add_rows) /* a table that is no parameter */
        KU_TRY(cast_operand(g, node, 1, dtype));
    if (op == KU_OP_cache_write)
        KU_TRY(cast_operand(g, node, 1, dtype));
    for (int i = 0; i < n_alike; i++)
        KU_TRY(cast_operand(g, node, i, dtype));
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

int ku_pass_precision(struct ku_graph *g, const struct ku_compile_opts *o,
                      const struct ku_target *t)
{
    (void)t;
    if (o->compute == KUMI_F32)
        return KUMI_OK;
    if (o->compute == KUMI_F64)
        return all_f64(g);
    if (o->compute != KUMI_BF16 && o->compute != KUMI_F16)
        return KU_ERR(KUMI_EINVAL, "precision: compute: %s; f32, bf16, f16 or f64 (device ref)",
                      kumi_dtype_name(o->compute));
    ku_id n_model = g->n_nodes;
    for (ku_id c = 1; c < g->n_tensors; c++)
        if (g->tensor[c].kind == KU_T_CACHE)
            g->tensor[c].dtype = g->value[g->tensor[c].value].dtype = (uint8_t)o->compute;
    for (ku_id n = 1; n < n_model; n++)
        if (g->node[n].op != KU_OP_NONE)
            KU_TRY(lower_precision(g, n, o->compute));
    return ku_graph_sort(g);
}
