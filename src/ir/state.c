/* SPDX-License-Identifier: Apache-2.0 */
#include "ir/state.h"

#include "base/err.h"
#include "ir/placement_rules.h"

static const struct ku_layout *layout_of(const struct ku_graph *g, ku_id value)
{
    return &g->layout[g->value[value].layout];
}

ku_id ku_state_written(const struct ku_graph *g, ku_id tensor)
{
    const ku_id next = g->tensor[tensor].next;
    const struct ku_node *def = &g->node[g->value[next].def];
    if (g->value[next].def && ku_place_is_gather(g, g->value[next].def))
        return ku_in(g, def, 0);
    return next;
}

static uint8_t arena_of(const struct ku_graph *g, const struct ku_tensor *x)
{
    if (x->kind == KU_T_COUNTER || x->kind == KU_T_CACHE)
        return KU_AR_STATE;
    if (x->offload != KU_OFFLOAD_NONE)
        return x->offload == KU_OFFLOAD_HOST ? KU_AR_OFFLOAD : KU_AR_FILE;
    if (ku_state_is_common(&g->mesh) && !ku_state_is_divided(&g->mesh, layout_of(g, x->value)))
        return KU_AR_HOST;
    return ku_state_is_sharded(&g->mesh) || ku_mesh_wide(&g->mesh, KU_TP_AXES | 1 << KU_AX_PP)
               ? KU_AR_SHARD
               : KU_AR_STATE;
}

struct ku_state_store ku_state_store_of(const struct ku_graph *g, ku_id tensor)
{
    const struct ku_tensor *x = &g->tensor[tensor];
    struct ku_state_store s = {.arena = arena_of(g, x)};
    const int stored = ku_layout_axes(layout_of(g, x->value), KU_Z);
    const ku_id written = g->value[ku_state_written(g, tensor)].layout;
    KU_ASSERT((stored & ~ku_state_owner_axes(&g->mesh)) == 0);
    s.is_kept = stored != 0 && s.arena != KU_AR_HOST;
    if (layout_of(g, x->value)->at[KU_AX_TP].kind == KU_S)
        s.split = g->value[x->value].layout;
    if (stored)
        s.blocks = g->value[x->value].layout;
    else if (ku_layout_has(&g->layout[written], KU_Z))
        s.blocks = written;
    return s;
}

void ku_state_owned(const struct ku_program *p, const struct ku_program_state *x,
                    const struct ku_coord *coord, int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = ku_program_slice_count(&p->mesh, &p->shape[x->shape],
                                  &p->layout[x->split ? x->split : x->blocks]);
    if (x->blocks)
        ku_program_local_range(&p->mesh, &p->layout[x->blocks], *end, x->first_block, coord, begin,
                               end);
}

int ku_state_replica_axes(const struct ku_program *p, const struct ku_program_state *x)
{
    const int split = ku_layout_axes(&p->layout[x->split], KU_S);
    const int wide = ku_mesh_wide(&p->mesh, KU_DP_AXES | (KU_TP_AXES & ~split));
    if (x->kind == KU_T_CACHE) /* rows of this rank's samples */
        return 0;
    if (x->arena == KU_AR_HOST)
        return wide & ~(1 << KU_AX_LOCAL);
    return x->is_kept ? wide & ~ku_layout_axes(&p->layout[x->blocks], KU_Z) : wide;
}
