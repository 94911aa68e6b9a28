/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LARS (You et al. 2017) and LAMB (You et al. 2020). The trust ratio |p| / |update| needs two exact
 * sums per tensor. The sums of all tensors form one vector, which is reduced over ranks once:
 *
 *     lars                                   lamb
 *     trust_sums(p, g)       per tensor      lamb_moments(p, m, v, g)   m', v' and the sums
 *     trust_norms            once            trust_norms
 *     lars(p, m, g, norms)   per tensor      lamb(p, m', v', norms)     computes the update again,
 *                                                                       which is cheaper than
 *                                                                       storing it
 *
 * The sums are integer limbs, so the ratio has the same bits under every parallel layout. The zero
 * pass inserts the reduction before trust_norms where state is partitioned; where axes tp and tpi
 * divide tensors, their sums are reduced between the groups of make_norms.
 */
#include "base/err.h"
#include "base/math/exact.h"
#include "base/mem.h"
#include "pass/update.h"

struct layerwise {
    struct ku_graph *g;
    const struct ku_compile_opts *o;
    ku_id report, norms;
    struct ku_update_node *node; /* [n] the tensors that o->adapt selects */
    int n;
};

/* Adds a tensor's two sums to the vector; for LAMB also updates the moments. */
static ku_id add_sums(struct layerwise *l, struct ku_update_node *u, ku_id trust)
{
    struct ku_graph *g = l->g;
    struct ku_make m = {.op = KU_OP_trust_sums,
                        .n_in = 3,
                        .in = {ku_update_read(g, u->tensor, u->grad), u->grad, trust},
                        .attr = &u->attr,
                        .path = g->tensor[u->tensor].name,
                        .source = ku_update_source(g, u->tensor)};
    if (l->o->optimizer == KU_OP_lamb)
        m = (struct ku_make){.op = KU_OP_lamb_moments,
                             .n_in = 6,
                             .in = {m.in[0], g->tensor[u->state[1]].value,
                                    g->tensor[u->state[2]].value, u->grad, u->report, trust},
                             .n_out = 3,
                             .attr = &u->attr,
                             .path = m.path,
                             .source = m.source};
    ku_id node = m.in[0] ? ku_update_once(g, m) : 0;
    if (node == 0 || l->o->optimizer == KU_OP_lars)
        return node ? ku_out(g, node, 0) : 0;
    for (int i = 0; i < u->n_own; i++)
        g->tensor[u->state[i + 1]].next = ku_out(g, node, i);
    return ku_out(g, node, u->n_own);
}

/* Adds the sums of the tensors that are divided up to an axis. */
static ku_id add_divided(struct layerwise *l, int axis, ku_id trust)
{
    for (int i = 0; i < l->n && trust; i++)
        if (ku_update_divided_by(l->g, l->node[i].grad) == axis) {
            trust = ku_update_sum_divided(l->g, trust, axis, "trust");
            trust = trust ? add_sums(l, &l->node[i], trust) : 0;
        }
    return trust;
}

/*
 * The sums of all tensors. Those that tensor-parallel ranks divide come first, of all of them along
 * tpi before those along tp alone, and are completed before the others, which each of these ranks
 * has whole, are added: else these would count once per rank.
 */
static int make_norms(struct layerwise *l)
{
    struct ku_attrs a = ku_attrs_default;
    a.words = 2 * KU_EXACT_WORDS * (int64_t)l->n;
    ku_id node =
        ku_update_once(l->g, (struct ku_make){.op = KU_OP_stats_zero, .attr = &a, .path = "trust"});
    ku_id trust = node ? ku_out(l->g, node, 0) : 0;
    for (int k = 0; k < KU_N_DIVISIONS; k++)
        trust = add_divided(l, ku_update_division[k], trust);
    trust = trust ? ku_update_sum_divided(l->g, trust, 0, "trust") : 0;
    if (trust == 0)
        return ku_err_get()->status;
    node = ku_update_once(
        l->g, (struct ku_make){.op = KU_OP_trust_norms, .n_in = 1, .in = {trust}, .path = "trust"});
    l->norms = node ? ku_out(l->g, node, 0) : 0;
    return l->norms ? KUMI_OK : ku_err_get()->status;
}

/* Operands of lars: p, m, g, report, norms; of lamb: p, m', v', report, norms. */
static int apply(struct layerwise *l, struct ku_update_node *u)
{
    struct ku_graph *g = l->g;
    const int is_lars = l->o->optimizer == KU_OP_lars, n_written = is_lars ? 2 : 1;
    const struct ku_tensor *own = &g->tensor[u->state[1]];
    ku_id p = ku_update_read(g, u->tensor, u->grad);
    struct ku_make m = {.op = l->o->optimizer,
                        .n_in = 5,
                        .in = {p, is_lars ? own->value : own->next,
                               is_lars ? u->grad : g->tensor[u->state[2]].next, u->report,
                               l->norms},
                        .n_out = n_written + (u->copy != 0),
                        .attr = &u->attr,
                        .path = g->tensor[u->tensor].name,
                        .source = ku_update_source(g, u->tensor)};
    ku_id node = p ? ku_update_once(g, m) : 0;
    if (node == 0)
        return ku_err_get()->status;
    for (int i = 1; i < n_written; i++)
        g->tensor[u->state[i]].next = ku_out(g, node, i);
    if (u->copy)
        g->tensor[u->copy].next = ku_out(g, node, n_written);
    return ku_update_write(g, l->o, u->tensor, ku_out(g, node, 0));
}

static int collect(struct layerwise *l, const ku_id *grad, ku_id n_params)
{
    const struct ku_compile_opts *o = l->o;
    const int plain = o->optimizer == KU_OP_lars ? KU_OP_sgd : KU_OP_adamw;
    for (ku_id t = 1; t < n_params; t++) {
        if (grad[t] == 0)
            continue;
        if (!ku_update_selects(l->g, t, o->adapt, o->adapt_patterns)) {
            KU_TRY(ku_update_element(l->g, o, plain, t, grad[t], l->report));
            continue;
        }
        struct ku_update_node *u = &l->node[l->n];
        *u = (struct ku_update_node){.tensor = t, .grad = grad[t], .report = l->report};
        KU_TRY(ku_update_begin(l->g, o, o->optimizer, u));
        u->attr.index = l->n++;
        u->attr.chunk = l->g->tensor[t].chunk;
    }
    return KUMI_OK;
}

int ku_update_layerwise(struct ku_graph *g, const struct ku_compile_opts *o, const ku_id *grad,
                        ku_id n_params, ku_id report)
{
    struct layerwise l = {.g = g, .o = o, .report = report};
    int status = KUMI_OK;
    l.node = ku_calloc(n_params, sizeof *l.node);
    if (l.node == NULL)
        return KUMI_ENOMEM;
    KU_TRY_OUT(collect(&l, grad, n_params));
    if (l.n)
        KU_TRY_OUT(make_norms(&l));
    for (int i = 0; i < l.n; i++)
        KU_TRY_OUT(apply(&l, &l.node[i]));
out:
    ku_free(l.node);
    return status;
}
