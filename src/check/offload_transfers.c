/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes of offload targets. The engine performs the transfers in flight in any order, so
 * a transfer starts only when no other one of the same bytes is in flight, unless both read; and a
 * staging buffer that is written to the target stays as it is until the wait:
 *
 *     adamw b84 <- b84 ..
 *     start write #3 b8<piece=0/4096 out=b84>     b84 may be read, not written
 *     start read #4 b8<piece=1/4096 out=b90>      other bytes
 *     start read #5 b8<piece=0/4096 out=b91>      refused: #3 is in flight
 *     wait #3
 *
 * The transfers in flight are a list per offloaded buffer: as many as the staging buffers let the
 * compiler start, so the list does not grow with the number of runs of the tensor.
 */
#include "base/err.h"
#include "base/mem.h"
#include "check/proof.h"

/* Runs of two lengths are compared as the whole buffer. */
static bool overlaps(const struct ku_flight *x, const struct ku_operand *o)
{
    return x->piece_count != o->piece_count || x->piece == o->piece;
}

/* Notes a transfer that starts. */
static int take_off(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o)
{
    const bool is_write = i->op == KU_X_WRITE;
    for (uint32_t u = c->in_flight[o->buffer]; u; u = c->flight[u - 1].next) {
        const struct ku_flight *x = &c->flight[u - 1];
        if ((is_write || x->is_write) && overlaps(x, o))
            return ku_proof_refuse(c, o->buffer, "%s bytes that #%u in flight %s",
                                   is_write ? "writes" : "reads", x->handle,
                                   x->is_write ? "writes" : "reads");
    }
    uint32_t at = c->free_flight;
    if (at) {
        c->free_flight = c->flight[at - 1].next;
    } else {
        KU_TRY(KU_GROW(&c->flight, c->n_flights, &c->cap_flights));
        at = ++c->n_flights;
    }
    c->flight[at - 1] = (struct ku_flight){.handle = i->handle,
                                           .next = c->in_flight[o->buffer],
                                           .piece = o->piece,
                                           .piece_count = o->piece_count,
                                           .is_write = is_write};
    c->in_flight[o->buffer] = at;
    return KUMI_OK;
}

/* The value of a write: of all runs of the offloaded buffer together, or of one after the other. */
static int write_run(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *value)
{
    if (o->piece_count == 0)
        return ku_proof_write(c, o->buffer, value);
    KU_TRY(ku_proof_begin_run(c, o, value));
    const bool is_last = ku_proof_is_last_run(c, o);
    if (o->piece != (int)c->pieces[o->buffer] - 1)
        return ku_proof_refuse(c, o->buffer, "writes run %d after %u", o->piece,
                               c->pieces[o->buffer] - 1);
    return is_last ? ku_proof_write(c, o->buffer, value) : KUMI_OK;
}

int ku_proof_offload_start(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o)
{
    const bool is_read = i->op == KU_X_READ;
    const ku_id from = is_read ? o->buffer : o->out, to = is_read ? o->out : o->buffer;
    KU_TRY(ku_proof_buffer(c, from));
    KU_TRY(ku_proof_buffer(c, to));
    if (!ku_arena_is_offload(c->p->buffer[o->buffer].arena) ||
        ku_arena_is_offload(c->p->buffer[o->out].arena))
        return ku_proof_refuse(c, o->buffer, "a transfer is between an offload target and memory");
    struct ku_held value = is_read ? *ku_proof_run(c, o) : c->held[from];
    if (!(value.flags & KU_HELD_DEFINED))
        return ku_proof_refuse(c, from, "moves a buffer before it is written");
    if (c->held[o->out].handle)
        return ku_proof_refuse(c, o->out, "moves a buffer that #%u in flight still uses",
                               c->held[o->out].handle);
    KU_TRY(ku_proof_fits(c, o, from, 0));
    KU_TRY(ku_proof_fits(c, o, to, 0));
    if (c->p->buffer[from].dtype != c->p->buffer[to].dtype)
        return ku_proof_refuse(c, from, "moves between dtypes");
    uint8_t samples;
    KU_TRY(ku_proof_samples(c, o, &samples));
    if (samples != value.samples)
        return ku_proof_refuse(c, from, "moves a value that ranks divide otherwise");
    const uint32_t s = c->state_of[o->buffer];
    if (s && ku_proof_blocks(c, o) && o->first_block != c->p->state[s - 1].first_block)
        return ku_proof_refuse(c, o->buffer, "owned chunks are not those of the state plan");
    KU_TRY(take_off(c, i, o));
    value.readers = 0;
    value.handle = is_read ? i->handle : 0;
    value.peers_read = value.own_read = 0;
    if (is_read)
        return ku_proof_write(c, to, &value);
    c->held[from].readers++;
    return write_run(c, o, &value);
}

void ku_proof_offload_end(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o)
{
    uint32_t *link = &c->in_flight[o->buffer];
    while (*link && c->flight[*link - 1].handle != i->handle)
        link = &c->flight[*link - 1].next;
    KU_ASSERT(*link); /* its start has noted it */
    const uint32_t at = *link;
    *link = c->flight[at - 1].next;
    c->flight[at - 1].next = c->free_flight;
    c->free_flight = at;
    if (i->op == KU_X_WRITE)
        c->held[o->buffer].written = c->at + 1;
    if (i->op == KU_X_WRITE && c->held[o->out].readers)
        c->held[o->out].readers--;
}
