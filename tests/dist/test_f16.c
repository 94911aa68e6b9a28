/* SPDX-License-Identifier: Apache-2.0 */
/*
 * f16 with a loss scaler: equal bits under every layout while gradients overflow, a skipped step is
 * no update, and the scale affects only the rounding of gradients. Ranks as threads. tsan
 */
#include "dist.h"

#include <math.h>

enum { STEPS = 10 };

/* From 2^19 two steps overflow, then growth, two more, .. */
static struct dist_case base_case(const char *device, int zero)
{
    return (struct dist_case){.n = 1,
                              .v = 8,
                              .micro = 1,
                              .k = 2,
                              .steps = STEPS,
                              .device = device,
                              .compute = KUMI_F16,
                              .model = dist_model(),
                              .t = 11,
                              .loss_scale = 0x1p19,
                              .window = 3,
                              .zero = zero,
                              .no_sharing = zero > 0};
}

static void expect_equal(const struct dist_case *a, const struct dist_case *b)
{
    for (int s = 0; s < a->steps; s++)
        if (memcmp(&a->loss[s], &b->loss[s], 8) || memcmp(&a->norm[s], &b->norm[s], 8) ||
            memcmp(&a->scale[s], &b->scale[s], 8))
            fail_msg("n=%d zero=%d: step %d: loss %.17g %.17g norm %.17g %.17g scale %g %g", b->n,
                     b->zero, s, a->loss[s], b->loss[s], a->norm[s], b->norm[s], a->scale[s],
                     b->scale[s]);
    assert_string_equal(a->digest, b->digest);
    assert_memory_equal(&a->eval_loss, &b->eval_loss, 8);
    assert_int_equal(a->update, b->update);
}

static int n_overflows(const struct dist_case *c)
{
    int n = 0;
    for (int s = 0; s < c->steps; s++)
        n += !isfinite(c->norm[s]);
    return n;
}

static void layouts(void **state)
{
    (void)state;
    struct dist_case one = base_case("cpu", 0);
    dist_run(&one);
    const int n_bad = n_overflows(&one);
    print_message("%d of %d steps overflow, the scale is %g at the end\n", n_bad, STEPS,
                  one.scale[STEPS - 1]);
    assert_true(n_bad > 2 && n_bad <= STEPS / 2);
    assert_int_equal(one.update, STEPS - n_bad);
    assert_true(one.loss[STEPS - 1] < one.loss[0]);
    for (int n = 2; n <= (sample_races_only() ? 2 : 8); n *= 2) {
        struct dist_case c = base_case("cpu", 0);
        c.n = n, c.threads = n == 2 ? 3 : 1;
        dist_run(&c);
        expect_equal(&one, &c);
    }
    struct sample s = {.address = 32};
    for (int zero = 0; zero <= 3; zero++)
        for (int n = 2; n <= 4 && !sample_races_only(); n *= 2) {
            if (!sample_takes(&s, zero * 8 + n, zero, 4 + n))
                continue;
            struct dist_case c = base_case("cpu", zero);
            c.n = n, c.no_sharing = 1, c.replicate = zero == 2 && n == 4 ? 2 : 0;
            c.prefetch = 1, c.recompute = n == 4 ? KU_RECOMPUTE_FULL : KU_RECOMPUTE_NONE;
            dist_run(&c);
            expect_equal(&one, &c);
        }
}

static void on_ref(void **state)
{
    (void)state;
    if (sample_races_only())
        skip();
    struct dist_case one = base_case("ref", 0), two;
    one.steps = sample_count(STEPS, 7); /* three overflow: two, growth, one */
    two = one;
    two.n = 2;
    dist_run(&one);
    dist_run(&two);
    expect_equal(&one, &two);
    assert_int_equal(one.update, one.steps - n_overflows(&one));
    assert_true(n_overflows(&one) > 2);
}

/* Steps that overflow leave parameters, optimizer and averages where they were. */
static void nothing_moves(void **state)
{
    (void)state;
    if (sample_races_only())
        skip();
    struct dist_case none = base_case("cpu", 0), two = none;
    none.steps = 0, two.steps = 2;
    none.ema = two.ema = 0.9;
    none.n = two.n = 2;
    dist_run(&none);
    dist_run(&two);
    assert_int_equal(n_overflows(&two), 2);
    assert_int_equal(two.update, 0);
    assert_string_equal(none.digest, two.digest);
}

/* In f32 a scale of a power of two is exact, there and back: no bit knows of it. Clipping by norm
 * and by value act on what the gradients are. */
static void no_trace_in_f32(void **state)
{
    static const struct {
        int scaler, optimizer, zero;
        double first, clip_value;
    } row[] = {{KU_LOSS_SCALE_STATIC, KU_OP_adamw, 0, 4096, 0},
               {KU_LOSS_SCALE_PYTORCH, KU_OP_adamw, 2, 256, 1e-3},
               {KU_LOSS_SCALE_DEEPSPEED, KU_OP_lamb, 0, 65536, 1e-3},
               {KU_LOSS_SCALE_DEEPSPEED, KU_OP_adafactor, 0, 65536, 2e-3},
               {KU_LOSS_SCALE_DEEPSPEED, KU_OP_adafactor, 3, 65536, 2e-3}};
    (void)state;
    if (sample_races_only())
        skip();
    struct dist_case plain = {0};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const int is_new =
            i == 0 || plain.optimizer != row[i].optimizer || plain.clip_value != row[i].clip_value;
        struct dist_case scaled = base_case("cpu", 0);
        scaled.compute = KUMI_F32;
        scaled.optimizer = row[i].optimizer, scaled.clip_value = row[i].clip_value;
        if (is_new) {
            plain = scaled;
            plain.loss_scale = 0;
            dist_run(&plain);
        }
        scaled.loss_scale = row[i].first, scaled.scaler = row[i].scaler, scaled.n = 2;
        scaled.zero = row[i].zero, scaled.no_sharing = row[i].zero > 0, scaled.prefetch = 1;
        dist_run(&scaled);
        for (int s = 0; s < STEPS; s++) {
            assert_memory_equal(&plain.loss[s], &scaled.loss[s], 8);
            assert_memory_equal(&plain.norm[s], &scaled.norm[s], 8);
        }
        assert_string_equal(plain.digest, scaled.digest);
        if (is_new && row[i].clip_value > 0) { /* it does clip */
            scaled.clip_value = 0;
            dist_run(&scaled);
            assert_string_not_equal(plain.digest, scaled.digest);
        }
    }
}

/* Behind an even number of overflows the data are the first step's again: norm and loss of the
 * first update are those of f32, to f16's rounding, whatever the scale has been. */
static void norm_is_unscaled(void **state)
{
    (void)state;
    if (sample_races_only())
        skip();
    struct dist_case wide = base_case("cpu", 0), half = wide;
    wide.compute = KUMI_F32, wide.loss_scale = 0, wide.steps = 1;
    wide.model.resid_pdrop = wide.model.embd_pdrop = wide.model.attn_pdrop = 0;
    half.model = wide.model;
    dist_run(&wide);
    dist_run(&half);
    int first = 0;
    while (first < STEPS && !isfinite(half.norm[first]))
        first++;
    assert_true(first >= 2 && first % 2 == 0 && first < STEPS);
    assert_true(fabs(half.norm[first] - wide.norm[0]) < 0x1p-7 * wide.norm[0]);
    assert_true(fabs(half.loss[first] - wide.loss[0]) < 0x1p-9 * wide.loss[0]);
}

/* Overflow by overflow down to the least scale, then the run is told to end. */
struct spent {
    struct dist_case c;
    int n_steps, status[4];
};
static int spend(struct ku_job *job, void *arg)
{
    struct spent *s = arg;
    struct ku_trainer *t;
    KU_TRY(dist_trainer(job, &s->c, &t));
    KU_TRY(ku_trainer_init_state(t));
    KU_TRY(ku_coll_run(job->world, &(struct ku_coll){.kind = KU_COLL_BARRIER, .name = "state"}));
    for (int i = 0; i < t->n_tensors && job->rank == 0; i++) /* shared state; infinite in f16 */
        if (strstr(t->tensor[i].name, "wpe.weight") && t->tensor[i].group == KU_CKPT_MODEL)
            KU_TRY(ku_ckpt_tensor_scatter(&t->tensor[i], 0, 1, &(float){1e30f}, KUMI_F32, 0));
    KU_TRY(ku_trainer_derive(t));
    for (int step = 0; step < s->c.steps && s->status[job->rank] == KUMI_OK; step++) {
        const double *report;
        dist_fill(&s->c, t, KU_PROG_TRAIN, step);
        KU_TRY(ku_trainer_step(t, step, &report));
        s->status[job->rank] = ku_trainer_check_scale(t);
        if (job->rank == 0)
            s->n_steps = step + 1;
    }
    ku_trainer_destroy(t);
    return KUMI_OK;
}
static void at_the_least_scale(void **state)
{
    (void)state;
    struct spent s = {.c = base_case("cpu", 0)};
    s.c.n = 4, s.c.loss_scale = 8, s.c.steps = 20;
    assert_int_equal(ku_comm_threads(s.c.n, NULL, spend, &s), KUMI_OK);
    for (int r = 0; r < s.c.n; r++)
        assert_int_equal(s.status[r], KUMI_ENUMERIC);
    assert_int_equal(s.n_steps, 5); /* one of hysteresis, 8 to 4 to 2 to 1 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts),          cmocka_unit_test(on_ref),
        cmocka_unit_test(nothing_moves),    cmocka_unit_test(no_trace_in_f32),
        cmocka_unit_test(norm_is_unscaled), cmocka_unit_test(at_the_least_scale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
