/* SPDX-License-Identifier: Apache-2.0 */
/* Equal bits in every stage of ZeRO: digests with ==, ranks as threads and as processes. tsan */
#include <math.h>

#include "resume.h"
#include "plan/volume_table.h"

static struct dist_case base_case(const char *device, enum kumi_dtype compute)
{
    struct dist_case c = {.n = 1,
                          .v = 8,
                          .micro = 1,
                          .k = 2,
                          .steps = sample_count(3, 2),
                          .device = device,
                          .compute = compute,
                          .model = dist_model(),
                          .t = sample_count(7, 5)};
    c.model.n_embd = 48; /* tensors of several blocks, of one, and of less */
    c.model.vocab_size = 301;
    return c;
}

static void expect_equal(const struct dist_case *a, const struct dist_case *b)
{
    for (int s = 0; s < a->steps; s++)
        if (memcmp(&a->loss[s], &b->loss[s], 8) || memcmp(&a->norm[s], &b->norm[s], 8))
            fail_msg("n=%d zero=%d: step %d: loss %.17g %.17g norm %.17g %.17g", b->n, b->zero, s,
                     a->loss[s], b->loss[s], a->norm[s], b->norm[s]);
    if (strcmp(a->digest, b->digest) != 0)
        fail_msg("n=%d zero=%d replicate=%d sharing=%d: digests differ", b->n, b->zero,
                 b->replicate, !b->no_sharing);
    assert_memory_equal(&a->eval_loss, &b->eval_loss, 8);
}

static const struct layout {
    int n, zero, replicate, sharing, no_overlap, bucket_bytes, prefetch, keep_gathered,
        persist_below, group;
} layout[] = {
    {.n = 2, .zero = 1},
    {.n = 4, .zero = 1, .bucket_bytes = 3000},
    {.n = 8, .zero = 1},
    {.n = 4, .zero = 1, .no_overlap = 1},
    {.n = 4, .zero = 1, .replicate = 2, .bucket_bytes = 3000},
    {.n = 8, .zero = 1, .replicate = 4},
    {.n = 2, .zero = 2, .bucket_bytes = 3000},
    {.n = 4, .zero = 2},
    {.n = 8, .zero = 2, .bucket_bytes = 3000},
    {.n = 4, .zero = 2, .no_overlap = 1, .bucket_bytes = 3000},
    {.n = 8, .zero = 2, .replicate = 2, .bucket_bytes = 3000},
    {.n = 8, .zero = 2, .replicate = 4, .no_overlap = 1},
    {.n = 4, .zero = 2, .replicate = 4},
    {.n = 2, .zero = 3, .prefetch = 1},
    {.n = 4, .zero = 3, .bucket_bytes = 3000, .prefetch = 2},
    {.n = 8, .zero = 3, .persist_below = 1000},
    {.n = 4, .zero = 3, .no_overlap = 1, .prefetch = 1, .persist_below = 60},
    {.n = 4, .zero = 3, .keep_gathered = 1},
    {.n = 4, .zero = 3, .replicate = 2, .prefetch = 1},
    {.n = 4, .zero = 3, .prefetch = 1, .group = 2},
    {.n = 8, .zero = 3, .group = 4, .bucket_bytes = 3000, .persist_below = 60},
    {.n = 8, .zero = 3, .replicate = 2, .group = 2, .no_overlap = 1},
    {.n = 8, .zero = 3, .replicate = 2, .bucket_bytes = 3000, .prefetch = 5},
    {.n = 2},
    {.n = 4, .bucket_bytes = 3000},
    {.n = 8, .no_overlap = 1},
    {.n = 4, .sharing = 1, .bucket_bytes = 3000},
    {.n = 4, .sharing = 1, .no_overlap = 1},
    {.n = 1},
    {.n = 2, .zero = 1, .sharing = 1},
    {.n = 4, .zero = 2, .sharing = 1},
    {.n = 8, .zero = 3, .sharing = 1},
};
enum { N_LAYOUTS = sizeof layout / sizeof layout[0] };

static struct dist_case laid_out(const struct dist_case *one, const struct layout *l)
{
    struct dist_case c = *one;
    c.n = l->n, c.zero = l->zero, c.replicate = l->replicate;
    c.no_sharing = !l->sharing, c.no_overlap = l->no_overlap, c.bucket_bytes = l->bucket_bytes;
    c.prefetch = l->prefetch, c.keep_gathered = l->keep_gathered;
    c.persist_below = l->persist_below, c.group = l->group;
    c.threads = l->n == 2 && strcmp(c.device, "cpu") == 0 ? 2 : 1;
    return c;
}

enum { N_CLASSES = 16 };
static int class_of(const struct layout *l)
{
    return l->zero * 4 + (l->replicate > 1) * 2 + l->sharing;
}

/* One layout in 3 * plain, of each class at least one; others at the next call. */
static void check_layouts(const struct dist_case *one, int plain)
{
    static struct sample s = {.address = 32, .thread = 32};
    static int n_calls;
    struct dist_case alone = *one;
    s.plain = 3 * plain;
    dist_run(&alone);
    for (int k = 0; k < N_LAYOUTS; k++) {
        const int i = (k + 5 * n_calls) % N_LAYOUTS;
        if (!sample_takes(&s, n_calls * N_LAYOUTS + i, class_of(&layout[i]), N_CLASSES + n_calls))
            continue;
        struct dist_case c = laid_out(one, &layout[i]);
        dist_run(&c);
        expect_equal(&alone, &c);
    }
    n_calls++;
    sample_end(&s, "layouts");
}

static void cpu_f32(void **state)
{
    (void)state;
    struct dist_case c = base_case("cpu", KUMI_F32);
    check_layouts(&c, 1);
}
/* Ranks reduce each micro-batch: other bits, and the same under every layout. */
static void by_micro(void **state)
{
    (void)state;
    struct dist_case c = base_case("cpu", KUMI_F32), step = c;
    c.by_micro = 1;
    c.k = step.k = 3;
    check_layouts(&c, 1);
    c.compute = KUMI_BF16;
    c.recompute = KU_RECOMPUTE_FULL;
    check_layouts(&c, 2);
    c = base_case("cpu", KUMI_F32);
    c.by_micro = 1;
    c.k = 3;
    dist_run(&c);
    dist_run(&step);
    assert_string_not_equal(c.digest, step.digest);
}
static void by_micro_lamb(void **state)
{
    (void)state;
    if (sample_races_only())
        skip();
    struct dist_case c = base_case("cpu", KUMI_BF16);
    c.by_micro = 1;
    c.optimizer = KU_OP_lamb;
    check_layouts(&c, 3);
    c.optimizer = KU_OP_adafactor;
    check_layouts(&c, 4);
}
static void cpu_bf16(void **state)
{
    (void)state;
    struct dist_case c = base_case("cpu", KUMI_BF16);
    check_layouts(&c, 1);
}
static void ref_f64(void **state)
{
    (void)state;
    if (sample_races_only())
        skip();
    struct dist_case c = base_case("ref", KUMI_F64);
    c.steps = 2;
    check_layouts(&c, 2);
}
/* Ratios of norms over blocks that ranks keep. */
static void lamb(void **state)
{
    (void)state;
    if (sample_races_only())
        skip();
    struct dist_case c = base_case("cpu", KUMI_BF16);
    c.optimizer = KU_OP_lamb;
    check_layouts(&c, 3);
    c.optimizer = KU_OP_lars;
    check_layouts(&c, 3);
}
/* Factors that the update reads whole stay whole on every rank. */
static void adafactor(void **state)
{
    (void)state;
    if (sample_races_only())
        skip();
    struct dist_case c = base_case("cpu", KUMI_F32);
    c.optimizer = KU_OP_adafactor;
    check_layouts(&c, 2);
    c.clip = 0x1p-20; /* of norms a million times as large */
    check_layouts(&c, 2);
    c.clip = 0;
    c.compute = KUMI_BF16;
    check_layouts(&c, 3);
}

/* What the ranks together store for collectives, as the plan says and as it was counted. */
struct exchanged {
    struct dist_case c;
    double planned_bytes;
    int64_t moved_bytes[8];
};
static int exchanged_rank(struct ku_job *job, void *arg)
{
    struct exchanged *x = arg;
    struct ku_volume row[KU_MAX_VOLUMES];
    struct ku_trainer *t = NULL;
    const double *report;
    KU_TRY(dist_trainer(job, &x->c, &t));
    KU_TRY(ku_trainer_init_state(t));
    for (int step = 0; step < x->c.steps; step++) {
        dist_fill(&x->c, t, KU_PROG_TRAIN, step % 2);
        KU_TRY(ku_trainer_step(t, step, &report));
    }
    x->moved_bytes[job->rank] = t->step_bytes;
    for (int n = ku_plan_volumes(t->program[KU_PROG_TRAIN], row); n-- > 0 && job->rank == 0;)
        x->planned_bytes += row[n].stored_bytes * job->n * x->c.steps;
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static void moves_what_is_planned(void **state)
{
    (void)state;
    if (sample_races_only())
        skip();
    struct dist_case one = base_case("cpu", KUMI_BF16);
    one.steps = 2;
    struct sample s = {.plain = 3, .address = 24, .thread = 32};
    for (int i = 0; i < 2 * N_LAYOUTS; i++) {
        if (!sample_takes(&s, i, class_of(&layout[i / 2]), -1))
            continue;
        struct exchanged x = {.c = laid_out(&one, &layout[i / 2])};
        double moved = 0;
        x.c.by_micro = i % 2;
        if (x.c.n == 1)
            continue;
        if (ku_comm_threads(x.c.n, NULL, exchanged_rank, &x) < 0)
            fail_msg("layout %d: %s", i / 2, ku_err_get()->text);
        for (int r = 0; r < x.c.n; r++)
            moved += (double)x.moved_bytes[r];
        if (moved == 0 || fabs(moved - x.planned_bytes) > 1e-9 * moved)
            fail_msg("layout %d, n=%d zero=%d, by_micro=%d: %.1f bytes moved, %.1f planned", i / 2,
                     x.c.n, x.c.zero, x.c.by_micro, moved, x.planned_bytes);
    }
    sample_end(&s, "layouts");
}

static void resume_elsewhere(void **state)
{
    (void)state;
    struct dist_case one = base_case("cpu", KUMI_BF16);
    dist_run(&one);
    const struct layout alone = {.n = 1, .sharing = 1};
    struct sample s = {.address = 32, .thread = 32};
    for (int i = 0; i <= N_LAYOUTS; i++) {
        if (!sample_takes(&s, i, i < N_LAYOUTS ? layout[i].zero : 0, -1))
            continue;
        struct dist_case first = laid_out(&one, i ? &layout[i - 1] : &alone);
        struct dist_case then = laid_out(&one, i < N_LAYOUTS ? &layout[i] : &alone);
        dist_resume(&one, &first, &then, one.steps / 2, i);
    }
    sample_end(&s, "pairs of layouts");
}

static void processes(void **state)
{
    (void)state;
    if (sample_races_only())
        skip();
    struct dist_case one = base_case("cpu", KUMI_BF16);
    dist_run(&one);
    struct sample s = {.plain = 6, .address = 32, .thread = 32};
    for (int i = 0; i < N_LAYOUTS; i++)
        if (sample_takes(&s, i, layout[i].zero, -1))
            dist_processes(&one, laid_out(&one, &layout[i]), i);
    sample_end(&s, "layouts");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cpu_f32),
                                       cmocka_unit_test(cpu_bf16),
                                       cmocka_unit_test(lamb),
                                       cmocka_unit_test(by_micro),
                                       cmocka_unit_test(by_micro_lamb),
                                       cmocka_unit_test(moves_what_is_planned),
                                       cmocka_unit_test(adafactor),
                                       cmocka_unit_test(ref_f64),
                                       cmocka_unit_test(resume_elsewhere),
                                       cmocka_unit_test(processes)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
