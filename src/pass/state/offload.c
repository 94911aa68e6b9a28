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
    unsigned char *reads;    /* ku_zero_note_reads */
    unsigned char *is_taken; /* per parameter: its optimizer state is offloaded */
};

static double count_of(const struct ku_graph *g, ku_id t)
{
    return (double)ku_shape_count(&g->shape[g->tensor[t].shape]);
}

/*
 * Takes offload.ratio of the optimizer state of each pipeline stage, the first parameters that fit
 * in it, and the masters of frozen parameters, which no update reads. The choice depends on the
 * model and the configuration alone, so it is the same in every program of a job.
 */
static int choose(struct targets *x)
{
    const struct ku_graph *g = x->g;
    int n_stages = 1;
    for (ku_id t = 1; t < g->n_tensors; t++)
        n_stages = g->tensor[t].stage >= n_stages ? g->tensor[t].stage + 1 : n_stages;
    double *limit = ku_calloc((size_t)n_stages, sizeof *limit);
    x->reads = ku_zero_note_reads(g);
    x->is_taken = ku_calloc(g->n_tensors, 1);
    if (!limit || !x->reads || !x->is_taken) {
        ku_free(limit);
        return KUMI_ENOMEM;
    }
    for (ku_id t = 1; t < g->n_tensors; t++) {
        if (g->tensor[t].kind != KU_T_PARAM)
            continue;
        KU_ASSERT(g->tensor[t].stage >= 0);
        x->is_taken[t] = ku_is_frozen(x->o, g->tensor[t].name);
        if (!x->is_taken[t])
            limit[g->tensor[t].stage] += x->o->offload.ratio * count_of(g, t);
    }
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const double count = g->tensor[t].kind == KU_T_PARAM ? count_of(g, t) : 0;
        if (count == 0 || x->is_taken[t] || count > limit[g->tensor[t].stage])
            continue;
        limit[g->tensor[t].stage] -= count;
        x->is_taken[t] = 1;
    }
    ku_free(limit);
    return KUMI_OK;
}

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
        return all->is_taken[x->of ? x->of : t] ? o->offload.optimizer : KU_OFFLOAD_NONE;
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
    int status = choose(&all);
    if (status == KUMI_OK)
        status = assign(g, &all);
    ku_free(all.reads);
    ku_free(all.is_taken);
    return status;
}
