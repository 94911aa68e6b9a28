/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batch norm with what follows it in a residual block, and the same backwards:
 *
 *   relu(batch_norm(x) + r), relu(batch_norm(x))   one kernel: it rounds where the nodes did
 *   act_dx(dy, z) of ReLU                          reads y: z > 0 where y > 0, so z need not be
 * kept batch_norm_dsums(act_dx(dy, y), ..)            one kernel, which leaves act_dx's result too
 */
#include "base/err.h"
#include "pass/pass.h"

static ku_id made_by(const struct ku_graph *g, ku_id value, int op)
{
    ku_id def = g->value[value].def;
    return def && g->node[def].op == op ? def : 0;
}
/* A batch norm that nothing was fused into. */
static ku_id plain_norm(const struct ku_graph *g, ku_id value)
{
    ku_id norm = made_by(g, value, KU_OP_batch_norm);
    return norm && g->node[norm].n_in == 5 && g->attr[g->node[norm].attr].act == KU_ACT_NONE ? norm
                                                                                             : 0;
}

/* Whether `value` is read by `reader` alone, and by act_dx as what ReLU was applied to. */
static int is_inner(const struct ku_graph *g, ku_id value, ku_id reader)
{
    for (uint32_t i = 0; i < g->n_outputs; i++)
        if (g->output[i].value == value)
            return 0;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        for (int i = 0; node->op != KU_OP_NONE && n != reader && i < node->n_in; i++)
            if (ku_in(g, node, i) == value && !(node->op == KU_OP_act_dx && i == 1))
                return 0;
    }
    return 1;
}

/* The node becomes another one with these operands; its results stay. */
static int become(struct ku_graph *g, ku_id node, ku_id like, const struct ku_attrs *a,
                  const ku_id *in, int n_in)
{
    uint32_t span = g->n_refs;
    ku_id attr = ku_graph_attr(g, a);
    KU_TRY(ku_graph_refs(g, in, (uint32_t)n_in));
    if (attr == 0)
        return KUMI_ENOMEM;
    struct ku_node *n = &g->node[node];
    n->op = g->node[like].op;
    n->attr = attr;
    n->path = g->node[like].path;
    n->source = g->node[like].source;
    n->in = span;
    n->n_in = (uint8_t)n_in;
    g->node[like].op = KU_OP_NONE;
    return KUMI_OK;
}

static int fuse_forward(struct ku_graph *g, ku_id act)
{
    ku_id z = ku_in(g, &g->node[act], 0), in[6], norm = plain_norm(g, z), sum = 0;
    int n_in = 5;
    if (g->attr[g->node[act].attr].act != KU_ACT_RELU)
        return KUMI_OK;
    if (norm == 0) {
        sum = made_by(g, z, KU_OP_add);
        for (int i = 0; sum && i < 2 && norm == 0; i++) {
            ku_id inner = ku_in(g, &g->node[sum], i), r = ku_in(g, &g->node[sum], 1 - i);
            if (inner == r || !is_inner(g, inner, sum))
                continue;
            norm = plain_norm(g, inner);
            in[5] = r;
            n_in = 6;
        }
    }
    if (norm == 0 || g->node[norm].phase != g->node[act].phase || !is_inner(g, z, act))
        return KUMI_OK;
    for (int i = 0; i < 5; i++)
        in[i] = ku_in(g, &g->node[norm], i);
    struct ku_attrs a = g->attr[g->node[norm].attr];
    a.act = KU_ACT_RELU;
    ku_graph_replace(g, z, ku_out(g, act, 0), act + 1);
    KU_TRY(become(g, act, norm, &a, in, n_in));
    if (sum)
        g->node[sum].op = KU_OP_NONE;
    for (ku_id u = 1; u < g->n_uses; u++)
        if (g->use[u].node == norm)
            g->use[u].node = act;
    return KUMI_OK;
}

/* act_dx takes over the sums of the first batch norm that reads its result. */
static int fuse_backward(struct ku_graph *g, ku_id mask)
{
    ku_id y = ku_in(g, &g->node[mask], 1), dz = ku_out(g, mask, 0), sums = 0;
    ku_id norm = made_by(g, y, KU_OP_batch_norm);
    if (norm == 0 || g->attr[g->node[norm].attr].act != KU_ACT_RELU)
        return KUMI_OK;
    for (ku_id n = g->n_nodes - 1; n > mask; n--)
        if (g->node[n].op == KU_OP_batch_norm_dsums && g->node[n].n_in == 4 &&
            ku_in(g, &g->node[n], 0) == dz)
            sums = n;
    if (sums == 0)
        return KUMI_OK;
    const struct ku_node *s = &g->node[sums];
    ku_id in[5] = {ku_in(g, &g->node[mask], 0), ku_in(g, s, 1), ku_in(g, s, 2), ku_in(g, s, 3), y};
    ku_id out[4] = {ku_out(g, sums, 0), ku_out(g, sums, 1), ku_out(g, sums, 2), dz};
    struct ku_attrs a = g->attr[s->attr];
    KU_TRY(become(g, mask, sums, &a, in, 5));
    uint32_t span = g->n_refs;
    KU_TRY(ku_graph_refs(g, out, 4));
    g->node[mask].out = span;
    g->node[mask].n_out = 4;
    for (int i = 0; i < 4; i++) {
        g->value[out[i]].def = mask;
        g->value[out[i]].result = (uint8_t)i;
    }
    return KUMI_OK;
}

int ku_fuse_batch_norm(struct ku_graph *g)
{
    for (ku_id n = 1; n < g->n_nodes; n++) {
        if (g->node[n].op == KU_OP_act)
            KU_TRY(fuse_forward(g, n));
        else if (g->node[n].op == KU_OP_act_dx)
            KU_TRY(fuse_backward(g, n));
    }
    return ku_graph_sort(g); /* what sums read may be made again behind the mask */
}
