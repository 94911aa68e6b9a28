/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Converts of activations and their adjoints (tensor and sequence parallelism, synchronised batch
 * norm). What moves follows from the placements on the axis:
 *
 *     C -> R         nothing
 *     C -> S(d)      a copy of the rank's part
 *     P -> C, R      all-reduce in place
 *     P -> S(d)      reduce-scatter: the whole sums are in the operand's buffer, the rank's part
 *                    gets one of its own
 *     S(d) -> C, R   all-gather: the other way round
 *
 * A collective starts as soon as its operand is computed, so that what follows in the list (the
 * weight gradient beside dx) runs meanwhile; the first reader of the result waits for it. A gather
 * in backward of what forward has computed (the input of a column-parallel layer, parallel.sp)
 * starts before the input gradient of that layer:
 *
 *     compute         linear_dx              linear_dw
 *     axis tp     s gather  w | s reduce-scatter     w
 */
#include "base/err.h"
#include "base/mem.h"
#include "pass/lower/lower.h"

bool ku_lower_is_of_block(int phase, int kind)
{
    return kind == KU_BL_F   ? phase == KU_PH_F
           : kind == KU_BL_I ? phase == KU_PH_I
           : kind == KU_BL_W ? phase == KU_PH_W
                             : phase == KU_PH_I || phase == KU_PH_W;
}

/* Whether a convert changes an activation or its adjoint between ranks. */
static bool is_redistribution(const struct ku_lower *l, ku_id n)
{
    const struct ku_node *node = &l->g->node[n];
    return node->op == KU_OP_convert && node->phase != KU_PH_O && !ku_bucket_is_gather(l->g, n) &&
           !ku_gather_is_slice(l->g, n) && ku_lower_axes(l, n);
}

static const struct ku_node *def_of(const struct ku_lower *l, ku_id value)
{
    return &l->g->node[l->g->value[value].def];
}

/* The node before linear_dw `n` that makes the input gradient from the same adjoint; 0: none. */
static ku_id beside(const struct ku_graph *g, ku_id n)
{
    for (ku_id k = n - 1; k > 0 && g->node[k].phase != KU_PH_F; k--)
        if (g->node[k].op == KU_OP_linear_dx && g->node[k].path == g->node[n].path)
            return ku_in(g, &g->node[k], 0) == ku_in(g, &g->node[n], 1) ? k : 0;
    return 0;
}

void ku_redistribute_analyse(struct ku_lower *l)
{
    const struct ku_graph *g = l->g;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        if (g->node[n].op == KU_OP_linear_dw) {
            const ku_id x = g->value[ku_in(g, &g->node[n], 0)].def;
            if (x && g->node[x].phase != KU_PH_F && is_redistribution(l, x) &&
                def_of(l, ku_in(g, &g->node[x], 0))->phase == KU_PH_F)
                l->ahead[beside(g, n)] = x;
        }
        if (!is_redistribution(l, n))
            continue;
        const ku_id from = ku_in(g, &g->node[n], 0);
        l->wire[from] = 1;
        if ((def_of(l, from)->phase == KU_PH_F) == (g->node[n].phase == KU_PH_F) &&
            def_of(l, from)->stage == g->node[n].stage)
            l->sync[from] = n;
    }
}

/* The exchange on an axis of the convert, and whether its result has a buffer of its own. */
static int exchange_of(const struct ku_lower *l, ku_id n, int axes, bool *is_moved)
{
    const struct ku_graph *g = l->g;
    const struct ku_layout *from = &g->layout[g->value[ku_in(g, &g->node[n], 0)].layout],
                           *to = &g->layout[g->value[ku_out(g, n, 0)].layout];
    const int parts = ku_layout_axes(from, KU_S) & axes, cuts = ku_layout_axes(to, KU_S) & axes;
    KU_ASSERT((ku_layout_axes(to, KU_P) & axes) == 0);
    KU_ASSERT((parts == 0 || parts == axes) && (cuts == 0 || cuts == axes) && !(parts && cuts));
    *is_moved = parts || cuts;
    return parts ? KU_X_ALL_GATHER : cuts ? KU_X_REDUCE_SCATTER : KU_X_ALL_REDUCE;
}

/* Whether a convert takes the rank's part of a whole value. */
static bool is_part(const struct ku_lower *l, ku_id n)
{
    const struct ku_graph *g = l->g;
    const struct ku_layout *from = &g->layout[g->value[ku_in(g, &g->node[n], 0)].layout],
                           *to = &g->layout[g->value[ku_out(g, n, 0)].layout];
    const int cut = ku_layout_axes(to, KU_S) & ~ku_layout_axes(from, KU_S);
    return ku_mesh_wide(&g->mesh, cut) != 0;
}

static ku_id new_buffer(struct ku_lower *l, ku_id value)
{
    return ku_lower_buffer(l, value, l->wire[value] ? KU_AR_WIRE : KU_AR_STEP,
                           def_of(l, value)->phase == KU_PH_F ? KU_CL_ACTIVATION : KU_CL_ADJOINT);
}

int ku_redistribute(struct ku_lower *l, ku_id n)
{
    const struct ku_graph *g = l->g;
    const ku_id from = ku_in(g, &g->node[n], 0), to = ku_out(g, n, 0);
    const int axes = ku_lower_axes(l, n);
    bool is_moved = false;
    uint32_t handle;
    KU_ASSERT(l->buffer[from] != 0);
    if (axes && l->sync_turn[n] == l->turn)
        return KUMI_OK;
    KU_TRY(ku_lower_settle(l, from));
    l->buffer[to] = l->buffer[from];
    if (axes == 0)
        return is_part(l, n) ? ku_lower_part(l, n) : KUMI_OK;
    KU_ASSERT(l->pending[to] == 0);
    const int kind = exchange_of(l, n, axes, &is_moved);
    const ku_id named = kind == KU_X_ALL_GATHER ? from : to; /* parts are placed S */
    struct ku_operand part = ku_lower_operand(l, from, l->buffer[from], g->value[named].layout);
    if (is_moved) {
        part.out = l->buffer[to] = new_buffer(l, to);
        if (part.out == 0)
            return ku_err_get()->status;
    }
    l->sync_turn[n] = l->turn;
    l->reduced[n] |= (uint8_t)axes;
    KU_TRY(ku_lower_start(l, kind, axes, (int)g->attr[g->node[n].attr].reduce, NULL, &part, 1,
                          g->node[n].path, &handle));
    l->pending[to] = handle;
    return l->o->overlap ? KUMI_OK : ku_lower_settle(l, to);
}

int ku_redistribute_ahead(struct ku_lower *l, ku_id node, int kind)
{
    const ku_id n = l->ahead[node];
    return n && node && ku_lower_is_of_block(l->g->node[n].phase, kind) ? ku_redistribute(l, n)
                                                                        : KUMI_OK;
}

int ku_redistribute_end(struct ku_lower *l)
{
    const struct ku_graph *g = l->g;
    for (ku_id n = 1; n < g->n_nodes && l->pipe; n++)
        if (g->node[n].op == KU_OP_convert && l->sync_turn[n] == l->turn)
            KU_TRY(ku_lower_settle(l, ku_out(g, n, 0)));
    return KUMI_OK;
}

bool ku_redistribute_is_gradient(const struct ku_lower *l, ku_id n)
{
    const struct ku_node *node = &l->g->node[n];
    return node->op == KU_OP_convert && node->phase == KU_PH_O && ku_lower_axes(l, n) != 0 &&
           (ku_lower_axes(l, n) & ~KU_TP_AXES) == 0 &&
           def_of(l, ku_in(l->g, node, 0))->op == KU_OP_convert;
}

static bool is_alike(const struct ku_lower *l, ku_id n, ku_id other)
{
    const struct ku_graph *g = l->g;
    return ku_redistribute_is_gradient(l, other) && ku_lower_runs(l, other) &&
           ku_lower_axes(l, n) == ku_lower_axes(l, other) &&
           g->value[ku_out(g, n, 0)].dtype == g->value[ku_out(g, other, 0)].dtype;
}

int ku_redistribute_gradients(struct ku_lower *l, ku_id n)
{
    const struct ku_graph *g = l->g;
    uint32_t n_parts = 0, handle;
    if (l->reduced[n])
        return KUMI_OK;
    struct ku_operand *part = ku_calloc(g->n_uses, sizeof *part);
    int status = part ? KUMI_OK : KUMI_ENOMEM;
    for (ku_id k = n; k < g->n_nodes && status == KUMI_OK; k++) {
        if (!is_alike(l, n, k))
            continue;
        const ku_id from = ku_in(g, &g->node[k], 0), to = ku_out(g, k, 0);
        KU_ASSERT(n_parts < g->n_uses);
        if (ku_lower_runs(l, g->value[from].def)) /* else a message brings it */
            status = ku_lower_convert(l, g->value[from].def);
        if (status == KUMI_OK)
            status = ku_lower_settle(l, from);
        if (status == KUMI_OK)
            status = ku_messages_release(l, from); /* the sum takes its place */
        l->buffer[to] = l->buffer[from];
        l->reduced[k] |= (uint8_t)ku_lower_axes(l, n);
        part[n_parts++] = ku_lower_operand(l, from, l->buffer[from], g->value[to].layout);
    }
    if (status == KUMI_OK)
        status = ku_lower_start(l, KU_X_ALL_REDUCE, ku_lower_axes(l, n), KU_REDUCE_SUM, NULL, part,
                                n_parts, g->node[n].path, &handle);
    ku_free(part);
    return status == KUMI_OK ? ku_lower_wait(l, handle) : status;
}
