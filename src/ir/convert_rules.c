/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redistribution: which changes of placement a convert may make on one mesh axis. All others are
 * refused; C -> P, for one, would count a value once per rank.
 *
 *     from    to                       on rank axes                       adjoint
 *     C       R                        nothing                            P -> C
 *     P       C, R                     all-reduce                         C -> R, P -> R
 *     P       S(d)                     reduce-scatter                     S(d) -> R
 *     S(d)    R, C                     all-gather                         P -> S(d), C -> S(d)
 *     C       S(d)                     own part                           S(d) -> C
 *     S(a)    S(b)                     all-to-all                         S(b) -> S(a)
 *     P       Z     (phase O)          reduce-scatter                     none: after autodiff
 *     C, R    Z     (phase O; slices)  own blocks                         none
 *     R       C     (phase O)          nothing: no adjoint follows        none
 *     Z       C, R                     all-gather                         none
 *
 * On time axes a convert accumulates: P -> C in phase O. A maximum is completed to C by
 * reduce=max, and by nothing else.
 */
#include "ir/placement_rules.h"

#include <stdio.h>

#include "base/err.h"

static bool is_allowed(struct ku_place from, struct ku_place to, int axis, int phase)
{
    if (from.kind == to.kind && from.dim == to.dim)
        return true;
    if (axis >= KU_AX_FIRST_TIME)
        return from.kind == KU_P && to.kind == KU_C && phase == KU_PH_O;
    switch ((enum ku_place_kind)from.kind) {
    case KU_C:
        return to.kind == KU_R || to.kind == KU_S || (to.kind == KU_Z && phase == KU_PH_O);
    case KU_R: /* Z: the slice of a gathered parameter that a rank retains */
        return (to.kind == KU_Z && (phase == KU_PH_O || to.dim != 0)) ||
               (to.kind == KU_C && phase == KU_PH_O);
    case KU_P:
        return to.kind != KU_Z || phase == KU_PH_O;
    case KU_S:
        return to.kind == KU_R || to.kind == KU_C || to.kind == KU_S;
    case KU_Z:
        return to.kind == KU_R || to.kind == KU_C;
    }
    return false;
}

static const char *text_of(struct ku_place p, const struct ku_shape *s, char out[8])
{
    if (p.kind == KU_S)
        snprintf(out, 8, "S(%c)", p.dim < s->ndim ? s->dim[p.dim].name : '?');
    else
        snprintf(out, 8, "%c", "CRPSZ"[p.kind]);
    return out;
}

bool ku_place_is_gather(const struct ku_graph *g, ku_id node)
{
    const struct ku_node *n = &g->node[node];
    bool gathers = false;
    if (n->op != KU_OP_convert)
        return false;
    const struct ku_layout *from = &g->layout[g->value[ku_in(g, n, 0)].layout],
                           *to = &g->layout[g->value[ku_out(g, node, 0)].layout];
    for (int a = 0; a < KU_N_AXES; a++)
        gathers = gathers || (from->at[a].kind == KU_Z && to->at[a].kind != KU_Z);
    return gathers;
}

int ku_place_check_convert(const struct ku_graph *g, ku_id node)
{
    const struct ku_node *n = &g->node[node];
    const struct ku_attrs *a = &g->attr[n->attr];
    const struct ku_value *x = &g->value[ku_in(g, n, 0)], *y = &g->value[ku_out(g, node, 0)];
    const struct ku_layout *from = &g->layout[x->layout], *to = &g->layout[y->layout];
    const bool is_max = ku_place_is_max(g, ku_in(g, n, 0));
    char one[8], two[8];
    KU_ASSERT(n->op == KU_OP_convert);
    for (int axis = 0; axis < KU_N_AXES; axis++) {
        const struct ku_place p = from->at[axis], q = to->at[axis];
        const char *why = NULL;
        if (p.kind == q.kind && p.dim == q.dim)
            continue;
        if (a->axes && !(a->axes >> axis & 1))
            why = "attribute axes does not name this axis";
        else if (!is_allowed(p, q, axis, n->phase))
            why = "no such redistribution";
        else if (p.kind == KU_P && (a->reduce == KU_REDUCE_MAX) != is_max)
            why = is_max ? "a maximum is completed by reduce=max" : "a sum is completed by a sum";
        else if (is_max && q.kind != KU_C)
            why = "a maximum is completed to C";
        if (why)
            return KU_ERR(KUMI_EINVAL, "placement: convert %s, axis %s, %s -> %s in phase %s: %s",
                          g->name[n->path], ku_axis_name(axis),
                          text_of(p, &g->shape[x->shape], one),
                          text_of(q, &g->shape[y->shape], two), ku_phase_name(n->phase), why);
    }
    return KUMI_OK;
}
