/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evaluation and sampling. Dropout nodes are removed (their readers read the operand), attention
 * dropout and label smoothing are set to 0, and batch norm reads the running statistics. Does
 * nothing in training.
 */
#include "base/err.h"
#include "base/mem.h"
#include "pass/pass.h"

/* to: per value its replacement; 0: none. */
static ku_id replaced(const ku_id *to, ku_id value)
{
    return to[value] ? to[value] : value;
}

static int infer(struct ku_graph *g, ku_id *to)
{
    for (ku_id n = 1; n < g->n_nodes; n++) {
        struct ku_node *node = &g->node[n];
        for (int i = 0; i < node->n_in; i++)
            g->refs[node->in + (uint32_t)i] = replaced(to, ku_in(g, node, i));
        if (node->op == KU_OP_dropout) {
            to[ku_out(g, n, 0)] = ku_in(g, node, 0);
            node->op = KU_OP_NONE;
        } else if (node->op == KU_OP_batch_norm_moments) {
            to[ku_out(g, n, 0)] = ku_in(g, node, 1);
            to[ku_out(g, n, 1)] = ku_in(g, node, 2);
            g->node[g->value[ku_in(g, node, 0)].def].op = KU_OP_NONE;
            node->op = KU_OP_NONE;
        } else if (g->attr[node->attr].p != 0 || g->attr[node->attr].smoothing != 0) {
            struct ku_attrs a = g->attr[node->attr];
            a.p = a.smoothing = 0;
            node->attr = ku_graph_attr(g, &a);
            if (g->node[n].attr == 0)
                return KUMI_ENOMEM;
        }
    }
    for (uint32_t i = 0; i < g->n_outputs; i++)
        g->output[i].value = replaced(to, g->output[i].value);
    return KUMI_OK;
}

int ku_pass_inference(struct ku_graph *g, const struct ku_compile_opts *o,
                      const struct ku_target *t)
{
    (void)t;
    if (o->is_training)
        return KUMI_OK;
    ku_id *to = ku_calloc(g->n_values, sizeof *to);
    int status = to ? infer(g, to) : KUMI_ENOMEM;
    ku_free(to);
    return status;
}
