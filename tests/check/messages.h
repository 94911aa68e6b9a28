/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CHECK_MESSAGES_H
#define TESTS_CHECK_MESSAGES_H

/* Mutations of pipelines: messages, the order of blocks, and what tensor parallelism sums. */
#include "edits.h"

/* One edit of the programs of all coordinates of axis pp; 0: the class does not apply. */
typedef int mutation_of_job(struct job *j, uint64_t *seed);

static bool is_message(const struct ku_program *p, const struct ku_instr *i)
{
    (void)p;
    return i->kind == KU_START && ku_exchange_is_message(i->op);
}
static bool is_send(const struct ku_program *p, const struct ku_instr *i)
{
    return is_message(p, i) && i->op == KU_X_SEND;
}
static bool is_receive(const struct ku_program *p, const struct ku_instr *i)
{
    return is_message(p, i) && i->op == KU_X_RECV;
}
static bool is_once(const struct ku_program *p, const struct ku_instr *i)
{
    return is_message(p, i) && i->micro < 0;
}

/* The start of the other side of a message, in *q. */
static uint32_t other_side(const struct job *j, const struct ku_program *p, uint32_t at,
                           struct ku_program **q)
{
    const struct ku_instr *i = &p->instr[at];
    uint32_t nth = 0;
    *q = j->all[i->peer];
    for (uint32_t k = 0; k < at; k++)
        nth += is_message(p, &p->instr[k]) && p->instr[k].op == i->op &&
               p->instr[k].peer == i->peer && p->instr[k].group == i->group;
    for (uint32_t k = 0; k < (*q)->n_instrs; k++) {
        const struct ku_instr *x = &(*q)->instr[k];
        if (is_message(*q, x) && x->op != i->op && x->peer == p->pp && x->group == i->group &&
            nth-- == 0)
            return k;
    }
    fail_msg("a message without its other side");
    return UINT32_MAX;
}

static void erase_both(struct ku_program *p, uint32_t start)
{
    erase(p, wait_of(p, start));
    erase(p, start);
}
static int drop_that(struct ku_program *p, fits *f, uint64_t *seed)
{
    const uint32_t at = any_that(p, f, seed);
    if (at == UINT32_MAX)
        return 0;
    erase_both(p, at);
    return 1;
}
static int drop_send(struct ku_program *p, uint64_t *seed)
{
    return drop_that(p, is_send, seed);
}
static int drop_receive(struct ku_program *p, uint64_t *seed)
{
    return drop_that(p, is_receive, seed);
}
static int drop_sides(struct job *j, fits *f, uint64_t *seed)
{
    struct ku_program *q;
    const uint32_t at = any_that(j->p, f, seed);
    if (at == UINT32_MAX)
        return 0;
    const uint32_t other = other_side(j, j->p, at, &q);
    erase_both(q, other);
    erase_both(j->p, at);
    return 1;
}
static int drop_message(struct job *j, uint64_t *seed)
{
    return drop_sides(j, is_message, seed);
}
/* Copies of a tied weight, its other use's gradient, the norm, the loss. */
static int drop_once(struct job *j, uint64_t *seed)
{
    return drop_sides(j, is_once, seed);
}

static void repeat(struct ku_program *p, uint32_t start)
{
    const uint32_t wait = wait_of(p, start);
    struct ku_instr again = p->instr[start], end = p->instr[wait];
    again.handle = end.handle = ++p->n_handles;
    insert(p, wait + 1, again);
    insert(p, wait + 2, end);
}
static int duplicate_message(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_message, seed);
    if (at == UINT32_MAX)
        return 0;
    repeat(p, at);
    return 1;
}
static int duplicate_both(struct job *j, uint64_t *seed)
{
    struct ku_program *q;
    const uint32_t at = any_that(j->p, is_message, seed);
    if (at == UINT32_MAX)
        return 0;
    repeat(q = j->p, at);
    const uint32_t other = other_side(j, j->p, at, &q);
    repeat(q, other);
    return 1;
}

/* Two messages of the same channel change places. */
static int reorder(struct ku_program *p, fits *f, uint64_t *seed)
{
    const uint32_t at = any_that(p, f, seed), n = p->n_instrs;
    for (uint32_t k = 1; at != UINT32_MAX && k < n; k++) {
        struct ku_instr *x = &p->instr[at], *y = &p->instr[(at + k) % n];
        if (!f(p, y) || y->peer != x->peer || y->group != x->group ||
            p->operand[x->operand].buffer == p->operand[y->operand].buffer)
            continue;
        const uint32_t operand = x->operand;
        x->operand = y->operand;
        y->operand = operand;
        return 1;
    }
    return 0;
}
static int reorder_sends(struct ku_program *p, uint64_t *seed)
{
    return reorder(p, is_send, seed);
}
static int reorder_receives(struct ku_program *p, uint64_t *seed)
{
    return reorder(p, is_receive, seed);
}

static void swap_op(struct ku_instr *i)
{
    i->op = i->op == KU_X_SEND ? KU_X_RECV : KU_X_SEND;
}
static int swap_side(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_message, seed);
    if (at == UINT32_MAX)
        return 0;
    swap_op(&p->instr[at]);
    return 1;
}
static int swap_sides(struct job *j, uint64_t *seed)
{
    struct ku_program *q;
    const uint32_t at = any_that(j->p, is_message, seed);
    if (at == UINT32_MAX)
        return 0;
    const uint32_t other = other_side(j, j->p, at, &q);
    swap_op(&q->instr[other]);
    swap_op(&j->p->instr[at]);
    return 1;
}
static int wrong_peer(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_message, seed);
    if (at == UINT32_MAX)
        return 0;
    const int n = p->mesh.extent[KU_AX_PP] + 1; /* one more than there are */
    p->instr[at].peer = (int16_t)((p->instr[at].peer + 1 + (int)draw(seed, (uint32_t)n - 1)) % n);
    return 1;
}
/* A receive, and a send of a value of the same size, from another coordinate. */
static int other_root(struct job *j, uint64_t *seed)
{
    struct ku_program *q;
    const uint32_t at = any_that(j->p, is_receive, seed);
    if (at == UINT32_MAX || j->n < 3)
        return 0;
    const uint32_t other = other_side(j, j->p, at, &q);
    struct ku_program *root = j->all[0];
    for (int k = 0; root == j->p || root == q; k++)
        root = j->all[k];
    struct ku_instr start = q->instr[other], end = q->instr[wait_of(q, other)];
    start.handle = end.handle = ++root->n_handles;
    for (ku_id b = root->n_buffers - 1; b > 0; b--)
        if (root->buffer[b].bytes == q->buffer[part(q, other)->buffer].bytes &&
            root->buffer[b].dtype == q->buffer[part(q, other)->buffer].dtype) {
            struct ku_operand *more = ku_calloc(root->n_operands + 1, sizeof *more);
            memcpy(more, root->operand, root->n_operands * sizeof *more);
            ku_free(root->operand);
            root->operand = more;
            more[root->n_operands] = *part(q, other);
            more[root->n_operands].buffer = b;
            more[root->n_operands].shape = more[root->n_operands].layout = 1;
            start.operand = root->n_operands++;
            insert(root, root->n_instrs, start);
            insert(root, root->n_instrs, end);
            erase_both(q, other);
            j->p->instr[at].peer = (int16_t)root->pp;
            return 1;
        }
    return 0;
}
static int wrong_channel(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_message, seed);
    if (at == UINT32_MAX)
        return 0;
    p->instr[at].group ^= 1;
    return 1;
}

/* The buffer of the same value of another micro-batch; 0: none. */
static ku_id stale(const struct ku_program *p, ku_id b)
{
    const struct ku_buffer *x = &p->buffer[b];
    for (ku_id k = p->n_buffers - 1; k > 0 && x->micro >= 0 && x->value; k--)
        if (p->buffer[k].value == x->value && p->buffer[k].micro != x->micro &&
            p->buffer[k].first != UINT32_MAX)
            return k;
    return 0;
}
static int stale_send(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_send, seed);
    const ku_id b = at == UINT32_MAX ? 0 : stale(p, part(p, at)->buffer);
    if (b == 0)
        return 0;
    part(p, at)->buffer = b;
    return 1;
}
static int stale_read(struct ku_program *p, uint64_t *seed)
{
    for (int tries = 0; tries < 20; tries++) {
        const uint32_t at = any(p, KU_COMPUTE, -1, seed);
        if (p->instr[at].n_in == 0)
            continue;
        struct ku_operand *o = operand(p, at, draw(seed, p->instr[at].n_in));
        const ku_id b = stale(p, o->buffer);
        if (b == 0)
            continue;
        snprintf(last_edit(), EDIT_BYTES, "instruction %u %s", at, ku_ops[p->instr[at].op].name);
        o->buffer = b;
        return 1;
    }
    return 0;
}

/* Both sides, or one, have another shape. */
static int message_shape(struct job *j, uint64_t *seed)
{
    struct ku_program *q;
    const uint32_t at = any_that(j->p, is_message, seed);
    if (at == UINT32_MAX)
        return 0;
    const uint32_t other = other_side(j, j->p, at, &q);
    struct ku_operand *x = part(j->p, at), *y = part(q, other);
    const ku_id shape = 1 + draw(seed, j->p->n_shapes - 1);
    const struct ku_shape *s = &j->p->shape[shape];
    if (ku_shape_count(s) == ku_shape_count(&j->p->shape[x->shape]))
        return 0;
    for (ku_id k = 1; k < q->n_shapes && draw(seed, 2); k++)
        if (ku_shape_count(&q->shape[k]) == ku_shape_count(s))
            y->shape = k;
    x->shape = shape;
    return 1;
}
static int message_dtype(struct job *j, uint64_t *seed)
{
    struct ku_program *q;
    const uint32_t at = any_that(j->p, is_message, seed);
    if (at == UINT32_MAX)
        return 0;
    const uint32_t other = other_side(j, j->p, at, &q);
    const uint8_t dtype = part(j->p, at)->dtype == KUMI_F32 ? KUMI_I32 : KUMI_F32;
    part(j->p, at)->dtype = j->p->instr[at].wire = dtype;
    if (draw(seed, 2))
        part(q, other)->dtype = q->instr[other].wire = dtype;
    return 1;
}
static int message_placement(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_message, seed);
    if (at == UINT32_MAX)
        return 0;
    const ku_id was = part(p, at)->layout, to = draw(seed, p->n_layouts);
    part(p, at)->layout = to;
    return memcmp(&p->layout[was], &p->layout[to], sizeof *p->layout) != 0;
}

/* A start moves in front of the last instruction before it that writes its operand. */
static int early_send(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_send, seed);
    for (uint32_t to = at; at != UINT32_MAX && to-- > 0;)
        if (writes(p, to, part(p, at)->buffer)) {
            move(p, at, to);
            return 1;
        }
    return 0;
}
static int late_receive(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_receive, seed);
    for (uint32_t k = at; at != UINT32_MAX && k + 1 < p->n_instrs; k++)
        for (uint32_t n = 0; p->instr[k].kind == KU_COMPUTE && n < p->instr[k].n_in; n++)
            if (operand(p, k, n)->buffer == part(p, at)->buffer) {
                move(p, wait_of(p, at), p->n_instrs - 1);
                return 1;
            }
    return 0; /* harmless: only ports and messages read the result */
}
static int send_at_once(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_send, seed);
    if (at == UINT32_MAX || wait_of(p, at) == at + 1)
        return 0;
    move(p, wait_of(p, at), at + 1);
    return 1;
}
static int late_send(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_send, seed);
    if (at == UINT32_MAX)
        return 0;
    move(p, wait_of(p, at), p->n_instrs - 1);
    return 1;
}
/* The state plan of a program names, at all coordinates, another one for a tensor. */
static int wrong_home(struct job *j, uint64_t *seed)
{
    const uint32_t n = j->p->n_states, from = draw(seed, n ? n : 1);
    for (uint32_t k = 0; k < n && j->n > 1; k++) {
        const uint32_t s = (from + k) % n;
        const int16_t was = j->p->state[s].pp;
        for (int c = 0; was >= 0 && c < j->n; c++)
            j->all[c]->state[s].pp = (int16_t)((was + 1) % j->n);
        if (was >= 0)
            return 1;
    }
    return 0;
}

/* ---- blocks and micro-batches ---- */

static bool is_of_micro(const struct ku_program *p, const struct ku_instr *i)
{
    (void)p;
    return i->micro >= 0 && i->kind == KU_COMPUTE;
}

/* Drops the instructions of a phase, stage and micro-batch, with the waits of its starts. */
static void drop_all(struct ku_program *p, int phase, int stage, int micro)
{
    for (uint32_t at = p->n_instrs; at-- > 0;) {
        const struct ku_instr *i = &p->instr[at];
        if (i->kind == KU_WAIT || i->micro != micro || (phase >= 0 && i->phase != phase) ||
            (stage >= 0 && i->stage != stage))
            continue;
        if (i->kind == KU_START)
            erase(p, wait_of(p, at));
        erase(p, at);
    }
}
static int drop_block(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_of_micro, seed);
    if (at == UINT32_MAX)
        return 0;
    drop_all(p, p->instr[at].phase, p->instr[at].stage, p->instr[at].micro);
    return 1;
}
static int drop_micro(struct job *j, uint64_t *seed)
{
    const int n = ku_mesh_n_micro(&j->p->mesh), micro = (int)draw(seed, (uint32_t)n);
    for (int k = 0; k < j->n; k++)
        drop_all(j->all[k], -1, -1, micro);
    return 1;
}
/* The samples and random numbers of a micro-batch are those of another. */
static int repeat_micro(struct ku_program *p, uint64_t *seed)
{
    const int n = ku_mesh_n_micro(&p->mesh), from = (int)draw(seed, (uint32_t)n);
    bool is_seen = false;
    for (uint32_t at = 0; at < p->n_instrs && n > 1; at++) {
        struct ku_instr *i = &p->instr[at];
        if (i->micro != from)
            continue;
        i->micro = (from + 1) % n;
        for (uint32_t k = 0; i->kind == KU_COMPUTE && k < i->n_in; k++)
            is_seen |= p->buffer[operand(p, at, k)->buffer].arena == KU_AR_INPUT;
    }
    return is_seen;
}
static bool is_w(const struct ku_program *p, const struct ku_instr *i)
{
    (void)p;
    return i->kind == KU_COMPUTE && i->phase == KU_PH_W;
}
static int early_w(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_w, seed);
    for (uint32_t to = at; at != UINT32_MAX && to-- > 0;)
        for (uint32_t k = 0; k < p->instr[at].n_in; k++)
            if (p->instr[to].phase == KU_PH_I && writes(p, to, operand(p, at, k)->buffer)) {
                move(p, at, to);
                return 1;
            }
    return 0;
}
static bool is_added(const struct ku_program *p, const struct ku_instr *i)
{
    (void)p;
    return i->kind == KU_COMPUTE && i->accumulate;
}
/* Two terms of a sum, neither the first. */
static int other_order(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_added, seed);
    for (uint32_t to = at; at != UINT32_MAX && to-- > 0;)
        if (is_added(p, &p->instr[to]) && p->instr[to].op == p->instr[at].op &&
            operand(p, to, p->instr[to].n_in)->buffer ==
                operand(p, at, p->instr[at].n_in)->buffer) {
            const struct ku_instr x = p->instr[to];
            p->instr[to] = p->instr[at];
            p->instr[at] = x;
            return 1;
        }
    return 0;
}

/* ---- updates, bias and random numbers ---- */

static bool is_update(const struct ku_program *p, const struct ku_instr *i)
{
    (void)p;
    return i->kind == KU_COMPUTE && ku_ops[i->op].state[0];
}
static int early_reduction(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_update, seed);
    for (uint32_t to = at; at != UINT32_MAX && to-- > 0;) {
        const struct ku_instr *i = &p->instr[to];
        for (uint32_t n = 0; i->kind == KU_START && n < i->n_parts; n++)
            for (uint32_t k = 0; i->op <= KU_X_ALL_REDUCE && k < p->instr[at].n_in; k++)
                if (operand(p, at, k)->buffer == operand(p, to, i->n_in + n)->buffer) {
                    move(p, at, to);
                    return 1;
                }
    }
    return 0;
}
static bool is_bias_add(const struct ku_program *p, const struct ku_instr *i)
{
    (void)p;
    return i->kind == KU_COMPUTE && i->op == KU_OP_bias_add && i->n_in == 2;
}
/* The start of the sum over axis tp that a bias_add reads; UINT32_MAX: none. */
static uint32_t sum_before(const struct ku_program *p, uint32_t at)
{
    for (uint32_t k = at; k-- > 0;)
        if (p->instr[k].kind == KU_START && p->instr[k].axes == 1 << KU_AX_TP &&
            p->instr[k].n_parts == 1 && part(p, k)->buffer == operand(p, at, 0)->buffer)
            return k;
    return UINT32_MAX;
}
static int early_bias(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_bias_add, seed);
    const uint32_t start = at == UINT32_MAX ? at : sum_before(p, at);
    if (start == UINT32_MAX)
        return 0;
    const struct ku_operand out = *operand(p, at, 2);
    part(p, start)->buffer = out.buffer;
    part(p, start)->dtype = p->instr[start].wire = out.dtype;
    move(p, wait_of(p, start), at);
    move(p, start, at - 1);
    return 1;
}
/* linear takes the bias, so the sum has it once per rank. */
static int bias_everywhere(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_bias_add, seed);
    const uint32_t start = at == UINT32_MAX ? at : sum_before(p, at);
    uint32_t core = start == UINT32_MAX ? 0 : start;
    while (core > 0 && !(p->instr[core].kind == KU_COMPUTE && p->instr[core].op == KU_OP_linear &&
                         writes(p, core, part(p, start)->buffer)))
        core--;
    if (core == 0 || operand(p, at, 2)->dtype != KUMI_F32)
        return 0;
    struct ku_operand *more = ku_calloc(p->n_operands + 4, sizeof *more);
    memcpy(more, p->operand, p->n_operands * sizeof *more);
    more[p->n_operands] = *operand(p, core, 0);
    more[p->n_operands + 1] = *operand(p, core, 1);
    more[p->n_operands + 2] = *operand(p, at, 1);
    more[p->n_operands + 3] = *operand(p, core, 2);
    more[p->n_operands + 3].buffer = operand(p, at, 2)->buffer;
    ku_free(p->operand);
    p->operand = more;
    part(p, start)->buffer = more[p->n_operands + 3].buffer;
    p->instr[core].operand = p->n_operands;
    p->instr[core].n_in = 3;
    p->n_operands += 4;
    erase(p, at);
    return 1;
}
static bool is_random(const struct ku_program *p, const struct ku_instr *i)
{
    (void)p;
    return i->kind == KU_COMPUTE && i->op == KU_OP_dropout;
}
static int other_stream(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_random, seed);
    for (uint32_t k = 0; at != UINT32_MAX && k < p->n_instrs; k++)
        if (is_random(p, &p->instr[k]) && p->instr[k].stream != p->instr[at].stream) {
            p->instr[at].stream = p->instr[k].stream;
            return 1;
        }
    return 0;
}
static int wrong_scale(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, is_random, seed);
    if (at == UINT32_MAX)
        return 0;
    struct ku_attrs a = p->attr[p->instr[at].attr];
    a.p = 0.5;
    p->instr[at].attr = ku_program_attr(p, &a);
    return 1;
}

#endif
