/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/volume_table.h"
#include "base/err.h"
#include "base/str.h"
#include "ir/state.h"
#include "plan/picture.h"
#include "sim/between_hosts.h"

#include <stdio.h>
#include <string.h>

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

/* Print the gradient memory of accumulation over micro-batches. */
static void print_summed(const struct ku_program *p, int zero, const char *grads,
                         struct ku_str *out)
{
    char text[16];
    int k = p->mesh.extent[KU_AX_MB];
    ku_picture_bytes(summed_bytes(p), text);
    if (p->mesh.mb_outer)
        ku_str_add(out,
                   "  each of %d micro-batches is reduced (parallel.grad_sync: micro); a rank "
                   "accumulates %s\n",
                   k, text);
    else if (zero >= 2 && ku_state_is_sharded(&p->mesh) && ku_mesh_n_micro(&p->mesh) > 1)
        ku_str_add(out,
                   "  gradients of %d micro-batches accumulate before they are reduced: %s of full "
                   "gradients in %s%s\n",
                   ku_mesh_n_micro(&p->mesh), text, grads,
                   k > 1 ? "; parallel.grad_sync: micro reduces each" : "");
}

/* Without memory for it far_bytes stay 0. */
static int rows_of(const struct ku_plan *p, struct ku_volume row[KU_MAX_VOLUMES])
{
    const struct ku_program *train = p->program[KU_PROG_TRAIN];
    const int n = ku_plan_volumes(train, row);
    KU_IGNORE(ku_plan_far_volumes(train, p->host, p->n_hosts, row, n), "only these bytes lack");
    return n;
}

void ku_plan_print_volumes(const struct ku_plan *p, struct ku_str *out)
{
    const struct ku_sharding *s = &p->s.sharding;
    const struct ku_program *train = p->program[KU_PROG_TRAIN];
    struct ku_volume row[KU_MAX_VOLUMES];
    char text[2][16];
    if (ku_session_n_ranks(&p->s) == 1)
        return;
    if (s->local > 1 && s->shard > 1)
        ku_str_add(out,
                   "\nzero %d: %d hosts x %d ranks; the ranks of a host share one copy of the "
                   "parameters",
                   s->zero, s->shard, s->local);
    else if (s->local > 1)
        ku_str_add(out,
                   "\nzero %d: %d ranks share one copy of the state; no parameters are gathered",
                   s->zero, s->local);
    else {
        ku_str_add(out, "\nzero %d: ", s->zero);
        if (s->pp > 1)
            ku_str_add(out, "pp %d x ", s->pp);
        ku_str_add(out, "%d replica%s x %d shard%s", s->replicate, s->replicate == 1 ? "" : "s",
                   s->shard, s->shard == 1 ? "" : "s");
    }
    if (s->tp > 1)
        ku_str_add(out, " x tp %d", s->tp);
    if (s->zero > 0 && s->local > 1 && s->shard == 1)
        ku_str_add(out, "\n  ");
    ku_sharding_print_effect(s, out);
    if (s->default_why)
        ku_str_add(out, "\n  ");
    ku_sharding_print_default(s, out);
    ku_str_add(out, "\n  %-17s %-16s %12s %12s %12s%s\n", "per step and rank", "mesh axis",
               "elements", "ring sends", "shm writes", p->host ? "  between hosts" : "");
    int n = rows_of(p, row);
    for (int i = 0; i < n; i++) {
        char over[48] = "", factor[32];
        for (int a = 0; a < KU_AX_FIRST_TIME; a++)
            if (row[i].axes >> a & 1)
                snprintf(over + strlen(over), sizeof over - strlen(over), "%s%s",
                         over[0] ? " x " : "", ku_axis_name(a));
        snprintf(
            over + strlen(over), sizeof over - strlen(over), row[i].group ? "/%d (%d)" : " (%d)",
            row[i].group ? p->s.sharding.shard / row[i].group : row[i].n_ranks, row[i].n_ranks);
        ku_text_print(factor, sizeof factor, "%.2f x model",
                      row[i].elements / (double)p->s.n_params);
        ku_str_add(out, "  %-17s %-16s %12s %12s %12s", ku_exchange_name(row[i].exchange), over,
                   factor, ku_text_bytes((uint64_t)row[i].ring_bytes, text[0]),
                   ku_text_bytes((uint64_t)row[i].stored_bytes, text[1]));
        if (p->host) /* the mean over ranks: those of small hosts send more */
            ku_str_add(
                out, "  %13s",
                ku_text_bytes((uint64_t)(row[i].far_bytes / ku_session_n_ranks(&p->s)), text[0]));
        ku_str_add(out, "\n");
    }
    if (s->pp > 1) {
        ku_str_add(out, "  messages between the coordinates of pp, all ranks: %s on a host",
                   ku_text_bytes((uint64_t)p->step.messages, text[0]));
        if (p->host)
            ku_str_add(out, ", %s between hosts",
                       ku_text_bytes((uint64_t)p->step.far_messages, text[0]));
        ku_str_add(out, "\n");
    }
    print_summed(train, s->zero, p->s.cfg.precision_grads, out);
}

/* The names of the mesh axes of a mask, outermost first. */
static json_t *axes_json(unsigned axes)
{
    json_t *list = json_array();
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (axes >> a & 1)
            json_array_append_new(list, json_string(ku_axis_name(a)));
    return list;
}

json_t *ku_plan_volumes_json(const struct ku_plan *p)
{
    struct ku_volume row[KU_MAX_VOLUMES];
    json_t *list = json_array();
    int n = rows_of(p, row);
    for (int i = 0; i < n; i++) {
        json_array_append_new(
            list, json_pack("{s:s, s:o, s:i, s:f, s:f, s:f}", "exchange",
                            ku_exchange_name(row[i].exchange), "axes", axes_json(row[i].axes),
                            "ranks", row[i].n_ranks, "elements", row[i].elements, "ring_bytes",
                            row[i].ring_bytes, "stored_bytes", row[i].stored_bytes));
        if (row[i].group) /* neighbours on the axis, not all of it */
            json_object_set_new(json_array_get(list, (size_t)i), "group",
                                json_integer(row[i].group));
        if (p->host)
            json_object_set_new(json_array_get(list, (size_t)i), "far_bytes",
                                json_real(row[i].far_bytes));
    }
    struct ku_str why = {0}, stage = {0};
    ku_sharding_print_effect(&p->s.sharding, &why);
    ku_sharding_print_default(&p->s.sharding, &stage);
    json_t *root = json_pack("{s:i, s:i, s:i, s:i, s:s*, s:s*, s:f, s:f, s:f, s:o}", "zero",
                             p->s.sharding.zero, "replicate", p->s.sharding.replicate, "shard",
                             p->s.sharding.shard, "local", p->s.sharding.local, "no_effect",
                             why.bytes ? ku_str_get(&why) : NULL, "default",
                             stage.bytes ? ku_str_get(&stage) : NULL, "planned_bytes",
                             p->step.stored, "planned_far_bytes", p->step.far, "message_bytes",
                             p->step.messages + p->step.far_messages, "a_step", list);
    ku_str_fini(&why);
    ku_str_fini(&stage);
    return root;
}
