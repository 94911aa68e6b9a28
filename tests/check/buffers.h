/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CHECK_BUFFERS_H
#define TESTS_CHECK_BUFFERS_H

/* Mutations of buffers: owned chunks, gathers, transfers of offload targets. */
#include "placements.h"

/* A buffer has a rank's owned chunks alone in the place of all, or the other way round. */
static int toggle_kept(struct ku_program *p, uint64_t *seed)
{
    const ku_id n = draw(seed, 2) ? p->n_states + 1 : p->n_buffers, from = draw(seed, n);
    for (uint32_t k = 0; k < n; k++) {
        const ku_id b = (from + k) % n;
        if (b == 0 || (p->buffer[b].first == UINT32_MAX && b > p->n_states))
            continue;
        p->buffer[b].is_kept ^= 1;
        snprintf(last_edit(), EDIT_BYTES, "b%u %s", b, p->name_of[p->buffer[b].name]);
        return 1;
    }
    return 0;
}

static bool gathers_chunks(const struct ku_program *p, const struct ku_instr *i)
{
    return i->kind == KU_START && i->op == KU_X_ALL_GATHER &&
           ku_layout_has(&p->layout[p->operand[i->operand].layout], KU_Z);
}
/* The rank's own chunks are copied to where a gather has those of all ranks. */
static int copy_for_gather(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, gathers_chunks, seed);
    if (at == UINT32_MAX)
        return 0;
    struct ku_instr *start = &p->instr[at];
    const uint32_t wait = wait_of(p, at);
    struct ku_operand *more = ku_realloc(p->operand, p->n_operands + 2, sizeof *more);
    assert_non_null(more);
    p->operand = more;
    struct ku_operand from = more[start->operand + start->n_parts - 1], to = from;
    struct ku_layout whole = p->layout[from.layout];
    struct ku_attrs a = ku_attrs_default;
    for (int axis = 0; axis < KU_N_AXES; axis++)
        if (start->axes >> axis & 1)
            whole.at[axis] = (struct ku_place){.kind = KU_C};
    a.dtype = from.dtype;
    to.buffer = from.out ? from.out : from.buffer;
    to.layout = layout_of(p, &whole);
    from.out = to.out = 0;
    const struct ku_instr copy = {.kind = KU_COMPUTE,
                                  .phase = start->phase,
                                  .op = KU_OP_cast,
                                  .n_in = 1,
                                  .n_out = 1,
                                  .stage = start->stage,
                                  .micro = start->micro,
                                  .operand = p->n_operands,
                                  .attr = ku_program_attr(p, &a),
                                  .path = start->path};
    p->operand[p->n_operands++] = from;
    p->operand[p->n_operands++] = to;
    if (--start->n_parts) {
        insert(p, wait + 1, copy);
    } else {
        p->instr[wait] = copy;
        erase(p, at);
    }
    return 1;
}

static bool is_transfer(const struct ku_program *p, const struct ku_instr *i)
{
    (void)p;
    return i->kind == KU_START && ku_exchange_is_offload(i->op);
}
static int late_transfer(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_transfer, seed);
    if (at == UINT32_MAX)
        return 0;
    move(p, wait_of(p, at), p->n_instrs - 1);
    return 1;
}

static bool has_same_buffer(const struct ku_program *p, uint32_t a, uint32_t b)
{
    for (uint32_t k = 0; k < p->instr[a].n_parts; k++)
        for (uint32_t n = 0; n < p->instr[b].n_parts; n++)
            if (operand(p, a, k)->buffer == operand(p, b, n)->buffer)
                return true;
    return false;
}
/* A read of an offloaded buffer starts right after a write of it has. */
static int early_read(struct ku_program *p, uint64_t *seed)
{
    const uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t k = 0; k < p->n_instrs; k++) {
        const uint32_t at = (from + k) % p->n_instrs;
        if (!is_transfer(p, &p->instr[at]) || p->instr[at].op != KU_X_READ)
            continue;
        for (uint32_t to = at; to-- > 0;)
            if (is_transfer(p, &p->instr[to]) && p->instr[to].op == KU_X_WRITE &&
                has_same_buffer(p, at, to)) {
                move(p, at, to + 1);
                return 1;
            }
    }
    return 0;
}

#endif
