/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluation and sampling: nothing is dropped. A dropout node's reader reads its operand; attention
 * keeps all probabilities; batch norm reads the running statistics. The loss is that of the labels
 * as they are, not smoothed. */
#include "base/err.h"
#include "pass/pass.h"

int ku_pass_inference(struct ku_graph *g, const struct ku_compile_opts *o,
                      const struct ku_target *t)
{
    (void)t;
    if (o->is_training)
        return KUMI_OK;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        struct ku_node *node = &g->node[n];
        struct ku_attrs a = g->attr[node->attr];
        if (node->op == KU_OP_dropout) {
            ku_graph_replace(g, ku_out(g, n, 0), ku_in(g, node, 0), n + 1);
            node->op = KU_OP_NONE;
        } else if (node->op == KU_OP_batch_norm_moments) {
            ku_graph_replace(g, ku_out(g, n, 0), ku_in(g, node, 1), n + 1);
            ku_graph_replace(g, ku_out(g, n, 1), ku_in(g, node, 2), n + 1);
            g->node[g->value[ku_in(g, node, 0)].def].op = KU_OP_NONE;
            node->op = KU_OP_NONE;
        } else if (a.p != 0 || a.smoothing != 0) {
            a.p = a.smoothing = 0;
            node->attr = ku_graph_attr(g, &a);
            if (g->node[n].attr == 0)
                return KUMI_ENOMEM;
        }
    }
    return KUMI_OK;
}
