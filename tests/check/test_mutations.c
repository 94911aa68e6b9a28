/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check over programs of small networks in many parallel layouts: data, tensor and pipeline
 * parallelism of every schedule, alone and together. Every legal program is accepted. Then seeded
 * mutations of the programs, one edit each, by class: all must be refused, or leave the digest of
 * the program without the edit. The report by class is printed. KUMI_TEST_SEED=N sets the seed.
 */
#include "buffers.h"
#include "edits.h"
#include "messages.h"
#include "placements.h"
#include "sample.h"
#include "trial.h"

/* Every layout of the generator is legal, so the compiler refuses none. */
static void must_make(const struct layout *l, enum ku_check_kind kind, struct job *j)
{
    if (make(l, kind, j) < 0) {
        show(l);
        fail_msg("the compiler refuses it: %s", ku_err_get()->text);
    }
}

static void legal(void **state)
{
    uint64_t seed = 1;
    int n = 0, n_refused = 0, n_layouts = 0, n_pipelines = 0, n_3d = 0;
    const int all = sample_count(400, 120);
    (void)state;
    for (int i = 0; i < 4 * all; i++) {
        static struct layout l;
        struct job j;
        if (i % 4 == 0)
            l = random_layout(&seed);
        if (i % 40 == 0)
            l = over_sequences(l, i % 80 ? 2 : 4);
        if (i % 40 == 20)
            l = over_heads(l, i / 40);
        must_make(&l, (enum ku_check_kind)(i % 4), &j);
        n += j.n;
        n_layouts += i % 4 == 0;
        n_pipelines += i % 4 == 0 && j.n > 1;
        n_3d += i % 4 == 0 && j.n > 1 && l.tp > 1 && l.ranks > 1;
        if (check(&j) < 0 && n_refused++ < 12) {
            fprintf(stderr, "%s\n", ku_err_get()->text);
            show(&l);
        }
        drop(&j);
    }
    fprintf(
        stderr,
        "legal: %d layouts, of them %d pipelines, of these %d with axes tp and dp; %d programs, "
        "refused %d\n",
        n_layouts, n_pipelines, n_3d, n, n_refused);
    assert_true(n_pipelines >= all / 4 && n_3d >= all / 20);
    assert_int_equal(n_refused, 0);
}

/* ---- mutations ---- */

/* One edit of a program; 0: the class does not apply to it. */
typedef int mutation(struct ku_program *p, uint64_t *seed);

static int drop_collective(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    erase(p, wait_of(p, at));
    erase(p, at);
    return 1;
}
static int drop_wait(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_WAIT, -1, seed);
    if (at == UINT32_MAX)
        return 0;
    erase(p, at);
    return 1;
}
static int duplicate_collective(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    uint32_t wait = wait_of(p, at);
    if (p->operand[p->instr[at].operand + p->instr[at].n_in].out &&
        p->instr[at].op == KU_X_ALL_GATHER)
        return 0; /* harmless: the same shards are copied to the same buffer again */
    struct ku_instr start = p->instr[at], end = p->instr[wait];
    start.handle = end.handle = p->n_handles++ + 1;
    insert(p, wait + 1, start);
    insert(p, wait + 2, end);
    return 1;
}
/* A collective begins before the last instruction that writes its operand. */
static int early_collective(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    const struct ku_instr *i = &p->instr[at];
    for (uint32_t to = at; to-- > 0;)
        for (uint32_t k = 0; p->instr[to].kind == KU_COMPUTE && k < p->instr[to].n_out; k++)
            for (uint32_t n = 0; n < i->n_parts; n++)
                if (p->operand[p->instr[to].operand + p->instr[to].n_in + k].buffer ==
                    p->operand[i->operand + i->n_in + n].buffer) {
                    move(p, at, to);
                    return 1;
                }
    return 0;
}
static int late_wait(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    uint32_t wait = wait_of(p, at);
    const struct ku_operand *o = &p->operand[p->instr[at].operand + p->instr[at].n_in];
    ku_id result = o->out ? o->out : o->buffer;
    const bool is_read = p->instr[at].op != KU_X_ALL_GATHER && p->instr[at].op != KU_X_SEND;
    for (uint32_t k = wait + 1; k + 1 < p->n_instrs && is_read; k++)
        for (int n = 0; p->instr[k].kind == KU_COMPUTE && n < p->instr[k].n_in; n++)
            if (p->operand[p->instr[k].operand + (uint32_t)n].buffer == result) {
                move(p, wait, p->n_instrs - 1);
                return 1;
            }
    return 0; /* harmless: only ports and the next step read the result */
}
static int wrong_axes(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    p->instr[at].axes ^= (uint8_t)(1 << (KU_AX_REPLICATE + (int)draw(seed, 3)));
    return 1;
}
static int wrong_group(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    p->instr[at].group = p->instr[at].group ? 0 : 2;
    return 1;
}
static int wrong_wire(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    p->instr[at].wire = p->instr[at].wire == KUMI_F16 ? KUMI_F32 : KUMI_F16;
    return 1;
}
static int wrong_kind(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    p->instr[at].op = p->instr[at].op == KU_X_ALL_REDUCE ? KU_X_REDUCE_SCATTER : KU_X_ALL_REDUCE;
    return 1;
}
static int wrong_reduction(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX || p->instr[at].op == KU_X_ALL_GATHER)
        return 0;
    p->instr[at].reduce ^= 1;
    return 1;
}
/* Another shape or run of chunks: the count of a part. */
static int wrong_count(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    struct ku_operand *o =
        &p->operand[p->instr[at].operand + p->instr[at].n_in + draw(seed, p->instr[at].n_parts)];
    ku_id other = 1 + draw(seed, p->n_shapes - 1);
    if (ku_shape_count(&p->shape[other]) == ku_shape_count(&p->shape[o->shape]))
        return 0;
    o->shape = other;
    return 1;
}
static int missing_part(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX || p->instr[at].n_parts < 2)
        return 0;
    p->instr[at].n_parts--;
    return 1;
}
static int drop_compute(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, -1, seed);
    if (at == UINT32_MAX)
        return 0;
    snprintf(last_edit(), EDIT_BYTES, "drops %u of %u, %s %s", at, p->n_instrs,
             ku_ops[p->instr[at].op].name, p->name_of[p->instr[at].path]);
    erase(p, at);
    return 1;
}
static int drop_barrier(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_START, KU_X_BARRIER, seed);
    if (at == UINT32_MAX)
        return 0;
    erase(p, wait_of(p, at));
    erase(p, at);
    return 1;
}
static int drop_op(struct ku_program *p, int op, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, op, seed);
    if (at == UINT32_MAX)
        return 0;
    erase(p, at);
    return 1;
}
static int norm_missing(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    for (uint32_t n = 0; at != UINT32_MAX && n < p->instr[at].n_parts; n++) {
        struct ku_operand *o = &p->operand[p->instr[at].operand + p->instr[at].n_in + n];
        if (o->stats_word) {
            o->stats_word = 0;
            return 1;
        }
    }
    return drop_op(p, KU_OP_sumsq, seed);
}
static int norm_twice(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, KU_OP_sumsq, seed);
    if (at == UINT32_MAX)
        return 0;
    insert(p, at, p->instr[at]);
    return 1;
}
static int wrong_shift(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, draw(seed, 2) ? KU_OP_step_scalars : KU_OP_loss_seed, seed);
    return at != UINT32_MAX && edit_attr(p, at, offsetof(struct ku_attrs, shift), 1);
}
static int wrong_attr(struct ku_program *p, uint64_t *seed)
{
    static const int op[] = {KU_OP_dropout, KU_OP_linear, KU_OP_linear_dw, KU_OP_layer_norm,
                             KU_OP_exact_sum};
    uint32_t at = any(p, KU_COMPUTE, op[draw(seed, 5)], seed);
    return at != UINT32_MAX && edit_attr(p, at, offsetof(struct ku_attrs, trans), 1);
}
/* An attribute of the optimizer: of the report's node, or of one that updates state. */
static int edit_number(struct ku_program *p, int op, size_t offset, double to, uint64_t *seed)
{
    uint32_t at = UINT32_MAX, from = draw(seed, p->n_instrs);
    for (uint32_t k = 0; k < p->n_instrs && at == UINT32_MAX; k++) {
        const struct ku_instr *i = &p->instr[(from + k) % p->n_instrs];
        if (i->kind == KU_COMPUTE && (op ? i->op == op : ku_ops[i->op].state[0] != NULL))
            at = (from + k) % p->n_instrs;
    }
    if (at == UINT32_MAX)
        return 0;
    struct ku_attrs a = p->attr[p->instr[at].attr];
    double *x = (double *)(void *)((char *)&a + offset);
    if (*x == to)
        return 0;
    *x = to;
    p->instr[at].attr = ku_program_attr(p, &a);
    return 1;
}
static int wrong_decay(struct ku_program *p, uint64_t *seed)
{
    return edit_number(p, 0, offsetof(struct ku_attrs, weight_decay), draw(seed, 2) ? 0 : 0.2,
                       seed);
}
static int wrong_beta(struct ku_program *p, uint64_t *seed)
{
    static const size_t which[] = {offsetof(struct ku_attrs, beta1),
                                   offsetof(struct ku_attrs, beta2),
                                   offsetof(struct ku_attrs, momentum),
                                   offsetof(struct ku_attrs, eps), offsetof(struct ku_attrs, ema)};
    int k = (int)draw(seed, 5);
    return edit_number(p, k == 4 ? KU_OP_ema : 0, which[k], 0.75, seed);
}
static int wrong_rate(struct ku_program *p, uint64_t *seed)
{
    return draw(seed, 2)
               ? edit_number(p, 0, offsetof(struct ku_attrs, lr_mult), 2, seed)
               : edit_number(p, KU_OP_step_scalars, offsetof(struct ku_attrs, lr), 2e-3, seed);
}
static int no_clipping(struct ku_program *p, uint64_t *seed)
{
    return draw(seed, 2) && any(p, KU_COMPUTE, KU_OP_clip_value, seed) != UINT32_MAX
               ? drop_op(p, KU_OP_clip_value, seed)
               : edit_number(p, KU_OP_step_scalars, offsetof(struct ku_attrs, clip), 0, seed);
}
/* Gradients are multiplied by the report's 1 / N twice. */
static int divided_twice(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, KU_OP_clip_value, seed);
    if (at == UINT32_MAX)
        return 0;
    insert(p, at, p->instr[at]);
    return 1;
}
/* A part adds its squares to the norm in the place of another, or a second time. */
static int norm_of_other(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, KU_OP_sumsq, seed);
    if (at != UINT32_MAX)
        return edit_attr(p, at, offsetof(struct ku_attrs, index), 1) != 0;
    for (at = 0; at < p->n_instrs; at++)
        for (uint32_t n = 0; p->instr[at].kind == KU_START && n < p->instr[at].n_parts; n++) {
            struct ku_operand *o = &p->operand[p->instr[at].operand + p->instr[at].n_in + n];
            if (o->stats_word) {
                o->stats_word++;
                return 1;
            }
        }
    return 0;
}
static int scalars_twice(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, KU_OP_step_scalars, seed);
    insert(p, at, p->instr[at]);
    return 1;
}
static int wrong_stream(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, KU_OP_dropout, seed);
    if (at == UINT32_MAX)
        return 0;
    p->instr[at].stream++;
    return 1;
}
/* Rounding takes the stream of another parameter. */
static int wrong_rounding(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, KU_OP_stochastic_round, seed);
    if (at == UINT32_MAX)
        return 0;
    p->instr[at].stream += draw(seed, 2) ? 1 : UINT32_MAX;
    return 1;
}
static int wrong_input(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, -1, seed);
    const struct ku_instr *i = at == UINT32_MAX ? NULL : &p->instr[at];
    if (i == NULL || i->n_in == 0 || i->op == KU_OP_widen) /* its second operand is not read */
        return 0;
    struct ku_operand *o = &p->operand[i->operand + draw(seed, i->n_in)];
    ku_id other = twin(p, o->buffer, seed);
    if (other == 0)
        return 0;
    snprintf(last_edit(), EDIT_BYTES, "instruction %u %s: b%u %s -> b%u %s", at,
             ku_ops[p->instr[at].op].name, o->buffer, p->name_of[p->buffer[o->buffer].name], other,
             p->name_of[p->buffer[other].name]);
    o->buffer = other;
    return 1;
}
static int is_read(const struct ku_program *p, uint32_t at, ku_id b)
{
    for (at++; at < p->n_instrs; at++)
        for (uint32_t k = 0;
             p->instr[at].kind != KU_WAIT && k < p->instr[at].n_in + p->instr[at].n_parts; k++)
            if (p->operand[p->instr[at].operand + k].buffer == b)
                return 1;
    return 0;
}
static int wrong_output(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, -1, seed);
    if (at == UINT32_MAX)
        return 0;
    const struct ku_instr *i = &p->instr[at];
    struct ku_operand *o = &p->operand[i->operand + i->n_in + draw(seed, i->n_out)];
    if (!is_read(p, at, o->buffer) && i->phase != KU_PH_O)
        return 0; /* harmless: a result that is not read, as after recomputation */
    ku_id other = twin(p, o->buffer, seed);
    if (other == 0)
        return 0;
    snprintf(last_edit(), EDIT_BYTES, "instruction %u %s: b%u %s -> b%u %s", at,
             ku_ops[p->instr[at].op].name, o->buffer, p->name_of[p->buffer[o->buffer].name], other,
             p->name_of[p->buffer[other].name]);
    o->buffer = other;
    return 1;
}
static int wrong_part(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any_collective(p, seed);
    if (at == UINT32_MAX)
        return 0;
    struct ku_operand *o =
        &p->operand[p->instr[at].operand + p->instr[at].n_in + draw(seed, p->instr[at].n_parts)];
    ku_id other = twin(p, o->buffer, seed);
    if (other == 0)
        return 0;
    snprintf(last_edit(), EDIT_BYTES, "instruction %u %s: b%u %s -> b%u %s", at,
             ku_ops[p->instr[at].op].name, o->buffer, p->name_of[p->buffer[o->buffer].name], other,
             p->name_of[p->buffer[other].name]);
    o->buffer = other;
    return 1;
}
/* A buffer whose bytes a later result takes is alive for less time than it says. */
static int is_home(const struct ku_program *p, const struct ku_buffer *x)
{
    for (ku_id b = 1; b < p->n_buffers; b++)
        if (p->buffer[b].home && &p->buffer[p->buffer[b].home] == x)
            return 1;
    return 0;
}
/* A buffer moves into the bytes of another that is live at the same time. */
static int overlap(struct ku_program *p, uint64_t *seed)
{
    for (int k = 0; k < 200; k++) {
        struct ku_buffer *x = &p->buffer[1 + draw(seed, p->n_buffers - 1)],
                         *y = &p->buffer[1 + draw(seed, p->n_buffers - 1)];
        if (x == y || x->arena != y->arena || x->first == UINT32_MAX || y->first == UINT32_MAX ||
            x->home || y->home || is_home(p, x) || is_home(p, y) || x->first >= y->last ||
            y->first >= x->last || x->bytes == 0 || y->bytes == 0 ||
            ku_arena_is_offload(x->arena) || x->offset == y->offset)
            continue;
        x->offset = y->offset;
        return 1;
    }
    return 0;
}
static int beyond(struct ku_program *p, uint64_t *seed)
{
    ku_id b = 1 + draw(seed, p->n_buffers - 1);
    if (p->buffer[b].first == UINT32_MAX || p->buffer[b].bytes == 0)
        return 0;
    p->buffer[b].offset = p->arena_bytes[p->buffer[b].arena];
    return 1;
}
/* A workspace is a buffer that is read later, or an operand. */
static int wrong_workspace(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, -1, seed);
    ku_id b = 1 + draw(seed, p->n_buffers - 1);
    if (at == UINT32_MAX || p->buffer[b].first >= at || p->buffer[b].last < at ||
        !is_read(p, at - 1, b))
        return 0;
    p->instr[at].workspace = b;
    return 1;
}
/* A buffer is a vector too short for its value. */
static int too_short(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, -1, seed);
    if (at == UINT32_MAX)
        return 0;
    const struct ku_operand *o =
        &p->operand[p->instr[at].operand + draw(seed, p->instr[at].n_in + p->instr[at].n_out)];
    struct ku_buffer *b = &p->buffer[o->buffer];
    if (o->buffer <= p->n_states || b->arena == KU_AR_INPUT || b->cls == KU_CL_STAGING)
        return 0;
    b->bytes -= kumi_dtype_bytes((enum kumi_dtype)b->dtype);
    return 1;
}
static int wrong_micro(struct ku_program *p, uint64_t *seed)
{
    static const int op[] = {KU_OP_softmax_xent, KU_OP_count_valid, KU_OP_dropout};
    uint32_t at = any(p, KU_COMPUTE, op[draw(seed, 3)], seed);
    int n = ku_mesh_n_micro(&p->mesh);
    if (at == UINT32_MAX || n < 2)
        return 0;
    p->instr[at].micro = (p->instr[at].micro + 1) % n;
    return 1;
}
static int no_accumulate(struct ku_program *p, uint64_t *seed)
{
    uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t k = 0; k < p->n_instrs; k++) {
        struct ku_instr *i = &p->instr[(from + k) % p->n_instrs];
        if (i->kind == KU_COMPUTE && i->accumulate) {
            i->accumulate = 0;
            return 1;
        }
    }
    return drop_op(p, KU_OP_accumulate, seed);
}
static int tied_missing(struct ku_program *p, uint64_t *seed)
{
    for (uint32_t at = 0; at < p->n_instrs; at++)
        for (uint32_t k = 0; p->instr[at].kind == KU_START && k < p->instr[at].n_parts; k++) {
            struct ku_operand *o = &p->operand[p->instr[at].operand + p->instr[at].n_in + k];
            if (o->addend) {
                o->addend = 0;
                return 1;
            }
        }
    uint32_t at = any(p, KU_COMPUTE, KU_OP_add, seed);
    return at != UINT32_MAX && p->instr[at].phase == KU_PH_O ? (erase(p, at), 1) : 0;
}
/* An update moves in front of the collective that completes its gradient or the report. */
static int early_update(struct ku_program *p, uint64_t *seed)
{
    uint32_t scalars = any(p, KU_COMPUTE, KU_OP_step_scalars, seed);
    uint32_t from = scalars + draw(seed, p->n_instrs - scalars);
    for (uint32_t at = from; at < p->n_instrs; at++)
        if (p->instr[at].kind == KU_COMPUTE && ku_ops[p->instr[at].op].state[0]) {
            move(p, at, scalars);
            return 1;
        }
    return 0;
}
static int update_twice(struct ku_program *p, uint64_t *seed)
{
    uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t at = from; at < p->n_instrs; at++)
        if (p->instr[at].kind == KU_COMPUTE && ku_ops[p->instr[at].op].state[0]) {
            insert(p, at, p->instr[at]);
            return 1;
        }
    return 0;
}
static int wrong_partition(struct ku_program *p, uint64_t *seed)
{
    uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t k = 0; k < p->n_instrs; k++) {
        const struct ku_instr *i = &p->instr[(from + k) % p->n_instrs];
        if (i->kind == KU_WAIT || i->n_in + i->n_parts == 0)
            continue;
        struct ku_operand *o =
            &p->operand[i->operand + (i->kind == KU_START ? i->n_in : draw(seed, i->n_in))];
        if (i->op != KU_OP_widen &&
            ku_layout_axes(&p->layout[o->layout], KU_Z) & ku_mesh_wide(&p->mesh, KU_DP_AXES)) {
            snprintf(last_edit(), EDIT_BYTES, "operand %d of %s %s", (int)(o - p->operand),
                     i->kind == KU_START ? ku_exchange_name(i->op) : ku_ops[i->op].name,
                     p->name_of[p->buffer[o->buffer].name]);
            o->first_block++;
            return 1;
        }
    }
    return 0;
}
/* Initial values: another initializer, the stream of another tensor, a tensor twice, and a derived
 * tensor before its parameter. */
static int wrong_initializer(struct ku_program *p, uint64_t *seed)
{
    static const int op[] = {KU_OP_fill, KU_OP_random_normal, KU_OP_random_uniform};
    uint32_t at = any(p, KU_COMPUTE, op[draw(seed, 3)], seed);
    if (at == UINT32_MAX)
        return 0;
    struct ku_attrs a = p->attr[p->instr[at].attr];
    if (p->instr[at].op == KU_OP_fill || draw(seed, 2))
        a.value += 1;
    else
        a.std *= 2;
    p->instr[at].attr = ku_program_attr(p, &a);
    return 1;
}
static int same_stream(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, KU_OP_random_normal, seed),
             other = any(p, KU_COMPUTE, KU_OP_random_normal, seed);
    if (at == UINT32_MAX || at == other)
        return 0;
    p->instr[at].stream = p->instr[other].stream;
    return 1;
}
static int written_twice(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, -1, seed);
    if (at == UINT32_MAX)
        return 0;
    insert(p, at, p->instr[at]);
    return 1;
}
static int early_derive(struct ku_program *p, uint64_t *seed)
{
    uint32_t at = any(p, KU_COMPUTE, KU_OP_derive, seed);
    if (at == UINT32_MAX)
        return 0;
    ku_id from = p->operand[p->instr[at].operand].buffer;
    for (uint32_t to = 0; to < at; to++)
        for (int n = 0; p->instr[to].kind == KU_COMPUTE && n < p->instr[to].n_out; n++)
            if (p->operand[p->instr[to].operand + p->instr[to].n_in + (uint32_t)n].buffer == from) {
                move(p, at, to);
                return 1;
            }
    return 0;
}
static int missing_edge(struct ku_program *p, uint64_t *seed)
{
    /* the norm's collective is what keeps updates behind the last reader of shared state */
    for (uint32_t at = 0; at < p->n_instrs; at++)
        if (p->instr[at].kind == KU_START && p->instr[at].op == KU_X_ALL_REDUCE &&
            p->operand[p->instr[at].operand].dtype == KUMI_I64) {
            erase(p, wait_of(p, at));
            erase(p, at--);
            (void)seed;
            return 1;
        }
    return 0;
}

/* A gradient of which each tensor-parallel rank has a part is not added up: that of a norm's gain
 * (parallel.sp), or of keys and values that the ranks of axis tpi share. */
static int missing_sum(struct ku_program *p, uint64_t *seed)
{
    uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t k = 0; k < p->n_instrs; k++) {
        const uint32_t at = (from + k) % p->n_instrs;
        const struct ku_instr *i = &p->instr[at];
        if (i->kind == KU_START && i->op == KU_X_ALL_REDUCE && (i->axes & ~KU_TP_AXES) == 0 &&
            i->micro < 0 && p->operand[i->operand].dtype != KUMI_I64) {
            erase(p, wait_of(p, at));
            erase(p, at);
            return 1;
        }
    }
    return 0;
}
/* A collective of the axes tp and tpi joins the ranks of one of them. */
static int half_axes(struct ku_program *p, uint64_t *seed)
{
    const uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t k = 0; k < p->n_instrs; k++) {
        struct ku_instr *i = &p->instr[(from + k) % p->n_instrs];
        if (i->kind == KU_START && i->axes == KU_TP_AXES) {
            i->axes = (uint8_t)(1 << (draw(seed, 2) ? KU_AX_TP : KU_AX_TPI));
            return 1;
        }
    }
    return 0;
}
/* A computation reads a gathered sequence in place of the rank's part of it. */
static int read_gathered(struct ku_program *p, uint32_t at)
{
    const struct ku_operand gathered = p->operand[p->instr[at].operand];
    for (uint32_t to = at + 1; to < p->n_instrs; to++)
        for (int n = 0; p->instr[to].kind == KU_COMPUTE && n < p->instr[to].n_in; n++) {
            struct ku_operand *o = &p->operand[p->instr[to].operand + (uint32_t)n];
            if (o->buffer != gathered.buffer || o->layout != gathered.layout)
                continue;
            struct ku_layout l = p->layout[o->layout];
            l.at[KU_AX_TP] = (struct ku_place){.kind = KU_R};
            if (l.at[KU_AX_TPI].kind == KU_S)
                l.at[KU_AX_TPI] = l.at[KU_AX_TP];
            for (ku_id k = 0; k < p->n_layouts; k++)
                if (ku_layout_is_equal(&p->layout[k], &l)) {
                    o->buffer = gathered.out;
                    o->layout = k;
                    move(p, wait_of(p, at), at + 1);
                    return 1;
                }
        }
    return 0;
}
static int whole_for_part(struct ku_program *p, uint64_t *seed)
{
    const uint32_t from = draw(seed, p->n_instrs);
    for (uint32_t k = 0; k < p->n_instrs; k++) {
        const uint32_t at = (from + k) % p->n_instrs;
        if (p->instr[at].kind == KU_START && p->instr[at].op == KU_X_ALL_GATHER &&
            (p->instr[at].axes & ~KU_TP_AXES) == 0 && read_gathered(p, at))
            return 1;
    }
    return 0;
}

/* Programs to which a class applies; INIT: of initial values and of derived tensors. */
enum { TRAIN = 1, EVAL = 2, INIT = 4 };
static const struct {
    const char *name;
    mutation *run;
    int programs;
    mutation_of_job *run_all; /* in the place of `run` */
} classes[] = {
    {.name = "collective dropped", .run = drop_collective, .programs = TRAIN | EVAL | INIT},
    {.name = "collective duplicated", .run = duplicate_collective, .programs = TRAIN | EVAL | INIT},
    {.name = "collective before its operand is complete",
     .run = early_collective,
     .programs = TRAIN | EVAL | INIT},
    {.name = "wait dropped", .run = drop_wait, .programs = TRAIN | EVAL | INIT},
    {.name = "wait too late", .run = late_wait, .programs = TRAIN | EVAL},
    {.name = "wrong mesh axes", .run = wrong_axes, .programs = TRAIN | EVAL | INIT},
    {.name = "wrong group", .run = wrong_group, .programs = TRAIN | EVAL | INIT},
    {.name = "wrong wire dtype", .run = wrong_wire, .programs = TRAIN | EVAL | INIT},
    {.name = "wrong kind of collective", .run = wrong_kind, .programs = TRAIN | EVAL | INIT},
    {.name = "wrong reduction", .run = wrong_reduction, .programs = TRAIN | EVAL | INIT},
    {.name = "wrong count", .run = wrong_count, .programs = TRAIN | EVAL | INIT},
    {.name = "part missing in a collective", .run = missing_part, .programs = TRAIN | EVAL | INIT},
    {.name = "wrong owner of chunks", .run = wrong_partition, .programs = TRAIN | EVAL | INIT},
    {.name = "part of a gradient not added over tp", .run = missing_sum, .programs = TRAIN},
    {.name = "one of the axes tp and tpi left out", .run = half_axes, .programs = TRAIN | EVAL},
    {.name = "whole sequence read for a part of it",
     .run = whole_for_part,
     .programs = TRAIN | EVAL},
    {.name = "value read along another dim", .run = read_along_other, .programs = TRAIN | EVAL},
    {.name = "value divided along another dim", .run = all_along_other, .programs = TRAIN | EVAL},
    {.name = "value divided over fewer axes", .run = over_fewer_axes, .programs = TRAIN | EVAL},
    {.name = "part of a value that ranks have whole",
     .run = part_of_whole,
     .programs = TRAIN | EVAL},
    {.name = "barrier dropped", .run = drop_barrier, .programs = TRAIN | EVAL | INIT},
    {.name = "ordering edge missing", .run = missing_edge, .programs = TRAIN},
    {.name = "computation dropped", .run = drop_compute, .programs = TRAIN | EVAL | INIT},
    {.name = "gradient missing in the norm", .run = norm_missing, .programs = TRAIN},
    {.name = "gradient twice in the norm", .run = norm_twice, .programs = TRAIN},
    {.name = "loss divided by another power of two", .run = wrong_shift, .programs = TRAIN},
    {.name = "loss divided twice", .run = divided_twice, .programs = TRAIN},
    {.name = "norm counted for another tensor", .run = norm_of_other, .programs = TRAIN},
    {.name = "wrong weight decay", .run = wrong_decay, .programs = TRAIN},
    {.name = "wrong beta, momentum or epsilon", .run = wrong_beta, .programs = TRAIN},
    {.name = "wrong learning rate", .run = wrong_rate, .programs = TRAIN},
    {.name = "clipping dropped", .run = no_clipping, .programs = TRAIN},
    {.name = "report made twice", .run = scalars_twice, .programs = TRAIN},
    {.name = "wrong attribute", .run = wrong_attr, .programs = TRAIN | EVAL},
    {.name = "wrong random stream", .run = wrong_stream, .programs = TRAIN},
    {.name = "rounding with another stream", .run = wrong_rounding, .programs = TRAIN},
    {.name = "wrong operand of the same size", .run = wrong_input, .programs = TRAIN | EVAL | INIT},
    {.name = "wrong result buffer of the same size",
     .run = wrong_output,
     .programs = TRAIN | EVAL | INIT},
    {.name = "wrong part of the same size", .run = wrong_part, .programs = TRAIN | EVAL | INIT},
    {.name = "live buffers overlap", .run = overlap, .programs = TRAIN | EVAL | INIT},
    {.name = "buffer beyond its arena", .run = beyond, .programs = TRAIN | EVAL | INIT},
    {.name = "buffer too short", .run = too_short, .programs = TRAIN | EVAL | INIT},
    {.name = "owned chunks for the whole, or the reverse", .run = toggle_kept, .programs = TRAIN},
    {.name = "copy in the place of a gather", .run = copy_for_gather, .programs = TRAIN | EVAL},
    {.name = "wait of a transfer too late", .run = late_transfer, .programs = TRAIN},
    {.name = "read before the write has ended", .run = early_read, .programs = TRAIN},
    {.name = "workspace in use", .run = wrong_workspace, .programs = TRAIN | EVAL},
    {.name = "wrong micro-batch", .run = wrong_micro, .programs = TRAIN | EVAL},
    {.name = "micro-batch not accumulated", .run = no_accumulate, .programs = TRAIN | EVAL},
    {.name = "use of tied weights not added", .run = tied_missing, .programs = TRAIN},
    {.name = "update before the report", .run = early_update, .programs = TRAIN},
    {.name = "update twice", .run = update_twice, .programs = TRAIN},
    {.name = "wrong initializer", .run = wrong_initializer, .programs = INIT},
    {.name = "random stream of another tensor", .run = same_stream, .programs = INIT},
    {.name = "initial value written twice", .run = written_twice, .programs = INIT},
    {.name = "derived before its parameter", .run = early_derive, .programs = INIT},
    {.name = "scale of a random op", .run = wrong_scale, .programs = TRAIN | EVAL},
    {.name = "random stream of another layer", .run = other_stream, .programs = TRAIN},
    {.name = "W before I", .run = early_w, .programs = TRAIN},
    {.name = "micro-batches added in another order", .run = other_order, .programs = TRAIN},
    {.name = "buffer of another micro-batch read", .run = stale_read, .programs = TRAIN | EVAL},
    {.name = "update before the reduction", .run = early_reduction, .programs = TRAIN},
    {.name = "row-parallel bias before the sum", .run = early_bias, .programs = TRAIN | EVAL},
    {.name = "row-parallel bias on every rank", .run = bias_everywhere, .programs = TRAIN | EVAL},
    {.name = "block dropped", .run = drop_block, .programs = TRAIN | EVAL},
    {.name = "micro-batch repeated", .run = repeat_micro, .programs = TRAIN | EVAL},
    {.name = "micro-batch dropped everywhere", .run_all = drop_micro, .programs = TRAIN | EVAL},
    {.name = "send dropped", .run = drop_send, .programs = TRAIN | EVAL},
    {.name = "receive dropped", .run = drop_receive, .programs = TRAIN | EVAL},
    {.name = "message dropped on both sides", .run_all = drop_message, .programs = TRAIN | EVAL},
    {.name = "message of parameters or sums dropped",
     .run_all = drop_once,
     .programs = TRAIN | EVAL},
    {.name = "message duplicated on one side", .run = duplicate_message, .programs = TRAIN | EVAL},
    {.name = "message duplicated on both sides", .run_all = duplicate_both, .programs = TRAIN},
    {.name = "sends reordered", .run = reorder_sends, .programs = TRAIN | EVAL},
    {.name = "receives reordered", .run = reorder_receives, .programs = TRAIN | EVAL},
    {.name = "send and receive swapped on one side", .run = swap_side, .programs = TRAIN | EVAL},
    {.name = "send and receive swapped", .run_all = swap_sides, .programs = TRAIN | EVAL},
    {.name = "wrong peer", .run = wrong_peer, .programs = TRAIN | EVAL},
    {.name = "message of another coordinate", .run_all = other_root, .programs = TRAIN},
    {.name = "wrong channel", .run = wrong_channel, .programs = TRAIN | EVAL},
    {.name = "another micro-batch sent", .run = stale_send, .programs = TRAIN | EVAL},
    {.name = "message of another shape", .run_all = message_shape, .programs = TRAIN | EVAL},
    {.name = "message of another dtype", .run_all = message_dtype, .programs = TRAIN | EVAL},
    {.name = "message of another placement", .run = message_placement, .programs = TRAIN | EVAL},
    {.name = "send before its value", .run = early_send, .programs = TRAIN | EVAL},
    {.name = "wait of a receive too late", .run = late_receive, .programs = TRAIN | EVAL},
    {.name = "wait of a send at once", .run = send_at_once, .programs = TRAIN},
    {.name = "wait of a send too late", .run = late_send, .programs = TRAIN},
    {.name = "tensor stored at another coordinate", .run_all = wrong_home, .programs = TRAIN},
};
enum { N_CLASSES = sizeof classes / sizeof classes[0] };

struct count {
    int applied, refused, harmless;
};

static int edit(struct job *j, int k, uint64_t *seed)
{
    j->p = j->all[draw(seed, (uint32_t)j->n)];
    return classes[k].run ? classes[k].run(j->p, seed) : classes[k].run_all(j, seed);
}

/* Checks one edit; 0: it is accepted and not harmless. */
static int mutate(const struct layout *l, enum ku_check_kind kind, struct job *j, int k,
                  uint64_t seed, struct count *n)
{
    int is_right = 1;
    last_edit()[0] = 0;
    if (edit(j, k, &seed)) {
        int status = check(j);
        const int which = kind == KU_CHECK_TRAIN ? KU_PROG_TRAIN : KU_PROG_INIT;
        n->applied++;
        n->refused += status == KUMI_EPLAN;
        is_right = status == KUMI_EPLAN;
        if (status == KUMI_OK && (kind == KU_CHECK_TRAIN || kind == KU_CHECK_INIT))
            n->harmless += is_right = is_harmless(l, which, j->all);
        if (!is_right) {
            fprintf(stderr, "accepted: program %s, pp %d: %s (%s)\n", j->p->name, j->p->pp,
                    classes[k].name, last_edit());
            show(l);
        }
    }
    return is_right;
}

/* Mutates the programs of one kind by every class; returns the number of wrong verdicts. */
static int mutate_all(const struct layout *l, enum ku_check_kind kind, uint64_t seed,
                      struct count n[N_CLASSES])
{
    static const int mask[] = {TRAIN, EVAL, INIT, INIT};
    struct before before[MAX_PP] = {{0}};
    struct job j;
    int n_wrong = 0;
    must_make(l, kind, &j);
    if (j.p->n_instrs) {
        if (check(&j) < 0) {
            show(l);
            fail_msg("%s", ku_err_get()->text);
        }
        for (int c = 0; c < j.n; c++)
            before[c] = remember(j.all[c]);
        for (int k = 0; k < N_CLASSES; k++) {
            if (!(mask[kind] & classes[k].programs))
                continue;
            n_wrong += !mutate(l, kind, &j, k, seed + (uint64_t)(k + 100 * (int)kind), &n[k]);
            for (int c = 0; c < j.n; c++)
                restore(j.all[c], &before[c]);
        }
    }
    for (int c = 0; c < j.n; c++)
        forget(&before[c]);
    drop(&j);
    return n_wrong;
}

static void mutations(void **state)
{
    const char *given = getenv("KUMI_TEST_SEED"), *many = getenv("KUMI_TEST_ALL");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 7;
    int layouts = many ? 400 : sample_count(45, 18), n_wrong = 0;
    (void)state;
    struct count n[4][N_CLASSES] = {{{0}}};
    for (int i = 0; i < layouts; i++) {
        struct layout l = random_layout(&seed);
        if (i % 8 == 0)
            l = over_sequences(l, i % 16 ? 2 : 4);
        if (i % 8 == 4)
            l = over_heads(l, i / 8);
        for (int kind = 0; kind < 4; kind++)
            if (kind == 0 || i % 3 == kind - 1)
                n_wrong += mutate_all(&l, (enum ku_check_kind)kind, seed, n[kind]);
    }
    fprintf(stderr, "refused of edits, by program %16s %12s %12s %12s\n", "train", "eval", "init",
            "derive");
    int harmless = 0, applied = 0, n_idle = 0;
    for (int k = 0; k < N_CLASSES; k++) {
        const int before = applied;
        fprintf(stderr, "%-43s", classes[k].name);
        for (int kind = 0; kind < 4; kind++) {
            const struct count *x = &n[kind][k];
            harmless += x->harmless, applied += x->applied;
            fprintf(stderr, x->applied ? " %4d of %4d" : "            -", x->refused, x->applied);
        }
        fprintf(stderr, "\n");
        n_idle += applied == before;
    }
    fprintf(stderr,
            "%d edits in %d classes, each of the program of all ranks of a coordinate of axis pp; "
            "%d accepted, which leave equal digests\n",
            applied, (int)N_CLASSES, harmless);
    assert_true(applied >= 500);
    if (given == NULL && !sample_is_short()) /* these layouts have what each class edits */
        assert_int_equal(n_idle, 0);
    assert_int_equal(n_wrong, 0);
}

/* What decides about accepted edits: ReLU's gradient may read its result, another rate is seen. */
static void trials(void **state)
{
    const struct layout l = {
        .model = mlp, .ranks = 2, .replicate = 1, .mb = 1, .vs = 1, .optimizer = KU_OP_adamw};
    uint64_t seed = 3;
    struct job j;
    (void)state;
    assert_int_equal(make(&l, KU_CHECK_TRAIN, &j), 0);
    const struct ku_instr *relu = &j.p->instr[any(j.p, KU_COMPUTE, KU_OP_linear, &seed)];
    for (uint32_t at = 0; relu->n_out != 2; at++)
        relu = &j.p->instr[at];
    uint32_t at = any(j.p, KU_COMPUTE, KU_OP_act_dx, &seed);
    j.p->operand[j.p->instr[at].operand + 1].buffer =
        j.p->operand[relu->operand + relu->n_in].buffer;
    assert_int_equal(check(&j), 0);
    assert_true(is_harmless(&l, KU_PROG_TRAIN, j.all));
    assert_true(edit_number(j.p, KU_OP_step_scalars, offsetof(struct ku_attrs, lr), 2e-3, &seed));
    assert_int_equal(check(&j), KUMI_EPLAN);
    assert_false(is_harmless(&l, KU_PROG_TRAIN, j.all));
    drop(&j);
}

/* The programs of a job have one state plan. */
static void state_plans(void **state)
{
    const struct layout l = {
        .model = mlp, .ranks = 2, .replicate = 1, .mb = 1, .vs = 1, .optimizer = KU_OP_adamw};
    struct job train, init;
    (void)state;
    assert_int_equal(make(&l, KU_CHECK_TRAIN, &train), 0);
    assert_int_equal(make(&l, KU_CHECK_INIT, &init), 0);
    assert_int_equal(ku_check_same_state(train.p, init.p), 0);
    init.p->state[1].offset += 64;
    assert_int_equal(ku_check_same_state(train.p, init.p), KUMI_EPLAN);
    assert_non_null(strstr(ku_err_get()->text, init.p->name_of[init.p->state[1].name]));
    drop(&train);
    drop(&init);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(legal), cmocka_unit_test(trials),
                                       cmocka_unit_test(state_plans), cmocka_unit_test(mutations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
