/* SPDX-License-Identifier: Apache-2.0 */
#include "train/plan_volume.h"

#include <stdio.h>
#include <string.h>

static int members(const struct ku_mesh *m, int axes)
{
    int n = 1;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        n *= axes >> a & 1 ? m->extent[a] : 1;
    return n;
}

/* Sums of loss and metrics are integers. */
static int is_of_tensors(const struct ku_buffer *b)
{
    return (b->cls == KU_CL_GRAD || b->cls == KU_CL_PARAM || b->cls == KU_CL_DERIVED ||
            b->cls == KU_CL_WINDOW || b->cls == KU_CL_GATHER) &&
           ku_dtype_is_float((enum kumi_dtype)b->dtype);
}

/* Adds a part of a start: what a ring would send, and what a rank stores where memory is shared. */
static void add_part(const struct ku_program *p, const struct ku_instr *i,
                     const struct ku_operand *o, struct ku_volume *v)
{
    double count = (double)ku_shape_count(&p->shape[o->shape]), n = v->n_ranks;
    double bytes = (double)kumi_dtype_bytes((enum kumi_dtype)o->dtype);
    if (i->op == KU_X_ALL_REDUCE && ku_layout_has(&p->layout[o->layout], KU_Z))
        count /= p->mesh.extent[KU_AX_SHARD]; /* of the blocks that a rank keeps, on average */
    double sent = count * (n - 1) / n * (i->op == KU_X_ALL_REDUCE ? 2 : 1);
    double stored = i->op == KU_X_REDUCE_SCATTER          ? count / n
                    : i->op == KU_X_ALL_GATHER && !o->out ? count * (n - 1) / n
                                                          : count;
    v->elements += count;
    v->ring_bytes += sent * (double)kumi_dtype_bytes((enum kumi_dtype)i->wire);
    v->stored_bytes += stored * bytes;
}

int ku_plan_volumes(const struct ku_program *p, struct ku_volume row[KU_MAX_VOLUMES])
{
    int n = 0;
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *i = &p->instr[at];
        const struct ku_operand *o = &p->operand[i->operand + i->n_in];
        if (i->kind != KU_START || i->n_parts == 0 || ku_exchange_is_tier(i->op) ||
            !is_of_tensors(&p->buffer[o->buffer]))
            continue;
        int k = 0;
        while (k < n &&
               (row[k].exchange != i->op || row[k].axes != i->axes || row[k].group != i->group))
            k++;
        if (k == KU_MAX_VOLUMES)
            continue;
        if (k == n)
            row[n++] =
                (struct ku_volume){.exchange = (uint8_t)i->op,
                                   .axes = i->axes,
                                   .group = i->group,
                                   .n_ranks = i->group ? i->group : members(&p->mesh, i->axes)};
        for (uint32_t j = 0; j < i->n_parts; j++)
            add_part(p, i, &o[j], &row[k]);
    }
    return n;
}

/* Bytes of gradients that stay from a step's first micro-batch to its last. */
static uint64_t summed_bytes(const struct ku_program *p)
{
    uint64_t bytes = 0;
    for (ku_id b = 1; b < p->n_buffers; b++)
        if (p->buffer[b].cls == KU_CL_GRAD && p->buffer[b].home == 0 &&
            (p->mesh.mb_outer ? p->buffer[b].micro < 0
                              : p->buffer[b].arena == KU_AR_WIRE && !p->buffer[b].is_kept))
            bytes += p->buffer[b].bytes;
    return bytes;
}

/* What micro-batches that add up cost, where a rank needs only blocks of the sum. */
static void print_summed(const struct ku_program *p, const char *grads, struct ku_str *out)
{
    char text[16];
    int k = p->mesh.extent[KU_AX_MB];
    ku_text_bytes(summed_bytes(p), text);
    if (p->mesh.mb_outer)
        ku_str_add(out,
                   "  each of %d micro-batches is reduced (parallel.grad_sync: micro); a rank "
                   "accumulates %s\n",
                   k, text + strspn(text, " "));
    else if (p->zero >= 2 && ku_mesh_n_micro(&p->mesh) > 1)
        ku_str_add(
            out,
            "  gradients of %d micro-batches accumulate before they are reduced: %s of whole "
            "gradients in %s%s\n",
            ku_mesh_n_micro(&p->mesh), text + strspn(text, " "), grads,
            k > 1 ? "; parallel.grad_sync: micro reduces each" : "");
}

void ku_plan_print_volumes(const struct ku_plan *p, struct ku_str *out)
{
    const struct ku_sharding *s = &p->s.sharding;
    const struct ku_program *train = p->program[KU_PROG_TRAIN];
    struct ku_volume row[KU_MAX_VOLUMES];
    char text[2][16];
    if (p->s.batch.n_ranks == 1)
        return;
    ku_str_add(out, "\nzero %d: %d replica%s x %d shard%s", s->zero, s->replicate,
               s->replicate == 1 ? "" : "s", s->shard, s->shard == 1 ? "" : "s");
    if (train->share_host_state)
        ku_str_add(out,
                   "; the host's ranks share the state, so all stages are the same program, and no "
                   "parameters are gathered");
    ku_str_add(out, "\n  %-17s %-16s %12s %12s %12s\n", "per step and rank", "mesh axis",
               "elements", "ring sends", "shm writes");
    int n = ku_plan_volumes(train, row);
    for (int i = 0; i < n; i++) {
        char over[48] = "", factor[32];
        for (int a = 0; a < KU_AX_FIRST_TIME; a++)
            if (row[i].axes >> a & 1)
                snprintf(over + strlen(over), sizeof over - strlen(over), "%s%s",
                         over[0] ? " x " : "", ku_axis_name(a));
        snprintf(
            over + strlen(over), sizeof over - strlen(over), row[i].group ? "/%d (%d)" : " (%d)",
            row[i].group ? p->s.sharding.shard / row[i].group : row[i].n_ranks, row[i].n_ranks);
        snprintf(factor, sizeof factor, "%.2f x model", row[i].elements / (double)p->s.n_params);
        ku_str_add(out, "  %-17s %-16s %12s %12s %12s\n", ku_exchange_name(row[i].exchange), over,
                   factor, ku_text_bytes((uint64_t)row[i].ring_bytes, text[0]),
                   ku_text_bytes((uint64_t)row[i].stored_bytes, text[1]));
    }
    print_summed(train, p->s.cfg.precision_grads, out);
}

json_t *ku_plan_volumes_json(const struct ku_plan *p)
{
    struct ku_volume row[KU_MAX_VOLUMES];
    json_t *list = json_array();
    int n = ku_plan_volumes(p->program[KU_PROG_TRAIN], row);
    for (int i = 0; i < n; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:i, s:f, s:f, s:f}", "exchange",
                                        ku_exchange_name(row[i].exchange), "ranks", row[i].n_ranks,
                                        "elements", row[i].elements, "ring_bytes",
                                        row[i].ring_bytes, "stored_bytes", row[i].stored_bytes));
    return json_pack("{s:i, s:i, s:i, s:o}", "zero", p->s.sharding.zero, "replicate",
                     p->s.sharding.replicate, "shard", p->s.sharding.shard, "a_step", list);
}
