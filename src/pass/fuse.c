/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fusion into one kernel, with every rounding that the graph states. linear + act: the activation
 * becomes linear's epilogue, which keeps the rounded pre-activation as its second result and
 * applies act to that. convert + sumsq: the collective adds the squares of what it has just summed,
 * from the caches, instead of a second read of the gradient.
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

/* The chain of stats: nodes in order, and the value that each one makes. */
struct chain {
    ku_id *node, *value, zero;
    uint32_t n, n_fused;
};

/* Whether the collective that ends in what a sumsq reads leaves whole blocks of it. */
static int is_of_blocks(const struct ku_graph *g, ku_id sumsq)
{
    const struct ku_value *x = &g->value[ku_in(g, &g->node[sumsq], 0)];
    return g->node[x->def].op == KU_OP_convert && ku_layout_has(&g->layout[x->layout], KU_Z);
}

/* Node `n` makes the next value of the chain, as its result `result`, from `stats`. */
static int link(struct ku_graph *g, ku_id n, ku_id stats, ku_id value, int result)
{
    struct ku_node *node = &g->node[n];
    ku_id in[2] = {ku_in(g, node, 0), stats}, out[2] = {ku_out(g, n, 0), value};
    uint32_t span = g->n_refs;
    KU_TRY(ku_graph_refs(g, in, 2));
    KU_TRY(ku_graph_refs(g, result ? out : &value, (uint32_t)result + 1));
    node->in = span;
    node->n_in = 2;
    node->out = span + 2;
    node->n_out = (uint8_t)(result + 1);
    g->value[value].def = n;
    g->value[value].result = (uint8_t)result;
    return KUMI_OK;
}

static int fuse_sumsq(struct ku_graph *g, ku_id sumsq, ku_id stats, ku_id value)
{
    ku_id convert = g->value[ku_in(g, &g->node[sumsq], 0)].def;
    struct ku_attrs a = g->attr[g->node[convert].attr];
    a.index = g->attr[g->node[sumsq].attr].index;
    ku_id attr = ku_graph_attr(g, &a);
    if (attr == 0)
        return KUMI_ENOMEM;
    g->node[convert].attr = attr;
    g->node[sumsq].op = KU_OP_NONE;
    return link(g, convert, stats, value, 1);
}

/* Collectives end in any order, and before what follows them reads: converts come first. */
static int relink(struct ku_graph *g, const struct chain *c)
{
    ku_id stats = ku_out(g, c->zero, 0);
    uint32_t at = 0;
    for (int fused = 1; fused >= 0; fused--)
        for (uint32_t i = 0; i < c->n; i++) {
            if (g->node[c->node[i]].op == KU_OP_NONE || is_of_blocks(g, c->node[i]) != fused)
                continue;
            ku_id value = c->value[at++];
            KU_TRY(fused ? fuse_sumsq(g, c->node[i], stats, value)
                         : link(g, c->node[i], stats, value, 0));
            stats = value;
        }
    g->node[c->zero].phase = KU_PH_A; /* before the first collective starts */
    return ku_graph_sort(g);
}

static int fuse_norm(struct ku_graph *g)
{
    struct chain c = {.node = ku_calloc(2 * (size_t)g->n_nodes, sizeof *c.node)};
    if (c.node == NULL)
        return KUMI_ENOMEM;
    c.value = c.node + g->n_nodes;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        if (g->node[n].op == KU_OP_stats_zero)
            c.zero = n;
        if (g->node[n].op != KU_OP_sumsq)
            continue;
        c.node[c.n] = n;
        c.value[c.n++] = ku_out(g, n, 0);
        c.n_fused += (uint32_t)is_of_blocks(g, n);
    }
    int status = c.n_fused ? relink(g, &c) : KUMI_OK;
    ku_free(c.node);
    return status;
}

int ku_pass_fuse(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t)
{
    (void)o, (void)t;
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].op == KU_OP_act)
            KU_TRY(fuse_act(g, n));
    return fuse_norm(g);
}
