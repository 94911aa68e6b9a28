/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text form of the graph, one line per item, in an order that parse.c can read:
 *
 *   kumi graph 1
 *   mesh pp=1 replicate=2 shard=1 tp=1 vs=1 mb=2
 *   state %1 f32 [v=256 c=128] {replicate:R ..} wte.weight param trainable used init=fill ..
 *   input %3 i32 [n=16 t=64] {replicate:S(n) ..} tokens
 *   %5 f32 [n=16 t=64 f=512] {..} = F linear(%4, %1) contract=1 source=gpt2.c:76 @h.0.mlp.c_fc
 *   use wte.weight %5 0 %9     (tensor, first result of the reading node, operand, gradient or %0)
 *   next wte.weight %11
 *   output loss_sum %7
 *   bucket %12 %13             (first results of convert nodes)
 */
#include "base/str.h"
#include "ir/graph.h"

static const char *const kind_name[] = {
    [KU_T_PARAM] = "param",     [KU_T_OPTIMIZER] = "optimizer", [KU_T_DERIVED] = "derived",
    [KU_T_COUNTER] = "counter", [KU_T_BUFFER] = "buffer",       [KU_T_CACHE] = "cache"};

static void print_value(const struct ku_graph *g, ku_id v, struct ku_str *out)
{
    char shape[512], layout[256];
    const struct ku_value *x = &g->value[v];
    ku_str_add(out, "%%%u %s %s %s", v, kumi_dtype_name((enum kumi_dtype)x->dtype),
               ku_shape_print(&g->shape[x->shape], shape, sizeof shape),
               ku_layout_print(&g->layout[x->layout], &g->shape[x->shape], layout, sizeof layout));
}

static void print_tensor(const struct ku_graph *g, const struct ku_tensor *t, struct ku_str *out)
{
    ku_str_add(out, "state ");
    print_value(g, t->value, out);
    ku_str_add(out, " %s %s%s%s", t->name, kind_name[t->kind], t->trainable ? " trainable" : "",
               t->used ? " used" : "");
    if (t->of)
        ku_str_add(out, " of=%s", g->tensor[t->of].name);
    if (t->offload)
        ku_str_add(out, " offload=%s", ku_offload_target_name(t->offload));
    if (t->file_rows)
        ku_str_add(out, " rows=%d", t->file_rows);
    if (t->first_block)
        ku_str_add(out, " block=%d", t->first_block);
    ku_str_add(out, " init=%s", ku_ops[t->init_op].name);
    ku_attrs_print(&g->attr[t->init_attr], out);
    if (t->stream)
        ku_str_add(out, " stream=%u", t->stream);
    ku_str_add(out, "\n");
}

static void print_node(const struct ku_graph *g, ku_id id, struct ku_str *out)
{
    const struct ku_node *n = &g->node[id];
    for (int i = 0; i < n->n_out; i++) {
        ku_str_add(out, i ? ", " : "");
        print_value(g, ku_out(g, id, i), out);
    }
    ku_str_add(out, " = %s %s(", ku_phase_name(n->phase), ku_ops[n->op].name);
    for (int i = 0; i < n->n_in; i++)
        ku_str_add(out, "%s%%%u", i ? ", " : "", ku_in(g, n, i));
    ku_str_add(out, ")");
    ku_attrs_print(&g->attr[n->attr], out);
    if (n->stream)
        ku_str_add(out, " stream=%u", n->stream);
    if (n->stage)
        ku_str_add(out, " stage=%d", n->stage);
    if (n->source)
        ku_str_add(out, " source=%s", g->name[n->source]);
    ku_str_add(out, " @%s\n", g->name[n->path]);
}

int ku_graph_print(const struct ku_graph *g, struct ku_str *out)
{
    ku_str_add(out, "kumi graph 1\nmesh");
    for (int i = 0; i < KU_N_AXES; i++) { /* in nesting order */
        int a = g->mesh.mb_outer && i >= KU_AX_VS ? KU_AX_VS + KU_AX_MB - i : i;
        if (a == KU_AX_TPI && g->mesh.extent[a] == 1)
            continue;
        ku_str_add(out, " %s=%d", ku_axis_name(a), g->mesh.extent[a]);
    }
    ku_str_add(out, "\n");
    for (ku_id t = 1; t < g->n_tensors; t++)
        print_tensor(g, &g->tensor[t], out);
    for (uint32_t i = 0; i < g->n_inputs; i++) {
        ku_str_add(out, "input ");
        print_value(g, g->input[i].value, out);
        ku_str_add(out, " %s\n", g->input[i].name);
    }
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].op != KU_OP_NONE)
            print_node(g, n, out);
    for (ku_id u = 1; u < g->n_uses; u++)
        ku_str_add(out, "use %s %%%u %d %%%u\n", g->tensor[g->use[u].tensor].name,
                   ku_out(g, g->use[u].node, 0), g->use[u].operand, g->use[u].grad);
    for (ku_id t = 1; t < g->n_tensors; t++)
        if (g->tensor[t].next != g->tensor[t].value)
            ku_str_add(out, "next %s %%%u\n", g->tensor[t].name, g->tensor[t].next);
    for (uint32_t i = 0; i < g->n_outputs; i++)
        ku_str_add(out, "output %s %%%u\n", g->output[i].name, g->output[i].value);
    for (uint32_t b = 0; b < g->n_buckets; b++) {
        ku_str_add(out, "bucket");
        for (uint32_t i = 0; i < g->bucket[b].n; i++)
            ku_str_add(out, " %%%u", ku_out(g, g->refs[g->bucket[b].first + i], 0));
        ku_str_add(out, "\n");
    }
    return out->failed ? KUMI_ENOMEM : KUMI_OK;
}

int ku_graph_print_dot(const struct ku_graph *g, struct ku_str *out)
{
    static const char *const colour[KU_N_PHASES] = {"gray90", "lightblue", "lightsalmon", "khaki",
                                                    "palegreen"};
    ku_str_add(
        out, "digraph kumi {\n  rankdir=TB; node [shape=box, style=filled, fontname=Helvetica];\n");
    for (ku_id t = 1; t < g->n_tensors; t++)
        ku_str_add(out, "  v%u [label=\"%s\", shape=cylinder, fillcolor=white];\n",
                   g->tensor[t].value, g->tensor[t].name);
    for (uint32_t i = 0; i < g->n_inputs; i++)
        ku_str_add(out, "  v%u [label=\"%s\", shape=oval, fillcolor=white];\n", g->input[i].value,
                   g->input[i].name);
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        if (node->op == KU_OP_NONE)
            continue;
        ku_str_add(out, "  n%u [label=\"%s\\n%s\", fillcolor=%s];\n", n, ku_ops[node->op].name,
                   g->name[node->path], colour[node->phase]);
        for (int i = 0; i < node->n_in; i++) {
            ku_id v = ku_in(g, node, i);
            char shape[512];
            ku_shape_print(&g->shape[g->value[v].shape], shape, sizeof shape);
            if (g->value[v].def)
                ku_str_add(out, "  n%u -> n%u [label=\"%s\", fontsize=8];\n", g->value[v].def, n,
                           shape);
            else
                ku_str_add(out, "  v%u -> n%u;\n", v, n);
        }
    }
    ku_str_add(out, "}\n");
    return out->failed ? KUMI_ENOMEM : KUMI_OK;
}
