/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fusion into one kernel, with every rounding that the graph states. linear + act: the activation
 * becomes linear's epilogue, which keeps the rounded pre-activation as its second result and
 * applies act to that. Batch norm: fuse_norm.c.
 */
#include "base/err.h"
#include "base/mem.h"
#include "pass/pass.h"

static int fuse_act(struct ku_graph *g, ku_id act)
{
    ku_id z = ku_in(g, &g->node[act], 0), y = ku_out(g, act, 0), linear = g->value[z].def;
    if (linear == 0 || g->node[linear].op != KU_OP_linear || g->node[linear].n_out != 1 ||
        g->node[linear].phase != KU_PH_F || g->node[act].phase != KU_PH_F)
        return KUMI_OK;
    struct ku_attrs a = g->attr[g->node[linear].attr];
    a.act = g->attr[g->node[act].attr].act;
    ku_id attr = ku_graph_attr(g, &a);
    uint32_t span = g->n_refs;
    KU_TRY(ku_graph_refs(g, (ku_id[]){y, z}, 2));
    struct ku_node *n = &g->node[linear];
    if (attr == 0)
        return KUMI_ENOMEM;
    n->attr = attr;
    n->out = span;
    n->n_out = 2;
    g->value[y].def = linear;
    g->value[y].result = 0;
    g->value[z].result = 1;
    g->node[act].op = KU_OP_NONE;
    return KUMI_OK;
}

int ku_pass_fuse(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t)
{
    (void)o, (void)t;
    KU_TRY(ku_fuse_norm(g));
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].op == KU_OP_act)
            KU_TRY(fuse_act(g, n));
    return KUMI_OK;
}
