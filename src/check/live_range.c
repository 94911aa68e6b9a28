/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Live ranges, from the instructions and not from the program's own claims, then offsets: no two
 * buffers of an arena that are alive at once have common bytes, and all lie within the arena. A
 * result may take the bytes of an operand that is read for the last time by the same instruction,
 * where the op permits it.
 *
 * A sweep over the instructions keeps the set of the offsets at which a live buffer of an arena
 * begins, so a new buffer is compared with its two neighbours.
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

/*
 * A set of numbers below 64^LEVELS: a bit per number, then a bit per word of the level below that
 * is not 0.
 */
enum { LEVELS = 6, NONE = -1 };
struct set {
    uint64_t *word[LEVELS];
    uint32_t n_words[LEVELS];
};

static void set_fini(struct set *s)
{
    for (int l = 0; l < LEVELS; l++)
        ku_free(s->word[l]);
}

static int set_init(struct set *s, uint32_t n)
{
    *s = (struct set){.word = {NULL}};
    for (int l = 0; l < LEVELS; l++) {
        n = n / 64 + 1;
        s->n_words[l] = n;
        s->word[l] = ku_calloc(n, sizeof *s->word[l]);
        if (s->word[l] == NULL)
            return KUMI_ENOMEM;
    }
    return KUMI_OK;
}

static void set_put(struct set *s, uint32_t i)
{
    for (int l = 0; l < LEVELS; l++, i /= 64)
        s->word[l][i / 64] |= UINT64_C(1) << i % 64;
}

static void set_drop(struct set *s, uint32_t i)
{
    for (int l = 0; l < LEVELS; l++, i /= 64)
        if (s->word[l][i / 64] &= ~(UINT64_C(1) << i % 64))
            return;
}

/* The first member from i on. */
static int64_t set_next(const struct set *s, uint32_t i)
{
    for (int l = 0; l < LEVELS && i / 64 < s->n_words[l]; l++, i = i / 64 + 1) {
        const uint64_t rest = s->word[l][i / 64] >> i % 64;
        if (rest == 0)
            continue;
        for (i += (uint32_t)__builtin_ctzll(rest); l-- > 0;)
            i = i * 64 + (uint32_t)__builtin_ctzll(s->word[l][i]);
        return i;
    }
    return NONE;
}

/* The last member before i. */
static int64_t set_previous(const struct set *s, uint32_t i)
{
    for (int l = 0; l < LEVELS && i-- > 0; l++, i /= 64) {
        const uint64_t rest = s->word[l][i / 64] << (63 - i % 64);
        if (rest == 0)
            continue;
        for (i -= (uint32_t)__builtin_clzll(rest); l-- > 0;)
            i = i * 64 + 63 - (uint32_t)__builtin_clzll(s->word[l][i]);
        return i;
    }
    return NONE;
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
    uint32_t *place;  /* per buffer: the rank of its offset among those of the arena */
    ku_id *at;        /* per rank: the live buffer */
    struct set begun; /* ranks at which a live buffer begins */
};

static int clash(struct ku_proof *c, ku_id a, ku_id b)
{
    c->at = c->first[b] < c->p->n_instrs ? c->first[b] : 0;
    return ku_proof_refuse(c, b, "shares bytes with buffer b%u, which is still in use", a);
}

static int enter(struct sweep *s, ku_id b)
{
    const struct ku_buffer *x = &s->c->p->buffer[b];
    const uint32_t place = s->place[b];
    if (x->bytes == 0)
        return KUMI_OK;
    const int64_t next = set_next(&s->begun, place), before = set_previous(&s->begun, place);
    if (next == place && is_in_place(s->c, s->at[place], b)) {
        s->at[place] = b;
        return KUMI_OK;
    }
    if (next != NONE && s->c->p->buffer[s->at[next]].offset < x->offset + x->bytes)
        return clash(s->c, s->at[next], b);
    if (before != NONE) {
        const struct ku_buffer *y = &s->c->p->buffer[s->at[before]];
        if (y->offset + y->bytes > x->offset)
            return clash(s->c, s->at[before], b);
    }
    set_put(&s->begun, place);
    s->at[place] = b;
    return KUMI_OK;
}

static void leave(struct sweep *s, ku_id b)
{
    if (s->c->p->buffer[b].bytes == 0 || s->at[s->place[b]] != b)
        return; /* its bytes passed to a result */
    set_drop(&s->begun, s->place[b]);
    s->at[s->place[b]] = 0;
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

enum { ALIGN_BYTES = 64 /* a cache line; kernels load whole vectors */ };
struct place {
    size_t offset;
    ku_id buffer;
};
static int by_offset(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Ranks the offsets of an arena's buffers; returns the number of these buffers. */
static uint32_t rank_offsets(struct sweep *s, int arena, struct place *place)
{
    const struct ku_proof *c = s->c;
    uint32_t n = 0;
    for (ku_id b = 1; b < c->p->n_buffers; b++)
        if (c->p->buffer[b].arena == arena && c->first[b] != UINT32_MAX)
            place[n++] = (struct place){c->p->buffer[b].offset, b};
    if (n > 1)
        qsort(place, n, sizeof *place, by_offset);
    for (uint32_t i = 0; i < n; i++)
        s->place[place[i].buffer] =
            i > 0 && place[i].offset == place[i - 1].offset ? s->place[place[i - 1].buffer] : i;
    return n;
}

static int check_arena(struct sweep *s, int arena, struct place *place, struct event *event)
{
    struct ku_proof *c = s->c;
    const uint32_t n_buffers = rank_offsets(s, arena, place);
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_buffers; i++) {
        const ku_id b = place[i].buffer;
        const struct ku_buffer *x = &c->p->buffer[b];
        const size_t bytes = c->p->arena_bytes[arena];
        if (x->offset > bytes || x->bytes > bytes - x->offset) {
            c->at = c->first[b];
            return ku_proof_refuse(c, b, "ends beyond the arena's %zu bytes", bytes);
        }
        const bool is_moved = ku_arena_is_offload(arena) || x->cls == KU_CL_STAGING;
        const size_t align = is_moved ? KU_OFFLOAD_ALIGN_BYTES : ALIGN_BYTES;
        if (x->offset % align) {
            c->at = c->first[b];
            return ku_proof_refuse(c, b, "is not at a multiple of %zu bytes", align);
        }
        event[n++] = (struct event){c->first[b], 0, b};
        event[n++] = (struct event){c->last[b], 1, b};
        c->report_of.n_buffers++;
    }
    if (n > 1)
        qsort(event, n, sizeof *event, by_time);
    for (uint32_t i = 0; i < n; i++)
        if (event[i].is_end)
            leave(s, event[i].buffer);
        else
            KU_TRY(enter(s, event[i].buffer));
    return KUMI_OK;
}

int ku_proof_live_ranges(struct ku_proof *c)
{
    const uint32_t n = c->p->n_buffers + 1;
    struct sweep s = {.c = c};
    struct place *place = ku_calloc(n, sizeof *place);
    struct event *event = ku_calloc(2 * (size_t)n, sizeof *event);
    s.place = ku_calloc(n, sizeof *s.place);
    s.at = ku_calloc(n, sizeof *s.at);
    int status = set_init(&s.begun, n);
    if (!place || !event || !s.place || !s.at)
        status = KUMI_ENOMEM;
    find_ranges(c);
    for (int a = 0; a < KU_N_ARENAS && status == KUMI_OK; a++)
        status = check_arena(&s, a, place, event);
    set_fini(&s.begun);
    ku_free(place);
    ku_free(event);
    ku_free(s.place);
    ku_free(s.at);
    c->at = 0;
    return status;
}
