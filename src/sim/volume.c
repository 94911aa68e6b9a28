/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/volume.h"

#include "base/err.h"
#include "tensor/dtype.h"

static int members(const struct ku_mesh *m, int axes)
{
    int n = 1;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        n *= axes >> a & 1 ? m->extent[a] : 1;
    return n;
}

/*
 * 1 for gradients, parameters, and activations that tensor parallelism sums. Sums of loss and
 * metrics are integers and excluded.
 */
static bool is_of_tensors(const struct ku_buffer *b, int axes)
{
    return (b->cls == KU_CL_GRAD || b->cls == KU_CL_PARAM || b->cls == KU_CL_DERIVED ||
            b->cls == KU_CL_STAGING || b->cls == KU_CL_GATHER || (axes & ~KU_TP_AXES) == 0) &&
           ku_dtype_is_float((enum kumi_dtype)b->dtype);
}

/* Adds a part: the bytes that a ring sends, and the bytes stored in shared memory. */
static void add_part(const struct ku_program *p, const struct ku_instr *i,
                     const struct ku_operand *o, struct ku_volume *v)
{
    struct ku_shape local; /* without the division into chunks */
    const struct ku_coord first = {0};
    ku_local_shape(&p->mesh, &p->shape[o->shape], &p->layout[o->layout], &first, &local);
    double count = (double)ku_shape_count(&local), n = v->n_ranks;
    double bytes = (double)kumi_dtype_bytes((enum kumi_dtype)o->dtype);
    struct ku_split_parts parts;
    if (ku_program_split_parts(p, o, i->axes, &first, &parts))
        count = (double)parts.n * (double)parts.count;
    if (i->op == KU_X_ALL_REDUCE && ku_layout_has(&p->layout[o->layout], KU_Z))
        count /= members(&p->mesh, ku_layout_axes(&p->layout[o->layout], KU_Z)); /* owned, mean */
    const int both = 1 << KU_AX_REPLICATE | 1 << KU_AX_LOCAL;
    double sent = count * (n - 1) / n * (i->op == KU_X_ALL_REDUCE ? 2 : 1), owners = n;
    if (i->op == KU_X_REDUCE_SCATTER && i->axes == both && ku_mesh_wide(&p->mesh, both) == both) {
        const double hosts = p->mesh.extent[KU_AX_REPLICATE];
        owners = p->mesh.extent[KU_AX_LOCAL]; /* each host gets the whole sum */
        sent += count * (hosts - 1) / n;      /* and a rank receives the rest of its shard */
    }
    /* the ranks of a host together receive what other hosts have of their copy */
    const bool is_host_gather = i->op == KU_X_ALL_GATHER &&
                                ku_arena_is_common(p->buffer[o->out ? o->out : o->buffer].arena);
    const double shards = p->mesh.extent[KU_AX_SHARD];
    double stored = i->op == KU_X_REDUCE_SCATTER ? count / owners
                    : is_host_gather             ? count * (o->out ? shards : shards - 1) / n
                    : i->op == KU_X_ALL_GATHER && !o->out ? count * (n - 1) / n
                                                          : count;
    v->elements += count;
    v->wire_bytes += count * (double)kumi_dtype_bytes((enum kumi_dtype)i->wire);
    v->dtype_bytes += count * bytes;
    v->ring_bytes += sent * (double)kumi_dtype_bytes((enum kumi_dtype)i->wire);
    v->stored_bytes += stored * bytes;
}

bool ku_plan_sends(const struct ku_program *p, uint32_t at)
{
    const struct ku_instr *i = &p->instr[at];
    return i->kind == KU_START && i->op == KU_X_SEND &&
           ku_dtype_is_float((enum kumi_dtype)p->operand[i->operand].dtype);
}

double ku_plan_message_bytes(const struct ku_program *p)
{
    const int n = ku_mesh_n_ranks(&p->mesh) / p->mesh.extent[KU_AX_PP];
    const struct ku_coord own = ku_mesh_coord(&p->mesh, n * p->pp);
    double bytes = 0;
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_operand *o = &p->operand[p->instr[at].operand];
        struct ku_part part;
        if (!ku_plan_sends(p, at))
            continue;
        ku_program_part(p, o, &own, -1, &part);
        bytes += (double)ku_shape_count(&part.shape) *
                 (double)kumi_dtype_bytes((enum kumi_dtype)o->dtype);
    }
    return bytes;
}

/* Whether an instruction is a collective of gradients, parameters or activations. */
static bool is_counted(const struct ku_program *p, const struct ku_instr *i)
{
    return i->kind == KU_START && i->n_parts > 0 && !ku_exchange_is_offload(i->op) &&
           !ku_exchange_is_message(i->op) &&
           is_of_tensors(&p->buffer[p->operand[i->operand + i->n_in].buffer], i->axes);
}

static bool is_of(const struct ku_volume *row, const struct ku_instr *i)
{
    return row->exchange == i->op && row->axes == i->axes && row->group == i->group;
}

bool ku_plan_counts(const struct ku_program *p, const struct ku_volume *row,
                    const struct ku_instr *i)
{
    return is_counted(p, i) && is_of(row, i);
}

int ku_plan_volumes(const struct ku_program *p, struct ku_volume row[KU_MAX_VOLUMES])
{
    int n = 0;
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *i = &p->instr[at];
        if (!is_counted(p, i))
            continue;
        int k = 0;
        while (k < n && !is_of(&row[k], i))
            k++;
        KU_ASSERT(k < KU_MAX_VOLUMES);
        if (k == n)
            row[n++] =
                (struct ku_volume){.exchange = (uint8_t)i->op,
                                   .axes = i->axes,
                                   .group = i->group,
                                   .n_ranks = i->group ? i->group : members(&p->mesh, i->axes)};
        for (uint32_t j = 0; j < i->n_parts; j++)
            add_part(p, i, &p->operand[i->operand + i->n_in + j], &row[k]);
    }
    return n;
}
