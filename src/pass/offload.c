/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tensors of the state lie in host memory of their own or in a file (ZeRO-Offload, Ren et al.
 * 2021; ZeRO-Infinity, Rajbhandari et al. 2021), `tier` of a tensor:
 *
 *     optimizer   its own tensors, and masters of parameters that forward reads through a copy
 *     params      what forward reads: parameters, or their copies in compute precision
 *
 * A rank keeps there what it keeps at all: its blocks, also of state that the host's ranks share,
 * where nobody but the owner touches the optimizer's. What small a parameter may be is
 * persist_below's business. How the bytes come and go is the stream pass's (stream.c).
 */
#include "base/err.h"
#include "pass/zero.h"

/* Parameters up to this one are within the share of the optimizer's state that goes; the same for
 * every program of a job. */
static int is_within_ratio(const struct ku_graph *g, double ratio, ku_id param)
{
    double all = 0, so_far = 0;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        double count = (double)ku_shape_count(&g->shape[g->tensor[t].shape]);
        count = g->tensor[t].kind == KU_T_PARAM ? count : 0;
        all += count;
        so_far += t <= param ? count : 0;
    }
    return so_far <= ratio * all;
}

/* Whether each rank has its own copy of the whole state. */
static int is_replicated(const struct ku_graph *g, const struct ku_compile_opts *o)
{
    return ku_mesh_dp(&g->mesh) == 1 || (!o->share_host_state && !ku_zero_is_private(o));
}

static enum ku_tier tier_of(const struct ku_graph *g, const struct ku_compile_opts *o, ku_id t)
{
    const struct ku_tensor *x = &g->tensor[t];
    const struct ku_layout *layout = &g->layout[g->value[x->value].layout];
    int is_dealt = ku_layout_has(layout, KU_Z), is_alone = is_replicated(g, o);
    if (x->kind == KU_T_OPTIMIZER || (x->kind == KU_T_PARAM && ku_zero_is_master(g, t))) {
        if (!is_alone && o->share_host_state && ku_zero_is_read_whole(g, t))
            return KU_TIER_NONE;
        return is_within_ratio(g, o->offload.ratio, x->of ? x->of : t) ? o->offload.optimizer
                                                                       : KU_TIER_NONE;
    }
    if (x->kind != KU_T_PARAM && x->kind != KU_T_DERIVED)
        return KU_TIER_NONE;
    return (is_alone || is_dealt) && ku_shape_count(&g->shape[x->shape]) >= o->persist_below
               ? o->offload.params
               : KU_TIER_NONE;
}

int ku_pass_offload(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t)
{
    int is_shared = o->share_host_state && ku_mesh_dp(&g->mesh) > 1;
    (void)t;
    if (!o->offload.optimizer && !o->offload.params)
        return KUMI_OK;
    for (ku_id id = 1; id < g->n_tensors; id++) {
        struct ku_tensor *x = &g->tensor[id];
        x->tier = (uint8_t)tier_of(g, o, id);
        if (x->tier == KU_TIER_NONE || !is_shared)
            continue;
        ku_id kept = ku_zero_in_blocks(g, g->value[x->value].layout, ku_zero_block_axes(o));
        if (kept == 0)
            return KUMI_ENOMEM;
        g->value[x->value].layout = kept;
    }
    return KUMI_OK;
}
