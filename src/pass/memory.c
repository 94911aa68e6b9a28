/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offsets of all buffers whose live range is inside the step.
 *
 *   1. alias    a result takes the bytes of an operand whose live range ends at the instruction,
 *               where the op permits it (ops.def: alias)
 *   2. place    per arena, buffers are placed largest first, each at the lowest offset that is free
 *               during its whole live range (Pisarchyk & Lee 2020, greedy by size)
 *
 * Offload arenas hold the state first, then activations. Nothing is allocated during a step.
 */
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "pass/pass.h"
#include "pass/space.h"

enum { ALIGN_BYTES = 64 };

static ku_id home_of(const struct ku_program *p, ku_id b)
{
    while (p->buffer[b].home)
        b = p->buffer[b].home;
    return b;
}

/* Gives output o the bytes of input i if the input's live range ends here. The live range of an
 * output port ends after the last instruction, so its buffer never qualifies. */
static void alias(struct ku_program *p, uint32_t at, int o, int i)
{
    const struct ku_instr *instr = &p->instr[at];
    ku_id out = p->operand[instr->operand + instr->n_in + (uint32_t)o].buffer;
    ku_id in = p->operand[instr->operand + (uint32_t)i].buffer, home = home_of(p, in);
    struct ku_buffer *x = &p->buffer[out], *y = &p->buffer[home];
    if (x->cls == KU_CL_STAGING ||
        y->cls == KU_CL_STAGING) /* staging buffers have another alignment and are filled ahead */
        return;
    if (x->arena != KU_AR_STEP || (y->arena != KU_AR_STEP && y->arena != KU_AR_WIRE) || x->home ||
        x->first != at || y->last != at || x->bytes != y->bytes || out == home)
        return;
    for (int k = 0; k < instr->n_in;
         k++) /* no alias if another operand has the same bytes: element order is not assumed */
        if (k != i && home_of(p, p->operand[instr->operand + (uint32_t)k].buffer) == home)
            return;
    x->home = home;
    x->arena = y->arena;
    y->last = x->last;
}

static void alias_all(struct ku_program *p)
{
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *instr = &p->instr[at];
        if (instr->kind != KU_COMPUTE || instr->accumulate)
            continue;
        for (int o = 0; o < instr->n_out; o++) {
            int i = ku_op_pair(ku_ops[instr->op].alias, o);
            if (i >= 0)
                alias(p, at, o, i);
        }
    }
}

struct item {
    ku_id buffer;
    size_t bytes, align;
    uint32_t first, last; /* instructions; after number_times: times */
};

static int by_bytes(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->buffer < y->buffer ? -1 : 1;
}

/* Compresses instruction indices to times: only the instructions at which an item begins decide
 * whether two live ranges overlap. Returns the number of times. */
static uint32_t number_times(struct item *item, uint32_t n, uint32_t *begins, uint32_t n_instrs)
{
    for (uint32_t i = 0; i < n; i++)
        begins[item[i].first] = 1;
    for (uint32_t t = 1; t <= n_instrs; t++)
        begins[t] += begins[t - 1];
    for (uint32_t i = 0; i < n; i++) {
        item[i].first = begins[item[i].first] - 1;
        item[i].last = begins[item[i].last] - 1;
    }
    for (uint32_t i = 0; i < n; i++)
        KU_ASSERT(item[i].first <= item[i].last && item[i].last < begins[n_instrs]);
    return begins[n_instrs];
}

static int place_items(struct ku_program *p, int arena, struct item *item, uint32_t n,
                       uint32_t n_times)
{
    struct ku_space *space;
    size_t base = p->arena_bytes[arena], most = base;
    for (uint32_t i = 0; i < n; i++)
        KU_TRY(ku_add_size(most, item[i].bytes, &most)); /* so that no offset overflows */
    KU_TRY(ku_space_create(n_times, base, &space));
    int status = KUMI_OK;
    for (uint32_t i = 0; i < n && status == KUMI_OK; i++) {
        size_t *offset = &p->buffer[item[i].buffer].offset;
        status = ku_space_place(space, item[i].first, item[i].last, item[i].bytes, item[i].align,
                                offset);
        KU_ASSERT(status < 0 || (*offset % item[i].align == 0 && *offset >= base));
        if (*offset + item[i].bytes > p->arena_bytes[arena])
            p->arena_bytes[arena] = *offset + item[i].bytes;
    }
    ku_space_destroy(space);
    return status;
}

static int place(struct ku_program *p, int arena)
{
    struct item *item = ku_calloc(p->n_buffers + 1, sizeof *item);
    uint32_t *begins = ku_calloc(p->n_instrs + 1, sizeof *begins), n = 0;
    for (ku_id b = 1; item && b < p->n_buffers; b++) {
        const struct ku_buffer *x = &p->buffer[b];
        size_t align = ku_arena_is_offload(arena) || x->cls == KU_CL_STAGING
                           ? KU_OFFLOAD_ALIGN_BYTES
                           : ALIGN_BYTES;
        int is_state = ku_arena_is_offload(arena) && x->micro < 0;
        if (x->arena == arena && x->home == 0 && x->first != UINT32_MAX && !is_state)
            item[n++] =
                (struct item){b, (x->bytes + align - 1) & ~(align - 1), align, x->first, x->last};
    }
    if (!ku_arena_is_offload(arena))
        p->arena_bytes[arena] = 0;
    int status = item && begins ? KUMI_OK : KUMI_ENOMEM;
    if (n && status == KUMI_OK) {
        qsort(item, n, sizeof *item, by_bytes);
        status = place_items(p, arena, item, n, number_times(item, n, begins, p->n_instrs));
    }
    ku_free(item);
    ku_free(begins);
    return status;
}

/* Every instruction uses buffers within their live ranges; a wait follows its start. */
static void check_ranges(const struct ku_program *p)
{
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *i = &p->instr[at];
        uint32_t n = i->kind == KU_WAIT    ? 0
                     : i->kind == KU_START ? i->n_in + i->n_parts
                                           : (uint32_t)i->n_in + i->n_out;
        KU_ASSERT(i->operand + n <= p->n_operands || n == 0);
        KU_ASSERT(i->kind == KU_COMPUTE || (i->handle > 0 && i->handle <= p->n_handles));
        for (uint32_t k = 0; k < n; k++) {
            const struct ku_operand *o = &p->operand[i->operand + k];
            const struct ku_buffer *b = &p->buffer[o->buffer];
            KU_ASSERT(o->buffer > 0 && o->buffer < p->n_buffers && o->out < p->n_buffers);
            KU_ASSERT(o->shape > 0 && o->shape < p->n_shapes && o->layout < p->n_layouts);
            KU_ASSERT(b->first <= at && at <= b->last);
        }
    }
}

/* Every buffer lies within its arena, and an aliased one in the bytes of its home. */
static void check_offsets(const struct ku_program *p)
{
    for (ku_id b = 1; b < p->n_buffers; b++) {
        const struct ku_buffer *x = &p->buffer[b], *home = &p->buffer[x->home];
        KU_ASSERT(x->first == UINT32_MAX || x->offset + x->bytes <= p->arena_bytes[x->arena]);
        KU_ASSERT(x->home == 0 || (home->arena == x->arena && home->bytes == x->bytes));
        KU_ASSERT(x->home == 0 || home->offset == x->offset);
    }
}

int ku_pass_memory(struct ku_program *p)
{
    check_ranges(p);
    alias_all(p);
    KU_TRY(place(p, KU_AR_STEP));
    KU_TRY(place(p, KU_AR_WIRE));
    KU_TRY(place(p, KU_AR_GATHER));
    KU_TRY(place(p, KU_AR_OFFLOAD));
    KU_TRY(place(p, KU_AR_FILE));
    for (ku_id b = 1; b < p->n_buffers; b++)
        if (p->buffer[b].home)
            p->buffer[b].offset = p->buffer[home_of(p, b)].offset;
    check_offsets(p);
    return KUMI_OK;
}
