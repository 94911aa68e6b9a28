/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the offload target (`target`) of each state tensor: separate host memory or a file
 * (ZeRO-Offload, Ren et al. 2021; ZeRO-Infinity, Rajbhandari et al. 2021).
 *
 *     optimizer   optimizer state, and masters of parameters that forward reads through a copy
 *     params      parameters that forward reads, or their compute copies
 *
 * A rank offloads its local shard. With host-shared state the offloaded optimizer state is
 * partitioned too, because only its owner reads and writes it. Parameters with fewer than
 * persist_below elements are not offloaded. The stream pass (lower/stream.c) adds the transfers.
 */
#include "base/err.h"
#include "base/mem.h"
#include "ir/state.h"
#include "pass/zero.h"

struct targets {
    const struct ku_graph *g;
    const struct ku_compile_opts *o;
    unsigned char *reads; /* ku_zero_note_reads */
    double *so_far, all;  /* elements of all parameters up to each tensor; of all */
};

static int note(struct targets *x)
{
    x->reads = ku_zero_note_reads(x->g);
    x->so_far = ku_calloc(x->g->n_tensors, sizeof *x->so_far);
    if (!x->reads || !x->so_far)
        return KUMI_ENOMEM;
    for (ku_id t = 1; t < x->g->n_tensors; t++) {
        if (x->g->tensor[t].kind == KU_T_PARAM)
            x->all += (double)ku_shape_count(&x->g->shape[x->g->tensor[t].shape]);
        x->so_far[t] = x->all;
    }
    return KUMI_OK;
}

/* offload.ratio of the optimizer state is offloaded, starting with the first parameters: the same
 * choice in every program of a job. */
static enum ku_offload_target target_of(const struct targets *all, ku_id t)
{
    const struct ku_graph *g = all->g;
    const struct ku_compile_opts *o = all->o;
    const struct ku_tensor *x = &g->tensor[t];
    const struct ku_layout *layout = &g->layout[g->value[x->value].layout];
    const bool is_partitioned = ku_layout_has(layout, KU_Z);
    if (x->kind == KU_T_OPTIMIZER ||
        (x->kind == KU_T_PARAM && ku_zero_is_master(g, all->reads, t))) {
        if (ku_state_is_common(&g->mesh) && (all->reads[t] & KU_READ_WHOLE))
            return KU_OFFLOAD_NONE;
        return all->so_far[x->of ? x->of : t] <= o->offload.ratio * all->all ? o->offload.optimizer
                                                                             : KU_OFFLOAD_NONE;
    }
    if (x->kind != KU_T_PARAM && x->kind != KU_T_DERIVED)
        return KU_OFFLOAD_NONE;
    return (ku_state_owner_axes(&g->mesh) == 0 || is_partitioned) &&
                   ku_shape_count(&g->shape[x->shape]) >= o->persist_below
               ? o->offload.params
               : KU_OFFLOAD_NONE;
}

static int assign(struct ku_graph *g, const struct targets *all)
{
    for (ku_id id = 1; id < g->n_tensors; id++) {
        struct ku_tensor *x = &g->tensor[id];
        x->offload = (uint8_t)target_of(all, id);
        if (x->offload == KU_OFFLOAD_NONE || !ku_state_is_common(&g->mesh))
            continue;
        ku_id kept = ku_zero_in_blocks(g, g->value[x->value].layout, 1 << KU_AX_LOCAL);
        if (kept == 0)
            return KUMI_ENOMEM;
        g->value[x->value].layout = kept;
    }
    return KUMI_OK;
}

int ku_pass_offload(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t)
{
    struct targets all = {.g = g, .o = o};
    (void)t;
    if (!o->offload.optimizer && !o->offload.params)
        return KUMI_OK;
    int status = note(&all);
    if (status == KUMI_OK)
        status = assign(g, &all);
    ku_free(all.reads);
    ku_free(all.so_far);
    return status;
}
