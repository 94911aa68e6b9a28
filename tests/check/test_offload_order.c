/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of reads and writes of offload targets: a step whose masters, optimizer state and
 * averages are in a file. First every staging buffer gets bytes of its own, so that the order
 * alone, and not a live range, refuses an edit.
 */
#include "edits.h"

static const struct layout in_file = {.model = mlp,
                                      .ranks = 1,
                                      .replicate = 1,
                                      .mb = 1,
                                      .vs = 1,
                                      .is_private = 1,
                                      .compute = KUMI_BF16,
                                      .averages = 1,
                                      .offload = 1,
                                      .optimizer = KU_OP_adamw};

/* The first transfer of a kind from instruction `at` on; UINT32_MAX: none. */
static uint32_t next_transfer(const struct ku_program *p, uint32_t at, int op)
{
    while (at < p->n_instrs && !(p->instr[at].kind == KU_START && p->instr[at].op == op))
        at++;
    return at < p->n_instrs ? at : UINT32_MAX;
}

static void make_spread(struct job *j)
{
    assert_int_equal(make(&in_file, KU_CHECK_TRAIN, j), 0);
    for (ku_id b = 1; b < j->p->n_buffers; b++) {
        struct ku_buffer *x = &j->p->buffer[b];
        if (x->cls != KU_CL_STAGING)
            continue;
        const size_t align = KU_OFFLOAD_ALIGN_BYTES;
        x->offset = (j->p->arena_bytes[x->arena] + align - 1) / align * align;
        j->p->arena_bytes[x->arena] = x->offset + x->bytes;
    }
    if (check(j) < 0)
        fail_msg("%s", ku_err_get()->text);
}

static void must_refuse(const struct job *j, const char *rule)
{
    assert_int_equal(check(j), KUMI_EPLAN);
    if (strstr(ku_err_get()->text, rule) == NULL)
        fail_msg("wanted %s, got %s", rule, ku_err_get()->text);
}

static bool moves_same(const struct ku_program *p, uint32_t a, uint32_t b)
{
    for (uint32_t k = 0; k < p->instr[a].n_parts; k++)
        for (uint32_t n = 0; n < p->instr[b].n_parts; n++)
            if (operand(p, a, k)->buffer == operand(p, b, n)->buffer &&
                operand(p, a, k)->piece == operand(p, b, n)->piece)
                return true;
    return false;
}

/* The wait of a write moves to after the start of a read of the same bytes. */
static void read_in_flight(void **state)
{
    struct job j;
    bool found = false;
    (void)state;
    make_spread(&j);
    for (uint32_t w = next_transfer(j.p, 0, KU_X_WRITE); w != UINT32_MAX && !found;
         w = next_transfer(j.p, w + 1, KU_X_WRITE))
        for (uint32_t r = next_transfer(j.p, w + 1, KU_X_READ); r != UINT32_MAX && !found;
             r = next_transfer(j.p, r + 1, KU_X_READ))
            if (moves_same(j.p, w, r)) {
                found = true;
                move(j.p, wait_of(j.p, w), r);
            }
    assert_true(found);
    must_refuse(&j, "reads bytes that #");
    drop(&j);
}

/* The buffer of a write is written before its wait. */
static void write_in_flight(void **state)
{
    struct job j;
    (void)state;
    make_spread(&j);
    const uint32_t w = next_transfer(j.p, 0, KU_X_WRITE);
    assert_true(w != UINT32_MAX);
    struct ku_operand staging = *operand(j.p, w, 0);
    struct ku_attrs a = ku_attrs_default;
    a.dtype = staging.dtype;
    struct ku_instr copy = {.kind = KU_COMPUTE,
                            .phase = KU_PH_O,
                            .op = KU_OP_cast,
                            .n_in = 1,
                            .n_out = 1,
                            .micro = -1,
                            .operand = j.p->n_operands,
                            .attr = ku_program_attr(j.p, &a),
                            .path = j.p->instr[w].path};
    struct ku_operand *more = ku_realloc(j.p->operand, j.p->n_operands + 2, sizeof *more);
    assert_non_null(more);
    staging.buffer = staging.out;
    staging.out = 0;
    j.p->operand = more;
    j.p->operand[j.p->n_operands++] = staging;
    j.p->operand[j.p->n_operands++] = staging;
    insert(j.p, w + 1, copy);
    must_refuse(&j, "overwrites the operand of a collective in flight");
    drop(&j);
}

/* What a read fills is written back before the wait of the read. */
static void write_of_read(void **state)
{
    struct job j;
    (void)state;
    make_spread(&j);
    const uint32_t r = next_transfer(j.p, 0, KU_X_READ);
    assert_true(r != UINT32_MAX);
    struct ku_instr start = j.p->instr[r], end = j.p->instr[wait_of(j.p, r)];
    start.op = end.op = KU_X_WRITE;
    start.handle = end.handle = ++j.p->n_handles;
    insert(j.p, r + 1, start);
    insert(j.p, j.p->n_instrs, end);
    must_refuse(&j, "in flight still uses");
    drop(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(read_in_flight),
                                       cmocka_unit_test(write_in_flight),
                                       cmocka_unit_test(write_of_read)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
