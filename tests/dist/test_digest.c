/* SPDX-License-Identifier: Apache-2.0 */
/* Equal bits under every layout: digests with ==, ranks as threads. tsan */
#include "dist.h"

static struct dist_case base_case(const char *device, enum kumi_dtype compute)
{
    return (struct dist_case){.n = 1,
                              .v = 8,
                              .micro = 1,
                              .k = 2,
                              .steps = sample_count(6, 2),
                              .device = device,
                              .compute = compute,
                              .model = dist_model(),
                              .t = 11};
}

static void expect_equal(const struct dist_case *a, const struct dist_case *b)
{
    for (int s = 0; s < a->steps; s++)
        if (memcmp(&a->loss[s], &b->loss[s], 8) || memcmp(&a->norm[s], &b->norm[s], 8))
            fail_msg("n=%d: step %d: loss %.17g %.17g norm %.17g %.17g", b->n, s, a->loss[s],
                     b->loss[s], a->norm[s], b->norm[s]);
    assert_string_equal(a->digest, b->digest);
    assert_memory_equal(&a->eval_loss, &b->eval_loss, 8);
}

static void check_layouts(const char *device, enum kumi_dtype compute)
{
    struct dist_case one = base_case(device, compute);
    dist_run(&one);
    assert_true(sample_is_short() || one.loss[5] < one.loss[1]);
    for (int n = 2; n <= 8; n *= 2) {
        struct dist_case c = base_case(device, compute);
        c.n = n;
        dist_run(&c);
        expect_equal(&one, &c);
    }
    struct dist_case c = base_case(device, compute);
    c.n = 4, c.no_sharing = 1;
    dist_run(&c);
    expect_equal(&one, &c);
    c = base_case(device, compute);
    c.n = 2, c.no_overlap = 1, c.bucket_bytes = 1000,
    c.threads = strcmp(device, "cpu") == 0 ? 2 : 1;
    dist_run(&c);
    expect_equal(&one, &c);
    for (int policy = KU_RECOMPUTE_SELECTIVE; policy < KU_N_RECOMPUTE && !sample_races_only();
         policy++) {
        c = base_case(device, compute);
        c.n = policy, c.no_sharing = policy == KU_RECOMPUTE_FULL, c.recompute = policy;
        dist_run(&c);
        expect_equal(&one, &c);
    }
    for (int keep = 0; keep < 2; keep++) { /* gathered parameters, for clones too */
        c = base_case(device, compute);
        c.n = 2, c.recompute = KU_RECOMPUTE_FULL, c.every = 2;
        c.zero = 3, c.no_sharing = 1, c.prefetch = 1, c.keep_gathered = keep;
        dist_run(&c);
        expect_equal(&one, &c);
    }
}

static void odd_tree(const char *device)
{
    struct dist_case one = base_case(device, KUMI_F32), three = one;
    one.v = three.v = 3;
    three.n = 3;
    dist_run(&one);
    dist_run(&three);
    expect_equal(&one, &three);
}

/* A weight's gradient sums over 4,096 tokens of a micro-batch into a small matrix: where a library
 * would give each thread a part of the sum. Three threads divide nothing evenly. */
static void check_long_sums(enum kumi_dtype compute)
{
    struct dist_case one = base_case("cpu", compute);
    one.v = one.k = 1, one.micro = sample_count(64, 8), one.t = 64,
    one.steps = 1; /* its moments show the gradients */
    one.model.n_embd = 48, one.model.n_positions = 64;
    struct dist_case many = one;
    one.threads = 1;
    dist_run(&one);
    for (many.threads = 2; many.threads <= 3; many.threads++) {
        dist_run(&many);
        expect_equal(&one, &many);
    }
}

/* Two and four ranks, whose state is shared or not; of each case at least one of the four. */
static void check_sharing(const struct dist_case *one)
{
    static struct sample s = {.address = 8, .thread = 16};
    static int n_calls;
    for (int k = 0; k < 4; k++) {
        const int i = (k + n_calls) % 4;
        struct dist_case c = *one;
        c.n = i < 2 ? 2 : 4, c.no_sharing = i % 2, c.threads = i < 2 ? 2 : 1;
        if (!sample_takes(&s, n_calls * 4 + i, n_calls, -1))
            continue;
        dist_run(&c);
        expect_equal(one, &c);
    }
    n_calls++;
    sample_end(&s, "layouts");
}

/* Ratios of exact norms; a vocabulary whose padding must stay zero; state that is shared or not. */
static void check_layerwise(int optimizer, enum kumi_dtype compute)
{
    struct dist_case one = base_case("cpu", compute);
    one.v = 4, one.steps = sample_count(12, 2), one.optimizer = optimizer, one.smoothing = 0.1;
    one.model.n_embd = 48; /* matrices of up to three blocks, which ranks share */
    dist_run(&one);
    assert_true(sample_is_short() || one.loss[11] < one.loss[1]);
    check_sharing(&one);
}
static void layerwise(void **state)
{
    (void)state;
    check_layerwise(KU_OP_lamb, KUMI_F32);
    if (sample_races_only())
        return; /* other numerics of the same collectives */
    check_layerwise(KU_OP_lars, KUMI_F32);
    check_layerwise(KU_OP_lars, KUMI_BF16);
    check_layerwise(KU_OP_lamb, KUMI_BF16);
}

/* Optimizers of one to three tensors of their own, averages of the weights, a group. */
static void check_rule(int optimizer, enum kumi_dtype compute)
{
    static const char *const bias[] = {"*.bias", NULL};
    const struct ku_update_group group = {.match = bias,
                                          .set = {{offsetof(struct ku_attrs, lr_mult), 2},
                                                  {offsetof(struct ku_attrs, weight_decay), 0}},
                                          .n_set = 2};
    struct dist_case one = base_case("cpu", compute), plain;
    one.v = 4, one.steps = sample_count(12, 2), one.optimizer = optimizer, one.ema = 0.9;
    one.model.n_embd = 48;
    plain = one;
    one.groups = &group, one.n_groups = 1;
    dist_run(&one);
    dist_run(&plain);
    assert_true(sample_is_short() || one.loss[11] < one.loss[1]);
    assert_string_not_equal(one.digest, plain.digest); /* the group counts */
    check_sharing(&one);
}
static void rules(void **state)
{
    (void)state;
    check_rule(KU_OP_adafactor, KUMI_F32);
    check_rule(KU_OP_lion, KUMI_BF16);
    if (sample_races_only())
        return;
    check_rule(KU_OP_adagrad, KUMI_F32);
    check_rule(KU_OP_adafactor, KUMI_BF16);
    check_rule(KU_OP_rmsprop_both, KUMI_F32);
    check_rule(KU_OP_adamw, KUMI_BF16);
}

static void long_sums(void **state)
{
    (void)state;
    check_long_sums(KUMI_F32);
    check_long_sums(KUMI_BF16);
}

static void ref_f32(void **state)
{
    (void)state;
    if (sample_races_only())
        skip();
    check_layouts("ref", KUMI_F32);
    odd_tree("ref");
}
static void cpu_f32(void **state)
{
    (void)state;
    check_layouts("cpu", KUMI_F32);
    odd_tree("cpu");
}
static void cpu_bf16(void **state)
{
    (void)state;
    check_layouts("cpu", KUMI_BF16);
    /* bf16 learns as f32 does: compute copies follow their parameters */
    struct dist_case a = base_case("cpu", KUMI_F32), b = base_case("cpu", KUMI_BF16);
    if (sample_is_short())
        return;
    a.steps = b.steps = 30;
    dist_run(&a);
    dist_run(&b);
    double learnt = a.loss[0] - a.loss[28];
    assert_true(learnt > 0.5);
    assert_true(b.loss[0] - b.loss[28] > 0.9 * learnt);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cpu_f32),   cmocka_unit_test(cpu_bf16),
                                       cmocka_unit_test(long_sums), cmocka_unit_test(layerwise),
                                       cmocka_unit_test(rules),     cmocka_unit_test(ref_f32)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
