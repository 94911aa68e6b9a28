/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "ir/graph.h"

/*
 * Depth-first search over operands, in list order. Uses an explicit stack, since models may be
 * arbitrarily deep.
 */
struct sort {
    const struct ku_graph *g;
    ku_id *order, *place, *stack; /* new order; place[old] = new id, 0 = not yet */
    uint32_t n;
};

static ku_id next_operand(const struct sort *s, ku_id node)
{
    const struct ku_node *n = &s->g->node[node];
    for (int i = 0; i < n->n_in; i++) {
        ku_id def = s->g->value[ku_in(s->g, n, i)].def;
        KU_ASSERT(def < s->g->n_nodes);
        if (def && s->place[def] == 0)
            return def;
    }
    return 0;
}

static int visit(struct sort *s, ku_id root)
{
    uint32_t depth = 0;
    s->stack[depth++] = root;
    while (depth > 0) {
        ku_id node = s->stack[depth - 1], def = s->place[node] ? 0 : next_operand(s, node);
        if (def == 0) {
            if (s->place[node] == 0) {
                s->place[node] = s->n;
                s->order[s->n++] = node;
            }
            depth--;
        } else if (depth == s->g->n_nodes) {
            return KU_ERR(KUMI_EBUG, "graph: node %u: depends on itself", node);
        } else {
            s->stack[depth++] = def;
        }
    }
    return KUMI_OK;
}

static int apply(struct ku_graph *g, const struct sort *s)
{
    KU_ASSERT(s->n == g->n_nodes); /* every node has a place */
    struct ku_node *node = ku_malloc(g->n_nodes * sizeof *node);
    if (node == NULL)
        return KUMI_ENOMEM;
    memcpy(node, g->node, g->n_nodes * sizeof *node);
    for (ku_id i = 1; i < g->n_nodes; i++)
        g->node[i] = node[s->order[i]];
    ku_free(node);
    for (ku_id v = 1; v < g->n_values; v++)
        g->value[v].def = s->place[g->value[v].def];
    for (ku_id u = 1; u < g->n_uses; u++) {
        g->use[u].node = s->place[g->use[u].node];
        KU_ASSERT(g->use[u].node > 0);
    }
    for (uint32_t b = 0; b < g->n_buckets; b++)
        for (uint32_t i = 0; i < g->bucket[b].n; i++)
            g->refs[g->bucket[b].first + i] = s->place[g->refs[g->bucket[b].first + i]];
    return KUMI_OK;
}

int ku_graph_sort(struct ku_graph *g)
{
    size_t bytes = g->n_nodes * sizeof(ku_id);
    struct sort s = {g, ku_calloc(1, bytes), ku_calloc(1, bytes), ku_malloc(bytes), 1};
    int status = s.order && s.place && s.stack ? KUMI_OK : KUMI_ENOMEM;
    for (ku_id n = 1; n < g->n_nodes && status == KUMI_OK; n++)
        if (s.place[n] == 0)
            status = visit(&s, n);
    if (status == KUMI_OK)
        status = apply(g, &s);
    ku_free(s.order);
    ku_free(s.place);
    ku_free(s.stack);
    return status;
}
