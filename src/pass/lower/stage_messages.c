/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between the coordinates of axis pp (pass/pipe/pipe.h says which). A send starts as soon
 * as its value is computed; a receive starts with the block, and its first reader waits for it.
 *
 *     stage 0    F0 (send a0) F1 (send a1) .. B0: recv d0, wait d0 | wait send a0
 *     stage 1    F0: recv a0, wait a0 .. B0 (send d0)
 *
 * A send ends when its receiver has waited for it. It is waited for where this is known to have
 * happened: after a message that the receiver has sent in a later block. So no wait for a send can
 * block, and the operand's memory is not held longer than that; the last ones are waited for in
 * front of O.
 *
 * Values of several micro-batches are alive at once: each has its own buffers, which take their
 * place in ku_lower.buffer while a block of it is lowered.
 */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "pass/lower/lower.h"

/* A send that has started. */
struct sent {
    uint32_t handle;
    ku_id value;
    int peer;
    uint32_t received; /* the block of the peer, + 1, in which it receives; 0: in A or O */
};

struct ku_messages {
    ku_id *value; /* [n_values] those whose buffers belong to one micro-batch */
    uint32_t n_values;
    ku_id *buffer;   /* [n_micro][n_values] their buffers */
    uint32_t *first; /* per value: its first message from here, + 1 */
    uint32_t *next;  /* per message: the next one of its value, + 1 */
    uint32_t *at;    /* [kind][stage][micro]: index of the block in its coordinate's list, + 1 */
    uint32_t seen[KU_MAX_PP]; /* per coordinate: its latest block, + 1, from which a message came */
    struct sent *sent;
    uint32_t n_sent, cap_sent;
};

static uint32_t *block_at(const struct ku_lower *l, int kind, int stage, int micro)
{
    const struct ku_pp_schedule *s = l->pipe->s;
    return &l->messages
                ->at[((size_t)kind * (size_t)s->n_stages + (size_t)stage) * (size_t)s->n_micro +
                     (size_t)micro];
}

/* The block in which a coordinate sends or receives a message of a micro-batch, + 1. */
static uint32_t block_of(const struct ku_lower *l, const struct ku_message *m, int stage)
{
    static const uint8_t kind[] = {
        [KU_MSG_F] = KU_BL_F, [KU_MSG_I] = KU_BL_I, [KU_MSG_W] = KU_BL_W};
    if (m->cls >= KU_MSG_A)
        return 0;
    const uint32_t whole = *block_at(l, KU_BL_B, stage, l->micro);
    return m->cls != KU_MSG_F && whole ? whole : *block_at(l, kind[m->cls], stage, l->micro);
}

static void number_blocks(struct ku_lower *l)
{
    const struct ku_pp_schedule *s = l->pipe->s;
    for (int r = 0; r < s->n_ranks; r++)
        for (uint32_t i = s->first[r]; i < s->first[r + 1]; i++)
            *block_at(l, s->block[i].kind, s->block[i].stage, s->block[i].micro) =
                i - s->first[r] + 1;
}

static bool is_micro(const struct ku_graph *g, ku_id value)
{
    const ku_id def = g->value[value].def;
    return def && g->node[def].op != KU_OP_NONE &&
           (g->node[def].phase == KU_PH_F || g->node[def].phase == KU_PH_I ||
            g->node[def].phase == KU_PH_W);
}

/* Sums over micro-batches and rows of ports have one buffer per step, a gathered parameter a buffer
 * per gather. */
static void list_values(struct ku_lower *l)
{
    struct ku_messages *m = l->messages;
    for (ku_id v = 1; v < l->g->n_values; v++)
        if (is_micro(l->g, v) && l->unit_of[l->g->value[v].def] == 0 &&
            l->accumulate[v].convert == 0 && l->buffer[v] == 0)
            m->value[m->n_values++] = v;
    for (uint32_t i = l->pipe->n_messages; i > 0; i--) {
        const struct ku_message *x = &l->pipe->message[i - 1];
        if (x->sender != l->o->pp)
            continue;
        m->next[i - 1] = m->first[x->value];
        m->first[x->value] = i;
    }
}

int ku_messages_create(struct ku_lower *l)
{
    if (l->pipe == NULL)
        return KUMI_OK;
    const struct ku_pp_schedule *s = l->pipe->s;
    const size_t n = l->g->n_values;
    struct ku_messages *m = ku_calloc(1, sizeof *m);
    if (m == NULL)
        return KUMI_ENOMEM;
    l->messages = m;
    m->value = ku_calloc(n, sizeof *m->value);
    m->buffer = ku_calloc(n * (size_t)l->n_micro, sizeof *m->buffer);
    m->first = ku_calloc(n, sizeof *m->first);
    m->next = ku_calloc((size_t)l->pipe->n_messages + 1, sizeof *m->next);
    m->at = ku_calloc((size_t)KU_N_BLOCK_KINDS * (size_t)s->n_stages * (size_t)s->n_micro,
                      sizeof *m->at);
    if (!m->value || !m->buffer || !m->first || !m->next || !m->at)
        return KUMI_ENOMEM;
    number_blocks(l);
    list_values(l);
    return KUMI_OK;
}

void ku_messages_destroy(struct ku_lower *l)
{
    struct ku_messages *m = l->messages;
    if (m == NULL)
        return;
    ku_free(m->value);
    ku_free(m->buffer);
    ku_free(m->first);
    ku_free(m->next);
    ku_free(m->at);
    ku_free(m->sent);
    ku_free(m);
    l->messages = NULL;
}

static void swap_buffers(struct ku_lower *l, bool is_stored)
{
    struct ku_messages *m = l->messages;
    ku_id *own = &m->buffer[(size_t)l->micro * m->n_values];
    for (uint32_t i = 0; i < m->n_values; i++)
        if (is_stored)
            own[i] = l->buffer[m->value[i]];
        else
            l->buffer[m->value[i]] = own[i];
}

static int start(struct ku_lower *l, const struct ku_message *m, bool is_send, uint32_t *handle)
{
    const struct ku_graph *g = l->g;
    const ku_id v = m->value, def = g->value[v].def;
    const struct ku_operand part = ku_lower_operand(l, v, l->buffer[v], g->value[v].layout);
    const ku_id path = def ? g->node[def].path : g->tensor[g->value[v].tensor].name_id;
    KU_ASSERT(l->buffer[v] != 0);
    KU_TRY(ku_lower_start(l, is_send ? KU_X_SEND : KU_X_RECV, 1 << KU_AX_PP, 0, NULL, &part, 1,
                          path, handle));
    struct ku_instr *i = &l->p->instr[l->p->n_instrs - 1];
    i->group = m->channel;
    i->peer = is_send ? m->receiver : m->sender;
    i->stage = m->cls >= KU_MSG_A ? 0 : is_send ? m->from : m->to;
    KU_ASSERT(l->o->pp == (is_send ? m->sender : m->receiver));
    return KUMI_OK;
}

static int send_message(struct ku_lower *l, const struct ku_message *m)
{
    struct ku_messages *x = l->messages;
    KU_TRY(KU_GROW(&x->sent, x->n_sent, &x->cap_sent));
    struct sent *s = &x->sent[x->n_sent];
    KU_TRY(start(l, m, 1, &s->handle));
    s->peer = m->receiver;
    s->value = m->value;
    s->received = block_of(l, m, m->to);
    x->n_sent++;
    return KUMI_OK;
}

static int receive_message(struct ku_lower *l, const struct ku_message *m)
{
    const bool is_state = l->g->value[m->value].role == KU_STATE;
    const int cls = is_state                                   ? KU_CL_GATHER
                    : m->cls == KU_MSG_F || m->cls >= KU_MSG_A ? KU_CL_ACTIVATION
                                                               : KU_CL_ADJOINT;
    KU_TRY(ku_lower_settle(l, m->value));
    const int arena = l->wire[m->value] ? KU_AR_WIRE : KU_AR_STEP;
    const ku_id layout = l->g->value[m->value].layout;
    l->buffer[m->value] = ku_layout_has(&l->g->layout[layout], KU_Z)
                              ? ku_lower_local_buffer(l, m->value, layout, arena, cls)
                              : ku_lower_buffer(l, m->value, arena, cls);
    return l->buffer[m->value] ? start(l, m, 0, &l->pending[m->value]) : KUMI_ENOMEM;
}

/* Whether a message passes in blocks of this kind, at its sender or receiver. */
static bool is_of_block(const struct ku_message *m, int kind)
{
    return kind == KU_BL_F   ? m->cls == KU_MSG_F
           : kind == KU_BL_I ? m->cls == KU_MSG_I
           : kind == KU_BL_W ? m->cls == KU_MSG_W
                             : m->cls == KU_MSG_I || m->cls == KU_MSG_W;
}

int ku_messages_begin_block(struct ku_lower *l, const struct ku_block *b)
{
    if (l->pipe == NULL)
        return KUMI_OK;
    swap_buffers(l, 0);
    for (uint32_t i = 0; i < l->pipe->n_messages; i++) {
        const struct ku_message *m = &l->pipe->message[i];
        if (m->cls < KU_MSG_A && m->receiver == l->o->pp && m->to == b->stage &&
            is_of_block(m, b->kind))
            KU_TRY(receive_message(l, m));
    }
    return KUMI_OK;
}

/* Waits for the sends to a coordinate that it has received. */
static int end_sends(struct ku_lower *l, int peer)
{
    struct ku_messages *x = l->messages;
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->n_sent; i++) {
        const struct sent s = x->sent[i];
        if (s.peer == peer && s.received < x->seen[peer])
            KU_TRY(ku_lower_wait(l, s.handle));
        else
            x->sent[n++] = s;
    }
    x->n_sent = n;
    return KUMI_OK;
}

int ku_messages_end_block(struct ku_lower *l, const struct ku_block *b)
{
    if (l->pipe == NULL)
        return KUMI_OK;
    for (uint32_t i = 0; i < l->pipe->n_messages; i++) {
        const struct ku_message *m = &l->pipe->message[i];
        if (m->cls >= KU_MSG_A || !is_of_block(m, b->kind))
            continue;
        if (m->receiver == l->o->pp && m->to == b->stage) {
            uint32_t *seen = &l->messages->seen[m->sender];
            const uint32_t from = block_of(l, m, m->from);
            KU_TRY(ku_lower_settle(l, m->value));
            *seen = from > *seen ? from : *seen;
        }
        if (m->sender == l->o->pp && m->from == b->stage && m->is_relay) {
            KU_TRY(ku_lower_settle(l, m->value));
            KU_TRY(send_message(l, m));
        }
    }
    for (int peer = 0; peer < l->pipe->s->n_ranks; peer++)
        KU_TRY(end_sends(l, peer));
    swap_buffers(l, 1);
    return KUMI_OK;
}

int ku_messages_begin_once(struct ku_lower *l, int phase)
{
    const int cls = phase == KU_PH_A ? KU_MSG_A : KU_MSG_O;
    for (uint32_t i = 0; l->pipe && i < l->pipe->n_messages; i++) {
        const struct ku_message *m = &l->pipe->message[i];
        if (m->cls == cls && m->receiver == l->o->pp)
            KU_TRY(receive_message(l, m));
        if (m->cls == cls && m->sender == l->o->pp && m->def == 0)
            KU_TRY(send_message(l, m));
    }
    return KUMI_OK;
}

int ku_messages_send(struct ku_lower *l, ku_id node)
{
    const struct ku_graph *g = l->g;
    for (int i = 0; l->pipe && i < g->node[node].n_out; i++) {
        const ku_id v = ku_out(g, node, i);
        uint32_t k = l->messages->first[v];
        for (; k; k = l->messages->next[k - 1])
            if (!l->pipe->message[k - 1].is_relay) {
                KU_TRY(ku_lower_settle(l, v));
                KU_TRY(send_message(l, &l->pipe->message[k - 1]));
            }
    }
    return KUMI_OK;
}

int ku_messages_release(struct ku_lower *l, ku_id value)
{
    struct ku_messages *x = l->messages;
    uint32_t n = 0;
    for (uint32_t i = 0; l->pipe && i < x->n_sent; i++)
        if (x->sent[i].value == value)
            KU_TRY(ku_lower_wait(l, x->sent[i].handle));
        else
            x->sent[n++] = x->sent[i];
    if (l->pipe)
        x->n_sent = n;
    return KUMI_OK;
}

int ku_messages_settle(struct ku_lower *l)
{
    for (uint32_t i = 0; l->pipe && i < l->messages->n_sent; i++)
        KU_TRY(ku_lower_wait(l, l->messages->sent[i].handle));
    if (l->pipe)
        l->messages->n_sent = 0;
    return KUMI_OK;
}
