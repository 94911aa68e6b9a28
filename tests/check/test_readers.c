/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Once a step is over, ranks read the state in the arenas of the other ranks of their host, for
 * digests and checkpoints. A gather that starts after the last write orders this, else a barrier at
 * the end.
 */
#include "edits.h"

static const char rule[] = "no collective orders the write before other ranks read it";

#define SHARDED .model = mlp, .mb = 1, .vs = 1, .overlap = 1, .optimizer = KU_OP_adamw
/* Programs whose last write starts after the last gather of all ranks, if any. */
static const struct {
    const char *name;
    struct layout l;
    enum ku_check_kind kind;
} late[] = {
    {"averages, stage 1",
     {SHARDED, .ranks = 2, .replicate = 1, .zero = 1, .averages = 1},
     KU_CHECK_TRAIN},
    {"averages, stage 2",
     {SHARDED, .ranks = 2, .replicate = 1, .zero = 2, .averages = 1, .compute = KUMI_BF16},
     KU_CHECK_TRAIN},
    {"offloaded", {SHARDED, .ranks = 2, .replicate = 1, .zero = 2, .offload = 1}, KU_CHECK_TRAIN},
    {"replicas", {SHARDED, .ranks = 4, .zero = 1, .replicate = 2}, KU_CHECK_TRAIN},
    {"initial values", {SHARDED, .ranks = 2, .replicate = 1, .zero = 1}, KU_CHECK_INIT},
};

static void must_make(const struct layout *l, enum ku_check_kind kind, struct job *j)
{
    assert_int_equal(make(l, kind, j), 0);
    if (check(j) < 0) {
        show(l);
        fail_msg("%s", ku_err_get()->text);
    }
}

static void must_refuse(const char *name, const struct job *j)
{
    if (check(j) != KUMI_EPLAN || strstr(ku_err_get()->text, rule) == NULL)
        fail_msg("%s: wanted %s, got %s", name, rule, ku_err_get()->text);
}

static uint32_t find_barrier(const struct ku_program *p)
{
    for (uint32_t at = 0; at < p->n_instrs; at++)
        if (p->instr[at].kind == KU_START && p->instr[at].op == KU_X_BARRIER)
            return at;
    return UINT32_MAX;
}

static void needs_a_barrier(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof late / sizeof late[0]; i++) {
        struct job j;
        must_make(&late[i].l, late[i].kind, &j);
        const uint32_t at = find_barrier(j.p);
        if (at == UINT32_MAX || wait_of(j.p, at) != j.p->n_instrs - 1)
            fail_msg("%s: no barrier ends the program", late[i].name);
        erase(j.p, wait_of(j.p, at));
        erase(j.p, at);
        must_refuse(late[i].name, &j);
        drop(&j);
    }
}

/* The gather after the updates is enough. */
static void needs_none(void **state)
{
    const struct layout l = {SHARDED, .ranks = 2, .replicate = 1, .zero = 2};
    struct job j;
    (void)state;
    must_make(&l, KU_CHECK_TRAIN, &j);
    assert_int_equal(find_barrier(j.p), UINT32_MAX);
    drop(&j);
}

/* The last write to the offload target ends after the barrier. */
static void written_back_late(void **state)
{
    const struct layout l = {SHARDED, .ranks = 2, .replicate = 1, .zero = 2, .offload = 1};
    struct job j;
    uint32_t last = UINT32_MAX;
    (void)state;
    must_make(&l, KU_CHECK_TRAIN, &j);
    for (uint32_t at = 0; at < j.p->n_instrs; at++)
        if (j.p->instr[at].kind == KU_START && j.p->instr[at].op == KU_X_WRITE)
            last = at;
    assert_true(last != UINT32_MAX && wait_of(j.p, last) < find_barrier(j.p));
    move(j.p, wait_of(j.p, last), j.p->n_instrs - 1);
    must_refuse("the last write", &j);
    drop(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(needs_a_barrier),
                                       cmocka_unit_test(needs_none),
                                       cmocka_unit_test(written_back_late)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
