/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CHECK_EDITS_H
#define TESTS_CHECK_EDITS_H

/* What mutations of programs have in common: drawing instructions, editing lists, undoing it. */
#include "layouts.h"

/* What the mutation did, for messages. */
enum { EDIT_BYTES = 256 };
static inline char *last_edit(void)
{
    static char text[EDIT_BYTES];
    return text;
}

static inline uint32_t draw(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

/* A random instruction that fits; UINT32_MAX: none. */
typedef bool fits(const struct ku_program *p, const struct ku_instr *i);
static inline uint32_t any_that(const struct ku_program *p, fits *f, uint64_t *seed)
{
    const uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t k = 0; k < p->n_instrs; k++)
        if (f(p, &p->instr[(from + k) % p->n_instrs]))
            return (from + k) % p->n_instrs;
    return UINT32_MAX;
}
/* A random instruction of a kind (op < 0: any); UINT32_MAX: none. */
static inline uint32_t any(const struct ku_program *p, int kind, int op, uint64_t *seed)
{
    uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t k = 0; k < p->n_instrs; k++) {
        uint32_t at = (from + k) % p->n_instrs;
        if (p->instr[at].kind == kind && (op < 0 || p->instr[at].op == op))
            return at;
    }
    return UINT32_MAX;
}
static inline bool is_collective(const struct ku_program *p, const struct ku_instr *i)
{
    (void)p;
    return i->kind == KU_START && !ku_exchange_is_offload(i->op) && i->n_parts;
}
static inline uint32_t any_collective(const struct ku_program *p, uint64_t *seed)
{
    return any_that(p, is_collective, seed);
}
static inline uint32_t wait_of(const struct ku_program *p, uint32_t start)
{
    for (uint32_t at = start + 1; at < p->n_instrs; at++)
        if (p->instr[at].kind == KU_WAIT && p->instr[at].handle == p->instr[start].handle)
            return at;
    return UINT32_MAX;
}
static inline struct ku_operand *operand(const struct ku_program *p, uint32_t at, uint32_t k)
{
    return &p->operand[p->instr[at].operand + k];
}
/* The first operand of a start that it moves. */
static inline struct ku_operand *part(const struct ku_program *p, uint32_t at)
{
    return operand(p, at, p->instr[at].n_in);
}
static inline bool writes(const struct ku_program *p, uint32_t at, ku_id b)
{
    const struct ku_instr *i = &p->instr[at];
    for (uint32_t k = 0; i->kind == KU_COMPUTE && k < i->n_out; k++)
        if (operand(p, at, i->n_in + k)->buffer == b)
            return true;
    return false;
}
static inline void erase(struct ku_program *p, uint32_t at)
{
    memmove(p->instr + at, p->instr + at + 1, (p->n_instrs - at - 1) * sizeof *p->instr);
    p->n_instrs--;
}
static inline void insert(struct ku_program *p, uint32_t at, struct ku_instr i)
{
    struct ku_instr *more = ku_calloc(p->n_instrs + 1, sizeof *more);
    assert_non_null(more);
    memcpy(more, p->instr, at * sizeof *more);
    more[at] = i;
    memcpy(more + at + 1, p->instr + at, (p->n_instrs - at) * sizeof *more);
    ku_free(p->instr);
    p->instr = more;
    p->n_instrs++;
}
static inline void move(struct ku_program *p, uint32_t from, uint32_t to)
{
    struct ku_instr i = p->instr[from];
    erase(p, from);
    insert(p, to, i);
}
/* Another buffer of the same bytes and dtype; 0: none. */
static inline ku_id twin(const struct ku_program *p, ku_id b, uint64_t *seed)
{
    uint32_t from = draw(seed, p->n_buffers);
    for (uint32_t k = 0; k < p->n_buffers; k++) {
        ku_id x = (from + k) % p->n_buffers;
        if (x && x != b && p->buffer[x].bytes == p->buffer[b].bytes &&
            p->buffer[x].dtype == p->buffer[b].dtype && p->buffer[x].first != UINT32_MAX)
            return x;
    }
    return 0;
}
static inline ku_id edit_attr(struct ku_program *p, uint32_t at, size_t offset, int64_t add)
{
    struct ku_attrs a = p->attr[p->instr[at].attr];
    *(int64_t *)(void *)((char *)&a + offset) += add;
    return p->instr[at].attr = ku_program_attr(p, &a);
}

/* What edits change of a program, as it was. */
struct before {
    struct ku_instr *instr;
    struct ku_operand *operand;
    struct ku_buffer *buffer;
    struct ku_program_state *state;
    uint32_t n_instrs, n_operands, n_attrs, n_handles;
};
static inline void *copy_of(const void *data, size_t n, size_t each)
{
    void *copy = ku_calloc(n + 1, each);
    assert_non_null(copy);
    return n ? memcpy(copy, data, n * each) : copy;
}
static inline struct before remember(const struct ku_program *p)
{
    return (struct before){.instr = copy_of(p->instr, p->n_instrs, sizeof *p->instr),
                           .operand = copy_of(p->operand, p->n_operands, sizeof *p->operand),
                           .buffer = copy_of(p->buffer, p->n_buffers, sizeof *p->buffer),
                           .state = copy_of(p->state, p->n_states, sizeof *p->state),
                           .n_instrs = p->n_instrs,
                           .n_operands = p->n_operands,
                           .n_attrs = p->n_attrs,
                           .n_handles = p->n_handles};
}
static inline void restore(struct ku_program *p, const struct before *b)
{
    ku_free(p->instr);
    ku_free(p->operand);
    p->instr = copy_of(b->instr, b->n_instrs, sizeof *p->instr);
    p->operand = copy_of(b->operand, b->n_operands, sizeof *p->operand);
    memcpy(p->buffer, b->buffer, p->n_buffers * sizeof *p->buffer);
    if (p->n_states)
        memcpy(p->state, b->state, p->n_states * sizeof *p->state);
    p->n_instrs = b->n_instrs, p->n_operands = b->n_operands;
    p->n_attrs = b->n_attrs, p->n_handles = b->n_handles;
}
static inline void forget(struct before *b)
{
    ku_free(b->instr);
    ku_free(b->operand);
    ku_free(b->buffer);
    ku_free(b->state);
}

#endif
