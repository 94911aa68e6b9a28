/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipeline parallelism: every bit is that of one process, under every schedule, number of stages,
 * data-parallel ranks and micro-batches, beside recomputation, where sequences are divided. tsan
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
        fail_msg("pp=%d %s n=%d tp=%d sp=%d zero=%d: digests differ", b->pp, b->schedule, b->n,
                 b->tp, b->sp, b->zero);
    assert_memory_equal(&a->eval_loss, &b->eval_loss, 8);
}

/* B beside I and W of a stage, as in files of PyTorch: four micro-batches, one or two stages. */
#define MIXED                                                                                      \
    "0F0,0F1,0B0,0F2,0I1,0F3,0W1,0B2,0I3,0W3\n"                                                    \
    ",1F0,1I0,1F1,1W0,(1B1;1F2)OVERLAP_F_B,1B2,1F3,1I3,1W3\n"
#define MIXED_V                                                                                    \
    "0F0,0F1,,3F0,3B0,0F2,(3F1;0B0)OVERLAP_F_B,3I1,0F3,3F2,0I1,3W1,3B2,0W1,3F3,0B2,3I3,0I3,3W3,"   \
    "0W3\n"                                                                                        \
    ",1F0,2F0,1F1,2F1,,2I0,1B0,2W0,1F2,2B1,2F2,1I1,1F3,2F3,2B2,1W1,1B2,2I3,1I3,2W3,1W3\n"

static const struct layout {
    const char *schedule;
    int pp, dp, tp, recompute, zero, replicate;
    bool sp, end_alone;
} layouts[] = {
    {"1f1b", 2, 1, 2, 0, 0, 0, 1, 0},        {"zb-h1", 2, 2, 2, 2, 0, 0, 1, 0},
    {"zb-v", 2, 1, 2, 0, 0, 0, 1, 0},        {"1f1b", 2, 2, 2, 1, 2, 0, 1, 1},
    {"interleaved", 2, 1, 2, 0, 0, 0, 1, 1}, {"1f1b", 4, 1, 1, 0, 0, 0, 0, 1},
    {"zb-v", 2, 2, 1, 2, 1, 0, 0, 1},        {"zb-h1", 2, 1, 2, 0, 0, 0, 0, 1},
    {"1f1b", 2, 1, 1, 0, 0, 0, 0, 0},        {"gpipe", 2, 1, 1, 0, 0, 0, 0, 0},
    {"1f1b", 4, 1, 1, 0, 0, 0, 0, 0},        {"1f1b", 2, 2, 1, 0, 0, 0, 0, 0},
    {"gpipe", 4, 2, 1, 1, 0, 0, 0, 0},       {"zb-h1", 2, 1, 1, 2, 0, 0, 0, 0},
    {"zb-h2", 2, 2, 1, 0, 0, 0, 0, 0},       {"zb-v", 2, 1, 1, 0, 0, 0, 0, 0},
    {"interleaved", 2, 2, 1, 2, 0, 0, 0, 0}, {"1f1b", 2, 1, 2, 0, 0, 0, 0, 0},
    {"zb-h1", 2, 2, 2, 1, 0, 0, 0, 0},       {"1f1b", 2, 2, 1, 0, 1, 0, 0, 0},
    {"zb-h1", 4, 2, 1, 0, 2, 0, 0, 0},       {"zb-v", 2, 2, 1, 1, 2, 0, 0, 0},
    {"1f1b", 2, 2, 2, 0, 2, 0, 0, 0},        {"1f1b", 2, 4, 1, 0, 2, 2, 0, 0},
    {"v-half", 2, 1, 1, 0, 0, 0, 0, 0},      {"v-min", 2, 2, 1, 2, 1, 0, 0, 0},
    {MIXED, 2, 2, 1, 2, 1, 0, 0, 0},         {MIXED_V, 2, 2, 2, 0, 0, 0, 1, 0},
};
enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* Under AddressSanitizer each layout comes in one dtype, under ThreadSanitizer each schedule. */
static int kind_of(int i)
{
    int first = 0;
    if (!sample_races_only())
        return i;
    while (strcmp(layouts[first].schedule, layouts[i].schedule) != 0)
        first++;
    return first;
}

static void schedules(void **state)
{
    struct sample s = {.plain = 3, .address = 32, .thread = 24};
    struct dist_case ones[2][4]; /* of tp 1 and 2, and of 2 with sequences divided */
    (void)state;
    for (int dtype = 0; dtype < 2; dtype++)
        for (int i = 1; i <= 3; i++) {
            ones[dtype][i] = base_case(dtype ? KUMI_BF16 : KUMI_F32);
            ones[dtype][i].tp = ones[dtype][i].n = i < 3 ? i : 2;
            ones[dtype][i].sp = i == 3;
            dist_run(&ones[dtype][i]);
        }
    for (int k = 0; k < 2 * N_LAYOUTS; k++) {
        const int i = k / 2, dtype = (k + i) % 2;
        const struct layout *l = &layouts[i];
        struct dist_case one = ones[dtype][l->tp + l->sp], c = one;
        if (!sample_takes(&s, k, kind_of(i), -1))
            continue;
        c.end_alone = l->end_alone;
        c.pp = l->pp, c.n = l->pp * l->dp * l->tp;
        c.recompute = l->recompute, c.schedule = l->schedule;
        c.zero = l->zero, c.replicate = l->replicate;
        dist_run(&c);
        expect_equal(&one, &c);
    }
    sample_end(&s, "schedules and layouts in a dtype");
}

/* Stage 3 of ZeRO, offload, sums of each micro-batch, and hosts that stages and slices span. */
static void beyond(void **state)
{
    enum { NONE = KU_OFFLOAD_NONE, HOST = KU_OFFLOAD_HOST, DISK = KU_OFFLOAD_FILE };
    static const struct {
        const char *schedule, *hosts;
        int pp, dp, tp, recompute, zero, group, by_micro, optimizer, params, activations;
    } row[] = {
        {"1f1b", NULL, 2, 2, 1, 0, 3, 0, 0, NONE, NONE, NONE},
        {"zb-v", NULL, 2, 2, 1, 2, 3, 0, 0, NONE, NONE, NONE},
        {"zb-h1", NULL, 2, 4, 1, 2, 3, 2, 0, NONE, NONE, NONE},
        {"interleaved", NULL, 2, 2, 2, 0, 3, 0, 1, NONE, NONE, NONE},
        {"zb-h2", NULL, 4, 1, 1, 1, 0, 0, 1, NONE, NONE, NONE},
        {"v-half", NULL, 2, 2, 1, 0, 2, 0, 1, NONE, NONE, NONE},
        {"1f1b", NULL, 2, 1, 1, 0, 0, 0, 0, HOST, NONE, HOST},
        {"zb-h1", NULL, 2, 2, 1, 0, 3, 0, 0, DISK, HOST, DISK},
        {MIXED_V, NULL, 2, 2, 1, 1, 3, 0, 1, NONE, NONE, NONE},
        {"1f1b", "2,2", 2, 2, 1, 0, 3, 0, 0, NONE, NONE, NONE},
        {"zb-v", "1,3", 2, 2, 1, 0, 1, 0, 0, NONE, NONE, NONE},
        {"1f1b", "1,1", 1, 1, 2, 0, 0, 0, 0, NONE, NONE, NONE},
        {"1f1b", "2,2,4", 2, 2, 2, 1, 2, 0, 1, NONE, NONE, NONE},
        {"gpipe", "1,3", 1, 2, 2, 0, 3, 0, 0, NONE, NONE, NONE},
    };
    struct sample s = {.address = 4, .thread = 8};
    struct dist_case ones[3][2];
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct dist_case *one = &ones[1 + i / 2][i % 2];
        *one = base_case(KUMI_F32);
        one->tp = one->n = 1 + i / 2, one->by_micro = i % 2;
        dist_run(one);
    }
    for (int i = 0; i < (int)(sizeof row / sizeof row[0]); i++) {
        struct dist_case *one = &ones[row[i].tp][row[i].by_micro], c = *one;
        if (!sample_takes(&s, i, row[i].zero * 2 + (row[i].hosts != NULL), 8 + row[i].optimizer))
            continue;
        c.pp = row[i].pp, c.n = row[i].pp * row[i].dp * row[i].tp;
        c.recompute = row[i].recompute, c.schedule = row[i].schedule;
        c.zero = row[i].zero, c.group = row[i].group, c.prefetch = 1;
        c.on_hosts = row[i].hosts, c.no_sharing = 1;
        c.offload = (struct ku_offload){.optimizer = (uint8_t)row[i].optimizer,
                                        .params = (uint8_t)row[i].params,
                                        .activations = (uint8_t)row[i].activations,
                                        .ratio = 1,
                                        .buffer_count = 2,
                                        .buffer_bytes = 32768};
        c.target = (struct ku_offload_file_opts){.path = "/tmp"};
        dist_run(&c);
        expect_equal(one, &c);
    }
    sample_end(&s, "layouts");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules),
        cmocka_unit_test(beyond),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
