/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The programs of all coordinates of axis pp, executed together. A wire joins two coordinates in
 * one direction on one channel; its messages match in start order:
 *
 *     pp 0   start send #3 ............ wait #3       the term of the operand goes on the wire
 *     pp 1        start recv #1, wait #1              and into the buffer of the receive
 *
 * Both sides must name the same shape, placement, partition and dtype. A send ends when its receive
 * has started (rendezvous: no transport needs to buffer), a receive ends when its send has started.
 * A coordinate runs until a wait blocks; if all of them block, the programs wait for each other.
 * What arrives is a term, so that the update of a tensor accepts exactly the sum over all
 * micro-batches and uses, wherever its parts were computed.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "check/proof.h"

struct message {
    struct ku_held value;
    uint64_t shape, layout;
    int32_t first_block;
    uint8_t dtype;
};
struct wire {
    struct message *sent;
    uint32_t n_sent, n_received, cap; /* received: receives that have started */
};
struct ku_wires {
    int n;                /* coordinates */
    struct wire *wire;    /* [from][to][channel] */
    uint32_t *n_barriers; /* per coordinate */
};

static struct wire *wire_of(struct ku_proof *c, const struct ku_instr *i)
{
    const int own = c->p->pp, is_send = i->op == KU_X_SEND;
    const int from = is_send ? own : i->peer, to = is_send ? i->peer : own;
    return &c->wires->wire[(from * c->wires->n + to) * KU_MAX_CHANNELS + i->group];
}

static uint64_t hash_layout(const struct ku_layout *l)
{
    uint64_t h = 0;
    for (int a = 0; a < KU_N_AXES; a++)
        h = ku_term_of(l->at[a].kind, h, l->at[a].dim);
    return h;
}

static int send_message(struct ku_proof *c, const struct ku_operand *o, struct wire *w)
{
    struct message m = {.shape = c->shape_hash[o->shape],
                        .layout = hash_layout(&c->p->layout[o->layout]),
                        .first_block = o->first_block,
                        .dtype = o->dtype};
    KU_TRY(ku_proof_read(c, o, &m.value));
    if (c->held[o->buffer].handle)
        return ku_proof_refuse(c, o->buffer, "sends a buffer that collective #%u still uses",
                               c->held[o->buffer].handle);
    KU_TRY(ku_proof_fits(c, o, o->buffer, 0));
    m.value.readers = m.value.peers_read = m.value.own_read = m.value.handle = 0;
    c->held[o->buffer].readers++;
    KU_TRY(KU_GROW(&w->sent, w->n_sent, &w->cap));
    w->sent[w->n_sent++] = m;
    return KUMI_OK;
}

static int receive_message(struct ku_proof *c, const struct ku_operand *o, uint32_t handle)
{
    struct ku_held *h = &c->held[o->buffer];
    const int arena = c->p->buffer[o->buffer].arena;
    if (c->state_of[o->buffer] || (arena != KU_AR_STEP && arena != KU_AR_WIRE))
        return ku_proof_refuse(c, o->buffer, "receives into memory that is not the step's");
    if (h->handle || h->readers)
        return ku_proof_refuse(c, o->buffer, "receives into a buffer that another work uses");
    if (o->dtype != c->p->buffer[o->buffer].dtype)
        return ku_proof_refuse(c, o->buffer, "receives another dtype than the buffer has");
    KU_TRY(ku_proof_fits(c, o, o->buffer, 0));
    *h = (struct ku_held){.handle = handle};
    return KUMI_OK;
}

int ku_message_start(struct ku_proof *c)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    const struct ku_operand *o = &c->p->operand[i->operand];
    const int n = c->wires ? c->wires->n : 1;
    if (i->n_in || i->peer < 0 || i->peer >= n || i->peer == c->p->pp ||
        i->group >= KU_MAX_CHANNELS)
        return ku_proof_refuse(c, 0, "no message to coordinate %d of axis pp on channel %u",
                               i->peer, i->group);
    KU_TRY(ku_proof_buffer(c, o->buffer));
    if (o->shape == 0 || o->shape >= c->p->n_shapes || o->layout >= c->p->n_layouts || o->addend ||
        o->out || o->slot || o->piece_count || i->wire != o->dtype)
        return ku_proof_refuse(c, o->buffer, "is not one whole value");
    struct wire *w = wire_of(c, i);
    c->message[i->handle] = i->op == KU_X_SEND ? w->n_sent : w->n_received++;
    return i->op == KU_X_SEND ? send_message(c, o, w) : receive_message(c, o, i->handle);
}

int ku_message_wait(struct ku_proof *c)
{
    const uint32_t handle = c->p->instr[c->at].handle;
    const struct ku_instr *i = &c->p->instr[c->start[handle] - 1];
    const struct ku_operand *o = &c->p->operand[i->operand];
    const struct wire *w = wire_of(c, i);
    const uint32_t at = c->message[handle];
    c->is_blocked = at >= (i->op == KU_X_SEND ? w->n_received : w->n_sent);
    if (c->is_blocked)
        return KUMI_OK;
    if (i->op == KU_X_SEND) {
        c->held[o->buffer].readers--;
        return KUMI_OK;
    }
    const struct message *m = &w->sent[at];
    if (m->dtype != o->dtype || m->shape != c->shape_hash[o->shape] ||
        m->layout != hash_layout(&c->p->layout[o->layout]) || m->first_block != o->first_block)
        return ku_proof_refuse(c, o->buffer,
                               "the message that coordinate %d sends has another shape, placement, "
                               "partition or dtype",
                               i->peer);
    c->held[o->buffer].handle = 0;
    return ku_proof_write(c, o->buffer, &m->value);
}

void ku_barrier_wait(struct ku_proof *c, uint32_t handle)
{
    for (int k = 0; c->wires && k < c->wires->n; k++)
        c->is_blocked = c->is_blocked || c->wires->n_barriers[k] < c->barrier[handle];
}

/* No coordinate can go on. */
static int refuse_deadlock(struct ku_proof *c, int n)
{
    char others[160] = "";
    struct ku_proof *first = NULL;
    for (int k = 0; k < n; k++) {
        if (c[k].at == c[k].p->n_instrs)
            continue;
        if (first)
            snprintf(others + strlen(others), sizeof others - strlen(others), " pp %d at %u", k,
                     c[k].at);
        first = first ? first : &c[k];
    }
    return ku_proof_refuse(first, 0, "waits for ever%s%s", others[0] ? ", as do" : "", others);
}

/* Runs a coordinate until it blocks or ends; *moved: it executed something. */
static int run(struct ku_proof *c, bool *moved)
{
    for (; c->at < c->p->n_instrs; c->at++) {
        c->is_blocked = false;
        KU_TRY(ku_proof_step(c));
        if (c->is_blocked)
            return KUMI_OK;
        *moved = true;
        if (c->wires)
            c->wires->n_barriers[c->p->pp] = c->n_barriers;
    }
    return KUMI_OK;
}

static int run_all(struct ku_proof *c, int n)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int k = 0; k < n; k++)
            KU_TRY(run(&c[k], &moved));
    }
    for (int k = 0; k < n; k++)
        if (c[k].at < c[k].p->n_instrs)
            return refuse_deadlock(c, n);
    for (int k = 0; k < n; k++)
        KU_TRY(ku_proof_finish(&c[k]));
    return KUMI_OK;
}

int ku_proof_execute_all(struct ku_proof *c, int n)
{
    struct ku_wires w = {.n = n};
    const size_t n_wires = (size_t)n * (size_t)n * KU_MAX_CHANNELS;
    if (n == 1)
        return run_all(c, n);
    w.wire = ku_calloc(n_wires, sizeof *w.wire);
    w.n_barriers = ku_calloc((size_t)n, sizeof *w.n_barriers);
    for (int k = 0; k < n; k++)
        c[k].wires = &w;
    const int status = w.wire && w.n_barriers ? run_all(c, n) : KUMI_ENOMEM;
    for (size_t i = 0; i < n_wires && w.wire; i++)
        ku_free(w.wire[i].sent);
    ku_free(w.wire);
    ku_free(w.n_barriers);
    return status;
}
