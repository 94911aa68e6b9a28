/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipeline parallelism: every bit is that of one process, under every schedule, number of stages,
 * data-parallel ranks and micro-batches, and beside recomputation. tsan
 */
#include "resume.h"

static struct dist_case base_case(enum kumi_dtype compute)
{
    struct dist_case c = {.n = 1,
                          .v = 4,
                          .micro = 1,
                          .k = 2,
                          .steps = sample_count(3, 2),
                          .device = "cpu",
                          .compute = compute,
                          .model = dist_model(),
                          .t = sample_count(7, 5)};
    c.model.n_layer = 4, c.model.n_head = 4, c.model.n_embd = 48;
    return c;
}

static void expect_equal(const struct dist_case *a, const struct dist_case *b)
{
    for (int s = 0; s < a->steps; s++)
        if (memcmp(&a->loss[s], &b->loss[s], 8) || memcmp(&a->norm[s], &b->norm[s], 8))
            fail_msg("pp=%d %s n=%d: step %d: loss %.17g %.17g norm %.17g %.17g", b->pp,
                     b->schedule, b->n, s, a->loss[s], b->loss[s], a->norm[s], b->norm[s]);
    if (strcmp(a->digest, b->digest) != 0)
        fail_msg("pp=%d %s n=%d tp=%d zero=%d: digests differ", b->pp, b->schedule, b->n, b->tp,
                 b->zero);
    assert_memory_equal(&a->eval_loss, &b->eval_loss, 8);
}

static void schedules(void **state)
{
    static const struct {
        const char *schedule;
        int pp, dp, tp, recompute, zero, replicate;
    } row[] = {
        {"1f1b", 2, 1, 1, 0, 0, 0},        {"gpipe", 2, 1, 1, 0, 0, 0},
        {"1f1b", 4, 1, 1, 0, 0, 0},        {"1f1b", 2, 2, 1, 0, 0, 0},
        {"gpipe", 4, 2, 1, 1, 0, 0},       {"zb-h1", 2, 1, 1, 2, 0, 0},
        {"zb-h2", 2, 2, 1, 0, 0, 0},       {"zb-v", 2, 1, 1, 0, 0, 0},
        {"interleaved", 2, 2, 1, 2, 0, 0}, {"1f1b", 2, 1, 2, 0, 0, 0},
        {"zb-h1", 2, 2, 2, 1, 0, 0},       {"1f1b", 2, 2, 1, 0, 1, 0},
        {"zb-h1", 4, 2, 1, 0, 2, 0},       {"zb-v", 2, 2, 1, 1, 2, 0},
        {"1f1b", 2, 2, 2, 0, 2, 0},        {"1f1b", 2, 4, 1, 0, 2, 2},
        {"v-half", 2, 1, 1, 0, 0, 0},      {"v-min", 2, 2, 1, 2, 1, 0},
    };
    (void)state;
    for (int dtype = 0; dtype < 2; dtype++) {
        struct dist_case ones[3];
        for (int tp = 1; tp <= 2; tp++) {
            ones[tp] = base_case(dtype ? KUMI_BF16 : KUMI_F32);
            ones[tp].tp = ones[tp].n = tp;
            dist_run(&ones[tp]);
        }
        for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
            struct dist_case one = ones[row[i].tp], c = one;
            c.pp = row[i].pp, c.n = row[i].pp * row[i].dp * row[i].tp;
            c.recompute = row[i].recompute, c.schedule = row[i].schedule;
            c.zero = row[i].zero, c.replicate = row[i].replicate;
            dist_run(&c);
            expect_equal(&one, &c);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
