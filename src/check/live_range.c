/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Live ranges, from the instructions and not from the program's own claims, then offsets: no two
 * buffers of an arena that are alive at once have common bytes, and all lie within the arena. A
 * result may take the bytes of an operand that is read for the last time by the same instruction,
 * where the op permits it.
 *
 * A sweep over the instructions keeps the live buffers of an arena sorted by offset, so a new
 * buffer is compared with its two neighbours.
 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "check/proof.h"

static void touch(struct ku_proof *c, ku_id b, uint32_t at)
{
    if (b == 0 || b >= c->p->n_buffers)
        return;
    if (at < c->first[b])
        c->first[b] = at;
    if (at > c->last[b])
        c->last[b] = at;
}

static void touch_all(struct ku_proof *c, const struct ku_instr *i, uint32_t at)
{
    uint32_t n = i->kind == KU_START ? i->n_in + i->n_parts : (uint32_t)i->n_in + i->n_out;
    for (uint32_t k = 0; k < n && i->operand + k < c->p->n_operands; k++) {
        const struct ku_operand *o = &c->p->operand[i->operand + k];
        touch(c, o->buffer, at);
        touch(c, o->addend, at);
        touch(c, o->out, at);
    }
    touch(c, i->workspace, at);
}

static void find_ranges(struct ku_proof *c)
{
    const struct ku_program *p = c->p;
    for (ku_id b = 0; b < p->n_buffers; b++)
        c->first[b] = UINT32_MAX, c->last[b] = 0;
    memset(c->start, 0, (p->n_handles + 1) * sizeof *c->start);
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *i = &p->instr[at];
        if (i->kind != KU_WAIT)
            touch_all(c, i, at);
        if (i->kind == KU_START && i->handle <= p->n_handles)
            c->start[i->handle] = at + 1;
        if (i->kind == KU_WAIT && i->handle <= p->n_handles && c->start[i->handle])
            touch_all(c, &p->instr[c->start[i->handle] - 1], at);
    }
    memset(c->start, 0, (p->n_handles + 1) * sizeof *c->start);
    for (uint32_t i = 0; i < p->n_outputs; i++)
        touch(c, p->output[i].buffer, p->n_instrs);
    for (ku_id b = 1; b < p->n_buffers; b++) /* state and ports live throughout */
        if (c->state_of[b] || p->buffer[b].arena == KU_AR_INPUT)
            c->first[b] = 0, c->last[b] = p->n_instrs;
}

struct live {
    size_t offset;
    ku_id buffer;
};

static uint32_t position(const struct live *live, uint32_t n, size_t offset)
{
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (live[mid].offset < offset)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Whether the instruction may write `out` in the bytes of `in`. */
static bool is_in_place(const struct ku_proof *c, ku_id in, ku_id out)
{
    const struct ku_program *p = c->p;
    const struct ku_buffer *x = &p->buffer[in], *y = &p->buffer[out];
    uint32_t at = c->first[out];
    if (at >= p->n_instrs || c->last[in] != at || x->offset != y->offset || x->bytes != y->bytes)
        return 0;
    const struct ku_instr *i = &p->instr[at];
    if (i->kind != KU_COMPUTE || i->accumulate || i->op >= KU_N_OPS)
        return 0;
    int reads = 0, is_pair = 0;
    for (int k = 0; k < i->n_in; k++)
        reads += p->operand[i->operand + (uint32_t)k].buffer == in;
    for (int n = 0; n < i->n_out; n++) {
        int pair = ku_op_pair(ku_ops[i->op].alias, n);
        is_pair |= pair >= 0 && pair < i->n_in &&
                   p->operand[i->operand + (uint32_t)pair].buffer == in &&
                   p->operand[i->operand + i->n_in + (uint32_t)n].buffer == out;
    }
    return reads == 1 && is_pair;
}

struct sweep {
    struct ku_proof *c;
    struct live *live;
    uint32_t n;
};

static int clash(struct ku_proof *c, ku_id a, ku_id b)
{
    c->at = c->first[b] < c->p->n_instrs ? c->first[b] : 0;
    return ku_proof_refuse(c, b, "shares bytes with buffer b%u, which is still in use", a);
}

static int enter(struct sweep *s, ku_id b)
{
    const struct ku_buffer *x = &s->c->p->buffer[b];
    uint32_t at = position(s->live, s->n, x->offset);
    if (x->bytes == 0)
        return KUMI_OK;
    if (at < s->n && s->live[at].offset == x->offset && is_in_place(s->c, s->live[at].buffer, b)) {
        s->live[at].buffer = b;
        return KUMI_OK;
    }
    if (at < s->n && s->live[at].offset < x->offset + x->bytes)
        return clash(s->c, s->live[at].buffer, b);
    if (at > 0 &&
        s->live[at - 1].offset + s->c->p->buffer[s->live[at - 1].buffer].bytes > x->offset)
        return clash(s->c, s->live[at - 1].buffer, b);
    memmove(s->live + at + 1, s->live + at, (s->n - at) * sizeof *s->live);
    s->live[at] = (struct live){x->offset, b};
    s->n++;
    return KUMI_OK;
}

static void leave(struct sweep *s, ku_id b)
{
    uint32_t at = position(s->live, s->n, s->c->p->buffer[b].offset);
    if (at == s->n || s->live[at].buffer != b)
        return; /* its bytes passed to a result */
    memmove(s->live + at, s->live + at + 1, (s->n - at - 1) * sizeof *s->live);
    s->n--;
}

struct event {
    uint32_t at, is_end;
    ku_id buffer;
};
static int by_time(const void *a, const void *b)
{
    const struct event *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    if (x->is_end != y->is_end)
        return x->is_end ? 1 : -1;
    return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

static int check_arena(struct ku_proof *c, int arena, struct live *live, struct event *event)
{
    const struct ku_program *p = c->p;
    struct sweep s = {.c = c, .live = live};
    uint32_t n = 0;
    for (ku_id b = 1; b < p->n_buffers; b++) {
        const struct ku_buffer *x = &p->buffer[b];
        if (x->arena != arena || c->first[b] == UINT32_MAX)
            continue;
        if (x->offset > p->arena_bytes[arena] || x->bytes > p->arena_bytes[arena] - x->offset) {
            c->at = c->first[b];
            return ku_proof_refuse(c, b, "ends beyond the arena's %zu bytes",
                                   p->arena_bytes[arena]);
        }
        event[n++] = (struct event){c->first[b], 0, b};
        event[n++] = (struct event){c->last[b], 1, b};
        c->report_of.n_buffers++;
    }
    if (n > 1)
        qsort(event, n, sizeof *event, by_time);
    for (uint32_t i = 0; i < n; i++)
        if (event[i].is_end)
            leave(&s, event[i].buffer);
        else
            KU_TRY(enter(&s, event[i].buffer));
    return KUMI_OK;
}

int ku_proof_live_ranges(struct ku_proof *c)
{
    struct live *live = ku_calloc(c->p->n_buffers + 1, sizeof *live);
    struct event *event = ku_calloc(2 * (size_t)c->p->n_buffers + 2, sizeof *event);
    int status = live && event ? KUMI_OK : KUMI_ENOMEM;
    find_ranges(c);
    for (int a = 0; a < KU_N_ARENAS && status == KUMI_OK; a++)
        status = check_arena(c, a, live, event);
    ku_free(live);
    ku_free(event);
    c->at = 0;
    return status;
}
