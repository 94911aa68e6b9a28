/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuses batch norm with the ops that follow it in a residual layer, forward and backward:
 *
 *   relu(batch_norm(x) + r)               one kernel, with the roundings of the separate nodes
 *   relu(batch_norm(x))                   the same
 *   act_dx(dy, z) of ReLU                 reads y instead: z > 0 where y > 0, so z is not kept
 *   batch_norm_dsums(act_dx(dy, y), ..)   one kernel, which also writes the result of act_dx
 */
#include "base/err.h"
#include "base/mem.h"
#include "ir/uses.h"
#include "pass/pass.h"

struct fusion {
    struct ku_graph *g;
    struct ku_readers readers;
    unsigned char *is_output; /* per value */
    ku_id *fused_into;        /* per batch norm node: the node that replaces it, 0 = none */
};

static ku_id made_by(const struct ku_graph *g, ku_id value, int op)
{
    ku_id def = g->value[value].def;
    return def && g->node[def].op == op ? def : 0;
}
/* The batch norm that makes `value`, if nothing is fused into it; else 0. */
static ku_id plain_norm(const struct ku_graph *g, ku_id value)
{
    ku_id norm = made_by(g, value, KU_OP_batch_norm);
    return norm && g->node[norm].n_in == 5 && g->attr[g->node[norm].attr].act == KU_ACT_NONE ? norm
                                                                                             : 0;
}

static bool reads(const struct ku_graph *g, ku_id node, ku_id value, int *operand)
{
    for (*operand = 0; *operand < g->node[node].n_in; ++*operand)
        if (g->node[node].op != KU_OP_NONE && ku_in(g, &g->node[node], *operand) == value)
            return 1;
    return 0;
}

static bool is_relu_dx(const struct ku_graph *g, ku_id n)
{
    return g->node[n].op == KU_OP_act_dx && g->attr[g->node[n].attr].act == KU_ACT_RELU;
}

/* Whether `value` is no output and its only readers are `reader` and act_dx nodes that read it as
 * ReLU's operand. */
static bool is_inner(const struct fusion *f, ku_id value, ku_id reader)
{
    const struct ku_graph *g = f->g;
    int operand;
    for (uint32_t e = ku_readers_of(&f->readers, value); e; e = f->readers.entry[e].next) {
        ku_id n = f->readers.entry[e].node;
        if (n != reader && reads(g, n, value, &operand) && !(is_relu_dx(g, n) && operand == 1))
            return 0;
    }
    return !f->is_output[value];
}

/* Turns `node` into node `like` with these operands and attributes; its results stay. */
static int become(struct fusion *f, ku_id node, ku_id like, const struct ku_attrs *a,
                  const ku_id *in, int n_in)
{
    struct ku_graph *g = f->g;
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
    for (int i = 0; i < n_in; i++)
        KU_TRY(ku_readers_add(&f->readers, in[i], node));
    return KUMI_OK;
}

/* Makes the ReLU gradients that read the operand z read the result y. */
static int read_result(struct fusion *f, ku_id z, ku_id y)
{
    struct ku_graph *g = f->g;
    int operand;
    for (uint32_t e = ku_readers_of(&f->readers, z); e; e = f->readers.entry[e].next) {
        ku_id n = f->readers.entry[e].node;
        if (!is_relu_dx(g, n) || !reads(g, n, z, &operand))
            continue;
        g->refs[g->node[n].in + (uint32_t)operand] = y;
        KU_TRY(ku_readers_add(&f->readers, y, n));
    }
    return KUMI_OK;
}

static int fuse_forward(struct fusion *f, ku_id act)
{
    struct ku_graph *g = f->g;
    ku_id z = ku_in(g, &g->node[act], 0), in[6], norm = plain_norm(g, z), sum = 0;
    int n_in = 5;
    if (g->attr[g->node[act].attr].act != KU_ACT_RELU)
        return KUMI_OK;
    if (norm == 0) {
        sum = made_by(g, z, KU_OP_add);
        for (int i = 0; sum && i < 2 && norm == 0; i++) {
            ku_id inner = ku_in(g, &g->node[sum], i), r = ku_in(g, &g->node[sum], 1 - i);
            if (inner == r || !is_inner(f, inner, sum))
                continue;
            norm = plain_norm(g, inner);
            in[5] = r;
            n_in = 6;
        }
    }
    if (norm == 0 || g->node[norm].phase != g->node[act].phase || !is_inner(f, z, act))
        return KUMI_OK;
    for (int i = 0; i < 5; i++)
        in[i] = ku_in(g, &g->node[norm], i);
    struct ku_attrs a = g->attr[g->node[norm].attr];
    a.act = KU_ACT_RELU;
    KU_TRY(read_result(f, z, ku_out(g, act, 0)));
    KU_TRY(become(f, act, norm, &a, in, n_in));
    if (sum)
        g->node[sum].op = KU_OP_NONE;
    f->fused_into[norm] = act;
    return KUMI_OK;
}

/* Fuses the batch_norm_dsums of the first batch norm that reads the result of this act_dx. */
static int fuse_backward(struct fusion *f, ku_id mask)
{
    struct ku_graph *g = f->g;
    ku_id y = ku_in(g, &g->node[mask], 1), dz = ku_out(g, mask, 0), sums = 0;
    ku_id norm = made_by(g, y, KU_OP_batch_norm);
    if (norm == 0 || g->attr[g->node[norm].attr].act != KU_ACT_RELU)
        return KUMI_OK;
    for (uint32_t e = ku_readers_of(&f->readers, dz); e; e = f->readers.entry[e].next) {
        ku_id n = f->readers.entry[e].node;
        if (n > mask && (sums == 0 || n < sums) && g->node[n].op == KU_OP_batch_norm_dsums &&
            g->node[n].n_in == 4 && ku_in(g, &g->node[n], 0) == dz)
            sums = n;
    }
    if (sums == 0)
        return KUMI_OK;
    const struct ku_node *s = &g->node[sums];
    ku_id in[5] = {ku_in(g, &g->node[mask], 0), ku_in(g, s, 1), ku_in(g, s, 2), ku_in(g, s, 3), y};
    ku_id out[4] = {ku_out(g, sums, 0), ku_out(g, sums, 1), ku_out(g, sums, 2), dz};
    struct ku_attrs a = g->attr[s->attr];
    KU_TRY(become(f, mask, sums, &a, in, 5));
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

static int fuse_all(struct fusion *f)
{
    struct ku_graph *g = f->g;
    KU_TRY(ku_readers_init(&f->readers, g));
    f->is_output = ku_calloc(g->n_values, 1);
    f->fused_into = ku_calloc(g->n_nodes, sizeof *f->fused_into);
    if (!f->is_output || !f->fused_into)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < g->n_outputs; i++)
        f->is_output[g->output[i].value] = 1;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        if (g->node[n].op == KU_OP_act)
            KU_TRY(fuse_forward(f, n));
        else if (g->node[n].op == KU_OP_act_dx)
            KU_TRY(fuse_backward(f, n));
    }
    for (ku_id u = 1; u < g->n_uses; u++)
        if (f->fused_into[g->use[u].node])
            g->use[u].node = f->fused_into[g->use[u].node];
    return ku_graph_sort(g); /* operands of the sums may be recomputed after `mask` */
}

int ku_fuse_batch_norm(struct ku_graph *g)
{
    struct fusion f = {.g = g};
    int status = fuse_all(&f);
    ku_readers_fini(&f.readers);
    ku_free(f.is_output);
    ku_free(f.fused_into);
    return status;
}
