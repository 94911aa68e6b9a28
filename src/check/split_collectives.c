/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives over axes tp and tpi after which the ranks have parts of a value along a dim, or
 * before which they have them. The operand names the parts; `out` is another buffer.
 *
 *     reduce_scatter   partial -> split along the dim      all_gather   split -> whole
 */
#include "base/err.h"
#include "check/proof.h"

/* KUMI_EPLAN unless buffer `b` has the bytes of the whole value that the operand divides. */
static int fits_whole(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o,
                      ku_id b)
{
    struct ku_split_parts split;
    const struct ku_coord first = {0};
    const size_t each = kumi_dtype_bytes((enum kumi_dtype)o->dtype);
    if (!ku_program_split_parts(c->p, o, i->axes, &first, &split))
        return ku_proof_refuse(c, b, "divides no dim");
    return (size_t)(split.n * split.count) > c->p->buffer[b].bytes / each
               ? ku_proof_refuse(c, b, "has %zu bytes, its value needs %zu", c->p->buffer[b].bytes,
                                 (size_t)(split.n * split.count) * each)
               : KUMI_OK;
}

/* What both have in common. */
static int begin(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o)
{
    if (i->axes != ku_proof_tp(c) || i->group || i->n_in)
        return ku_proof_refuse(c, o->buffer, "parts along a dim are of all tensor-parallel ranks");
    if (i->wire != o->dtype)
        return ku_proof_refuse(c, o->buffer, "dtype %d on the wire for values of dtype %d", i->wire,
                               o->dtype);
    if (o->addend || o->stats_word || ku_proof_blocks(c, o))
        return ku_proof_refuse(c, o->buffer, "adds to, or divides into chunks, parts along a dim");
    if (o->out == 0 || o->out == o->buffer)
        return ku_proof_refuse(c, o->buffer, "parts along a dim have a buffer of their own");
    KU_TRY(ku_proof_buffer(c, o->out));
    if (c->p->buffer[o->out].dtype != o->dtype)
        return ku_proof_refuse(c, o->out, "the result has another dtype");
    return ku_proof_take(c, o->out, i->handle);
}

static int finish(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o,
                  const struct ku_held *value)
{
    KU_TRY(ku_proof_write(c, o->out, value));
    c->held[o->out].handle = i->handle;
    return KUMI_OK;
}

/* Op part: the rank's part of a whole value; nothing is sent. */
int ku_proof_part(struct ku_proof *c, const struct ku_operand *to, const struct ku_held *in,
                  struct ku_held *out)
{
    out->split = ku_proof_split(c, to);
    KU_TRY(ku_proof_samples(c, to, &out->samples));
    if (in->partial || in->owned || in->split || out->split == KU_SPLIT_SUM || out->split == 0 ||
        out->split == KU_SPLIT_SHARED || out->split == KU_SPLIT_BAD)
        return ku_proof_refuse(c, to->buffer, "takes a part of a value that is not whole");
    if ((in->shape && in->shape != c->shape_hash[to->shape]) || in->samples != out->samples)
        return ku_proof_refuse(c, to->buffer, "takes a part in another shape or of other samples");
    return KUMI_OK;
}

int ku_proof_scatter(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o)
{
    struct ku_held sum = c->held[o->buffer];
    KU_TRY(begin(c, i, o));
    if (i->op != KU_X_REDUCE_SCATTER)
        return ku_proof_refuse(c, o->buffer, "leaves parts along a dim by a %s",
                               ku_exchange_name(i->op));
    if (sum.partial != ku_proof_tp(c) || i->reduce != KU_REDUCE_SUM)
        return ku_proof_refuse(c, o->buffer,
                               "reduces over axis tp a value that is partial over axes %#x",
                               sum.partial);
    KU_TRY(fits_whole(c, i, o, o->buffer));
    KU_TRY(ku_proof_fits(c, o, o->out, 0));
    KU_TRY(ku_proof_take(c, o->buffer, i->handle));
    sum.partial = 0;
    sum.split = ku_proof_split(c, o);
    sum.term = ku_term_of(KU_TERM_COMPLETE, sum.term, 0);
    c->held[o->buffer].flags = 0; /* the collective may use the bytes */
    return finish(c, i, o, &sum);
}

int ku_proof_join(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o)
{
    struct ku_held *from = &c->held[o->buffer], whole = *from;
    KU_TRY(begin(c, i, o));
    if (from->partial || from->owned || from->split != ku_proof_split(c, o))
        return ku_proof_refuse(c, o->buffer, "gathers a value that is not divided along this dim");
    KU_TRY(ku_proof_fits(c, o, o->buffer, 0));
    KU_TRY(fits_whole(c, i, o, o->out));
    whole.split = 0;
    from->readers++;
    from->peers_read = c->at + 1;
    whole.peers_read = whole.own_read = 0;
    whole.readers = 0;
    return finish(c, i, o, &whole);
}
