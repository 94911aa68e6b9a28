/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fusion of nodes into one kernel. Every rounding that the graph states is preserved.
 *
 *   linear + act               the activation becomes the epilogue of linear, which writes the
 *                              rounded pre-activation as its second result and applies act to it
 *   convert [+ add] + sumsq    the collective adds the gradient of a tied parameter's other use and
 *                              the squares of each reduced chunk while it is in cache, instead of
 *                              reading the gradient again
 *   batch norm                 batch_norm.c
 */
#include "base/err.h"
#include "base/mem.h"
#include "pass/pass.h"

static int fuse_act(struct ku_graph *g, ku_id act)
{
    ku_id z = ku_in(g, &g->node[act], 0), y = ku_out(g, act, 0), linear = g->value[z].def;
    if (linear == 0 || g->node[linear].op != KU_OP_linear || g->node[linear].n_out != 1 ||
        g->node[linear].phase != g->node[act].phase || g->node[linear].stage != g->node[act].stage)
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

/* The chain of sumsq nodes in order, and the stats value that each one makes. */
struct chain {
    ku_id *node, *value, zero;
    uint32_t n, n_fused;
};

/* The collective that makes a partitioned `value`, 0 = none. Also 0 if a sum over replicas follows:
 * the squares would be those of partial sums. */
static ku_id convert_of(const struct ku_graph *g, ku_id value)
{
    const struct ku_value *x = &g->value[value];
    if (g->node[x->def].op != KU_OP_convert || !ku_layout_has(&g->layout[x->layout], KU_Z))
        return 0;
    const struct ku_layout *from = &g->layout[g->value[ku_in(g, &g->node[x->def], 0)].layout],
                           *to = &g->layout[x->layout];
    bool is_sum = false;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (from->at[a].kind == KU_P && g->mesh.extent[a] > 1) {
            if (to->at[a].kind != KU_Z)
                return 0;
            is_sum = true;
        }
    return is_sum ? x->def : 0;
}

/* The collective that can include a sumsq: the one whose shard it reads; if it reads the sum of two
 * uses, the one whose operand backward completes last. 0: none, as for squares in chunks of their
 * own, which no collective adds. */
static ku_id host_of(const struct ku_graph *g, ku_id sumsq)
{
    ku_id x = ku_in(g, &g->node[sumsq], 0), add = g->value[x].def;
    if (g->attr[g->node[sumsq].attr].chunk)
        return 0;
    if (g->node[add].op != KU_OP_add)
        return convert_of(g, x);
    ku_id a = convert_of(g, ku_in(g, &g->node[add], 0)),
          b = convert_of(g, ku_in(g, &g->node[add], 1));
    if (a == 0 || b == 0 || a == b || g->attr[g->node[a].attr].wire >= 0 ||
        g->attr[g->node[a].attr].by_micro)
        return 0; /* with a narrow wire a collective has no addend; by_micro uses the addend for
                   * the earlier micro-batches */
    return g->value[ku_in(g, &g->node[a], 0)].def > g->value[ku_in(g, &g->node[b], 0)].def ? a : b;
}

/* Replaces operands and results of node `n`. */
static int rewrite(struct ku_graph *g, ku_id n, const ku_id *in, int n_in, const ku_id *out,
                   int n_out)
{
    struct ku_node *node = &g->node[n];
    uint32_t span = g->n_refs;
    KU_TRY(ku_graph_refs(g, in, (uint32_t)n_in));
    KU_TRY(ku_graph_refs(g, out, (uint32_t)n_out));
    node->in = span;
    node->n_in = (uint8_t)n_in;
    node->out = span + (uint32_t)n_in;
    node->n_out = (uint8_t)n_out;
    for (int i = 0; i < n_out; i++) {
        g->value[out[i]].def = n;
        g->value[out[i]].result = (uint8_t)i;
    }
    return KUMI_OK;
}

/* Moves a sumsq, and the sum of two uses that it reads, into the collective `host`, which then
 * makes the next value of stats as well. */
static int fuse_sumsq(struct ku_graph *g, ku_id sumsq, ku_id host, ku_id stats, ku_id value)
{
    ku_id x = ku_in(g, &g->node[sumsq], 0), add = g->value[x].def, own = ku_out(g, host, 0);
    ku_id in[3] = {ku_in(g, &g->node[host], 0), stats}, out[2] = {x, value};
    struct ku_attrs a = g->attr[g->node[host].attr];
    int is_sum = add != host;
    a.index = g->attr[g->node[sumsq].attr].index;
    ku_id attr = ku_graph_attr(g, &a);
    if (attr == 0)
        return KUMI_ENOMEM;
    if (is_sum) {
        in[2] = ku_in(g, &g->node[add], ku_in(g, &g->node[add], 0) == own);
        g->node[add].op = KU_OP_NONE;
    }
    g->node[host].attr = attr;
    g->node[sumsq].op = KU_OP_NONE;
    return rewrite(g, host, in, 2 + is_sum, out, 2);
}

/* Links the chain again, collectives first: they complete in any order, but before the remaining
 * sumsq nodes read stats. */
static int relink(struct ku_graph *g, const struct chain *c)
{
    ku_id stats = ku_out(g, c->zero, 0);
    uint32_t at = 0;
    for (int fused = 1; fused >= 0; fused--)
        for (uint32_t i = 0; i < c->n; i++) {
            ku_id n = c->node[i], host = g->node[n].op == KU_OP_NONE ? 0 : host_of(g, n);
            if (g->node[n].op == KU_OP_NONE || (host != 0) != fused)
                continue;
            ku_id value = c->value[at++], in[2] = {ku_in(g, &g->node[n], 0), stats};
            KU_TRY(host ? fuse_sumsq(g, n, host, stats, value) : rewrite(g, n, in, 2, &value, 1));
            stats = value;
        }
    g->node[c->zero].phase = KU_PH_A; /* before the first collective starts */
    return ku_graph_sort(g);
}

/* A pipeline's chain crosses coordinates: its sums stay nodes, each with its tensor. */
static int fuse_norm(struct ku_graph *g)
{
    if (g->mesh.extent[KU_AX_PP] > 1)
        return KUMI_OK;
    struct chain c = {.node = ku_calloc(2 * (size_t)g->n_nodes, sizeof *c.node)};
    if (c.node == NULL)
        return KUMI_ENOMEM;
    c.value = c.node + g->n_nodes;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        if (g->node[n].op != KU_OP_sumsq)
            continue;
        if (c.n == 0)
            c.zero = g->value[ku_in(g, &g->node[n], 1)].def;
        c.node[c.n] = n;
        c.value[c.n++] = ku_out(g, n, 0);
        c.n_fused += host_of(g, n) != 0;
    }
    int status = c.n_fused ? relink(g, &c) : KUMI_OK;
    ku_free(c.node);
    return status;
}

int ku_pass_fuse(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t)
{
    (void)o, (void)t;
    KU_TRY(ku_fuse_batch_norm(g));
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].op == KU_OP_act)
            KU_TRY(fuse_act(g, n));
    return fuse_norm(g);
}
