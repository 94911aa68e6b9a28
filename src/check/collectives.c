/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts and waits. Collectives on the same axes complete in start order, so the result of a start
 * is visible to later starts at once and to computations after the wait.
 *
 *     reduce_scatter   partial -> owned          all_gather   owned -> whole
 *     all_reduce       partial -> whole          barrier      orders shared state
 */
#include <string.h>

#include "base/err.h"
#include "base/math/exact.h"
#include "base/mem.h"
#include "check/proof.h"
#include "ir/state.h"

static bool is_float(int dtype)
{
    return dtype == KUMI_F64 || dtype == KUMI_F32 || dtype == KUMI_BF16 || dtype == KUMI_F16;
}

static int check_start(struct ku_proof *c, const struct ku_instr *i)
{
    const struct ku_mesh *mesh = &c->p->mesh;
    int is_offloaded = ku_exchange_is_offload(i->op),
        wide = ku_mesh_wide(mesh, (1 << KU_AX_FIRST_TIME) - 1);
    if (i->op >= KU_N_EXCHANGES)
        return ku_proof_refuse(c, 0, "no such exchange");
    if (i->handle == 0 || i->handle > c->p->n_handles || c->start[i->handle])
        return ku_proof_refuse(c, 0, "handle #%u is used twice or does not exist", i->handle);
    if (!is_offloaded && (i->axes == 0 || i->axes & ~wide))
        return ku_proof_refuse(c, 0, "mesh axes %#x are not axes of several ranks", i->axes);
    if ((i->n_parts == 0) != (i->op == KU_X_BARRIER))
        return ku_proof_refuse(c, 0, "%u parts", i->n_parts);
    if (ku_exchange_is_message(i->op) && (i->axes != 1 << KU_AX_PP || i->n_parts != 1))
        return ku_proof_refuse(c, 0, "a message has one part and passes along axis pp");
    if (!ku_exchange_is_message(i->op) && i->op != KU_X_BARRIER && i->axes >> KU_AX_PP & 1)
        return ku_proof_refuse(c, 0, "only messages and barriers join the stages of a pipeline");
    const bool reduces = i->op == KU_X_REDUCE_SCATTER || i->op == KU_X_ALL_REDUCE;
    if (i->n_in && !reduces)
        return ku_proof_refuse(c, 0, "only a reduction adds to the norm");
    if (i->reduce != KU_REDUCE_SUM && !reduces)
        return ku_proof_refuse(c, 0, "a %s names a reduction", ku_exchange_name(i->op));
    return KUMI_OK;
}

/* Takes a buffer for a collective: no other may be using it, unless on the same axes (they run in
 * start order). */
int ku_proof_take(struct ku_proof *c, ku_id b, uint32_t handle)
{
    uint32_t other = c->held[b].handle;
    const struct ku_program *p = c->p;
    if (other && other != handle &&
        (c->start[other] == UINT32_MAX ||
         p->instr[c->start[other] - 1].axes != p->instr[c->at].axes))
        return ku_proof_refuse(c, b, "collective #%u still uses the buffer", other);
    c->held[b].handle = handle;
    return KUMI_OK;
}

static int add_squares(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o,
                       const struct ku_held *sum)
{
    ku_id b = c->p->operand[i->operand].buffer;
    KU_TRY(ku_proof_buffer(c, b));
    struct ku_held *stats = &c->held[b];
    if (i->n_in == 0 || !(stats->flags & KU_HELD_TOTALS) || !(stats->flags & KU_HELD_DEFINED))
        return ku_proof_refuse(c, b, "a part adds to the norm, the start has no totals");
    if (sum->partial)
        return ku_proof_refuse(c, o->buffer, "squares a partial sum");
    if (o->stats_word < KU_EXACT_WORDS)
        return ku_proof_refuse(c, o->buffer, "counts non-finite elements inside the sum");
    const uint8_t partial = (uint8_t)(sum->owned | ku_proof_split_axes(c, o->shape, sum->split));
    if (stats->term != KU_TOTALS_ZERO && stats->partial != partial)
        return ku_proof_refuse(c, b, "adds a tensor to totals that are partial over other ranks");
    KU_TRY(ku_proof_take(c, b, i->handle));
    stats->partial = partial;
    stats->term += ku_term_squares(sum->term, o->stats_word - KU_EXACT_WORDS, 0);
    return KUMI_OK;
}

/*
 * The axes over which a reduction divides its sum: none, those of a reduce-scatter, or, where the
 * ranks of every host share one copy, those of a host alone, so that every host gets all chunks.
 */
static int divided_axes(const struct ku_instr *i)
{
    const int hosts = 1 << KU_AX_REPLICATE, local = 1 << KU_AX_LOCAL;
    if (i->op != KU_X_REDUCE_SCATTER)
        return 0;
    return i->axes & local ? i->axes & ~hosts : i->axes;
}

static int reduce(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o)
{
    struct ku_held *from = &c->held[o->buffer], sum = *from;
    const int blocks = ku_proof_blocks(c, o), divided = divided_axes(i);
    const int tp = KU_TP_AXES, low = i->axes & -i->axes, rest = from->partial & ~i->axes;
    int narrow = i->wire != o->dtype;
    if (i->axes & ~from->partial)
        return ku_proof_refuse(c, o->buffer,
                               "reduces over axes %#x a value that is partial over %#x", i->axes,
                               from->partial);
    if ((rest & ~tp) >= low || ((i->axes & ~tp) == 0 && rest && !(from->flags & KU_HELD_TOTALS)))
        return ku_proof_refuse(c, o->buffer, "reduces an axis before one that comes first");
    if ((blocks & i->axes) != divided)
        return ku_proof_refuse(c, o->buffer, "the placement of the part is not that of a %s",
                               ku_exchange_name(i->op));
    if (i->group)
        return ku_proof_refuse(c, o->buffer, "reduces over groups of %u ranks", i->group);
    if (narrow && (o->dtype != KUMI_F32 || !is_float(i->wire) ||
                   kumi_dtype_bytes((enum kumi_dtype)i->wire) >= 4))
        return ku_proof_refuse(c, o->buffer, "dtype %d on the wire for values of dtype %d", i->wire,
                               o->dtype);
    uint8_t code = (uint8_t)((narrow ? i->wire + 1 : 0) + (i->reduce == KU_REDUCE_MAX ? 64 : 0));
    if (from->wire && from->wire != code + 1)
        return ku_proof_refuse(c, o->buffer, "two wire dtypes or reductions for one sum");
    sum.wire = (uint8_t)(code + 1);
    sum.partial = (uint8_t)rest;
    sum.owned = (uint8_t)(from->owned | divided);
    sum.first_block = o->first_block;
    if (sum.flags & KU_HELD_TOTALS && (narrow || i->reduce != KU_REDUCE_SUM))
        return ku_proof_refuse(c, o->buffer, "totals are added exactly");
    /* tensor-parallel ranks add up their parts of a gradient after the others, and round again */
    if ((rest & ~tp) == 0 && !(sum.flags & KU_HELD_TOTALS))
        sum.term = ku_term_of(KU_TERM_COMPLETE, sum.term, code);
    if ((rest & ~tp) == 0)
        sum.wire = 0;
    if (o->addend) {
        KU_TRY(ku_proof_buffer(c, o->addend));
        const struct ku_held *a = &c->held[o->addend];
        if (!(a->flags & KU_HELD_DEFINED) || a->partial != sum.partial ||
            (a->owned & ~sum.owned) != 0 || (a->owned && a->first_block != sum.first_block))
            return ku_proof_refuse(c, o->addend, "the addend has another placement than the sum");
        KU_TRY(ku_proof_fits(c, o, o->addend, 0));
        sum.term = ku_term_of(KU_TERM_ADD, sum.term, a->term);
        KU_TRY(ku_proof_take(c, o->addend, i->handle));
    }
    ku_id to = o->out ? o->out : o->buffer;
    KU_TRY(ku_proof_buffer(c, to));
    KU_TRY(ku_proof_fits(c, o, to, 0));
    if (c->p->buffer[to].dtype != o->dtype)
        return ku_proof_refuse(c, to, "the result has another dtype");
    KU_TRY(ku_proof_take(c, o->buffer, i->handle));
    KU_TRY(ku_proof_take(c, to, i->handle));
    if (to != o->buffer)
        from->flags = 0; /* the collective may use the bytes */
    KU_TRY(ku_proof_write(c, to, &sum));
    c->held[to].handle = i->handle;
    return o->stats_word ? add_squares(c, i, o, &sum) : KUMI_OK;
}

static int gather(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o)
{
    struct ku_held *from = &c->held[o->buffer], whole = *from;
    int blocks = ku_proof_blocks(c, o);
    ku_id to = o->out ? o->out : o->buffer;
    if (from->partial)
        return ku_proof_refuse(c, o->buffer, "gathers a partial sum");
    if ((blocks & i->axes) != i->axes || (from->owned & i->axes) != i->axes)
        return ku_proof_refuse(c, o->buffer,
                               "gathers a value that is not partitioned over axes %#x", i->axes);
    if ((i->axes >> KU_AX_SHARD & 1 ? c->p->layout[o->layout].at[KU_AX_SHARD].dim : 0) !=
            i->group ||
        from->group != i->group)
        return ku_proof_refuse(c, o->buffer, "groups of %u ranks, partitioned over groups of %u",
                               i->group, from->group);
    if (i->wire != o->dtype)
        return ku_proof_refuse(c, o->buffer, "dtype %d on the wire for values of dtype %d", i->wire,
                               o->dtype);
    if (o->first_block != from->first_block)
        return ku_proof_refuse(c, o->buffer, "gathers chunks of another partition");
    if (c->p->buffer[to].arena == KU_AR_GATHER &&
        (to == o->buffer || i->axes != ku_state_owner_axes(&c->p->mesh)))
        return ku_proof_refuse(c, to, "gathers into memory of a host what is not all ranks'");
    if (c->p->buffer[to].arena == KU_AR_HOST) {
        c->report_of.n_edges++;
        if (to != o->buffer || (i->axes >> KU_AX_LOCAL & 1) == 0)
            return ku_proof_refuse(c, to, "gathers into shared state what is not its ranks'");
        if (from->own_read && c->synced[KU_AX_LOCAL] <= from->own_read)
            return ku_proof_refuse(c, to,
                                   "gathers into shared state that other ranks may still read "
                                   "(instruction %u)",
                                   from->own_read - 1);
    }
    whole.owned &= (uint8_t)~i->axes;
    whole.group = 0;
    KU_TRY(ku_proof_buffer(c, to));
    KU_TRY(ku_proof_fits(c, o, to, 1));
    KU_TRY(ku_proof_take(c, to, i->handle));
    if (to == o->buffer) {
        from->owned = whole.owned;
        from->peers_read = c->at + 1;
        return KUMI_OK;
    }
    if (c->p->buffer[to].dtype != o->dtype)
        return ku_proof_refuse(c, to, "the result has another dtype");
    from->readers++;
    from->peers_read = c->at + 1;
    whole.peers_read = whole.own_read = 0;
    KU_TRY(ku_proof_write(c, to, &whole));
    c->held[to].handle = i->handle;
    return KUMI_OK;
}

int ku_proof_start(struct ku_proof *c)
{
    const struct ku_program *p = c->p;
    const struct ku_instr *i = &p->instr[c->at];
    KU_TRY(check_start(c, i));
    c->start[i->handle] = c->at + 1;
    if (ku_exchange_is_message(i->op))
        return ku_message_start(c);
    if (i->axes >> KU_AX_PP & 1)
        c->barrier[i->handle] = ++c->n_barriers;
    for (uint32_t k = i->n_in; k < i->n_in + i->n_parts; k++) {
        const struct ku_operand *o = &p->operand[i->operand + k];
        struct ku_held value;
        KU_TRY(ku_proof_buffer(c, o->buffer));
        if (ku_exchange_is_offload(i->op)) {
            KU_TRY(ku_proof_offload_start(c, i, o));
            continue;
        }
        struct ku_operand as = *o; /* an all-gather names the partition that it ends */
        KU_TRY(ku_proof_read(c, &as, &value));
        if (o->dtype != p->operand[i->operand + i->n_in].dtype)
            return ku_proof_refuse(c, o->buffer, "parts of several dtypes");
        if (c->held[o->buffer].handle && c->held[o->buffer].handle != i->handle)
            KU_TRY(ku_proof_take(c, o->buffer, i->handle));
        const bool is_split = ku_layout_axes(&p->layout[o->layout], KU_S) & i->axes;
        KU_TRY(i->op == KU_X_ALL_GATHER ? is_split ? ku_proof_join(c, i, o) : gather(c, i, o)
               : is_split ? ku_proof_scatter(c, i, o)
                                        : reduce(c, i, o));
    }
    return KUMI_OK;
}

static void release(struct ku_proof *c, ku_id b, uint32_t handle)
{
    if (b && c->held[b].handle == handle)
        c->held[b].handle = 0;
}

int ku_proof_wait(struct ku_proof *c)
{
    const struct ku_program *p = c->p;
    uint32_t handle = p->instr[c->at].handle;
    if (handle == 0 || handle > p->n_handles || c->start[handle] == 0)
        return ku_proof_refuse(c, 0, "waits for #%u, which has not started", handle);
    if (c->start[handle] == UINT32_MAX)
        return ku_proof_refuse(c, 0, "waits for #%u a second time", handle);
    const uint32_t began = c->start[handle];
    const struct ku_instr *i = &p->instr[began - 1];
    if (ku_exchange_is_message(i->op))
        KU_TRY(ku_message_wait(c));
    else if (i->axes >> KU_AX_PP & 1)
        ku_barrier_wait(c, handle);
    if (c->is_blocked)
        return KUMI_OK;
    c->start[handle] = UINT32_MAX;
    if (ku_exchange_is_message(i->op))
        return KUMI_OK;
    for (uint32_t k = 0; k < i->n_in + i->n_parts; k++) {
        const struct ku_operand *o = &p->operand[i->operand + k];
        release(c, o->buffer, handle);
        release(c, o->addend, handle);
        release(c, o->out, handle);
        if (ku_exchange_is_offload(i->op))
            ku_proof_offload_end(c, i, o);
        if (i->op == KU_X_ALL_GATHER) {
            c->held[o->buffer].peers_read = c->at + 1;
            if (o->out && o->out != o->buffer && c->held[o->buffer].readers)
                c->held[o->buffer].readers--;
        }
    }
    const bool is_sync = i->op == KU_X_ALL_REDUCE || i->op == KU_X_BARRIER;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (i->axes >> a & 1 && c->entered[a] < began &&
            (is_sync || (i->op == KU_X_ALL_GATHER && i->group == 0)))
            c->entered[a] = began;
    if (!is_sync)
        return KUMI_OK;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (i->axes >> a & 1 && c->synced[a] < began)
            c->synced[a] = began;
    if (i->op == KU_X_BARRIER && i->axes >> KU_AX_LOCAL & 1)
        for (ku_id b = 1; b < p->n_buffers; b++) /* shared state is whole again */
            if (p->buffer[b].arena == KU_AR_HOST && c->held[b].written < began)
                c->held[b].owned &= (uint8_t) ~(1 << KU_AX_LOCAL);
    return KUMI_OK;
}
