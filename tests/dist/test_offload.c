/* SPDX-License-Identifier: Apache-2.0 */
/* Equal bits wherever state and activations lie: digests with ==. tsan */
#include "resume.h"

enum { NONE = KU_OFFLOAD_NONE, HOST = KU_OFFLOAD_HOST, FILES = KU_OFFLOAD_FILE };

static struct dist_case base_case(enum kumi_dtype compute)
{
    struct dist_case c = {.n = 1,
                          .v = 4,
                          .micro = 2,
                          .k = 2,
                          .steps = sample_count(3, 2),
                          .device = "cpu",
                          .compute = compute,
                          .model = dist_model(),
                          .target = {.path = "."},
                          .t = sample_count(32, 8)};
    c.model.n_embd = 96, c.model.n_positions = 32; /* tensors of several blocks, and of less */
    c.model.vocab_size = 301;
    return c;
}

/* Where things lie, through how many windows of how many KiB, and the layout around it. */
static const struct layout {
    int optimizer, params, activations, count, kib;
    int n, zero, sharing, recompute, io;
    double less; /* of the optimizer's ratio 1 */
    int64_t persist_below;
} layout[] = {
    {HOST, NONE, NONE, 3, 64, .n = 1},
    {FILES, NONE, NONE, 3, 64, .n = 1},
    {FILES, NONE, NONE, 1, 64, .n = 1, .io = KU_AIO_THREADS},
    {FILES, NONE, NONE, 2, 16, .n = 1},
    {FILES, NONE, NONE, 6, 1024, .n = 1, .less = 0.5},
    {HOST, HOST, NONE, 3, 64, .n = 1},
    {FILES, FILES, NONE, 3, 200, .n = 1, .persist_below = 1000},
    {NONE, NONE, HOST, 3, 32, .n = 1},
    {NONE, NONE, FILES, 3, 32, .n = 1, .recompute = KU_RECOMPUTE_FULL},
    {FILES, HOST, FILES, 4, 100, .n = 1, .recompute = KU_RECOMPUTE_SELECTIVE},
    {HOST, NONE, HOST, 3, 64, .n = 2, .sharing = 1},
    {FILES, NONE, FILES, 3, 64, .n = 4, .sharing = 1},
    {FILES, FILES, NONE, 3, 64, .n = 2},
    {HOST, NONE, NONE, 3, 64, .n = 2, .zero = 1},
    {FILES, NONE, FILES, 2, 32, .n = 4, .zero = 1},
    {FILES, NONE, NONE, 3, 64, .n = 2, .zero = 2, .io = KU_AIO_THREADS},
    {HOST, NONE, HOST, 1, 64, .n = 4, .zero = 2},
    {NONE, HOST, NONE, 3, 64, .n = 2, .zero = 3},
    {HOST, HOST, HOST, 3, 64, .n = 4, .zero = 3, .recompute = KU_RECOMPUTE_FULL},
    {FILES, FILES, FILES, 3, 64, .n = 2, .zero = 3, .recompute = KU_RECOMPUTE_FULL},
    {FILES, FILES, NONE, 1, 32, .n = 4, .zero = 3, .persist_below = 1000},
    {FILES, HOST, FILES, 5, 16, .n = 4, .zero = 3, .io = KU_AIO_THREADS},
};
enum { N_LAYOUTS = sizeof layout / sizeof layout[0] };

static struct dist_case laid_out(const struct dist_case *one, const struct layout *l)
{
    struct dist_case c = *one;
    c.n = l->n, c.zero = l->zero, c.no_sharing = !l->sharing, c.recompute = l->recompute;
    c.prefetch = l->zero == 3, c.persist_below = l->persist_below;
    c.threads = l->n == 2 ? 2 : 1;
    c.target.io = (enum ku_aio_kind)l->io;
    c.offload = (struct ku_offload){.optimizer = (uint8_t)l->optimizer,
                                    .params = (uint8_t)l->params,
                                    .activations = (uint8_t)l->activations,
                                    .ratio = 1 - l->less,
                                    .buffer_count = l->count,
                                    .buffer_bytes = (int64_t)l->kib << 10};
    return c;
}

/* What lies where; how files are read and written, and the stage around it. */
enum { N_PLACES = 27, N_WAYS = 8 };
static int place_of(const struct layout *l)
{
    return (l->optimizer * 3 + l->params) * 3 + l->activations;
}
static int way_of(const struct layout *l)
{
    return (l->io == KU_AIO_THREADS) * 4 + l->zero;
}

/* One layout in 3 * plain; others at the next call. */
static void check_layouts(const struct dist_case *one, int plain)
{
    static struct sample sample = {.address = 24, .thread = 20};
    static int n_calls;
    struct dist_case alone = *one;
    sample.plain = 3 * plain;
    dist_run(&alone);
    for (int k = 0; k < N_LAYOUTS; k++) {
        const int i = (k + 5 * n_calls) % N_LAYOUTS;
        const int place = sample_races_only() ? -1 : place_of(&layout[i]);
        const int way = n_calls ? N_WAYS + n_calls : way_of(&layout[i]);
        if (!sample_takes(&sample, n_calls * N_LAYOUTS + i, place, N_PLACES + way))
            continue;
        struct dist_case c = laid_out(one, &layout[i]);
        dist_run(&c);
        for (int s = 0; s < c.steps; s++)
            if (memcmp(&alone.loss[s], &c.loss[s], 8) || memcmp(&alone.norm[s], &c.norm[s], 8))
                fail_msg("layout %d: step %d: loss %.17g, is %.17g, norm %.17g, is %.17g", i, s,
                         alone.loss[s], c.loss[s], alone.norm[s], c.norm[s]);
        if (strcmp(alone.digest, c.digest) != 0)
            fail_msg("layout %d: digests differ", i);
        assert_memory_equal(&alone.eval_loss, &c.eval_loss, 8);
    }
    n_calls++;
    sample_end(&sample, "layouts");
}

static void f32(void **state)
{
    (void)state;
    struct dist_case c = base_case(KUMI_F32);
    check_layouts(&c, 1);
}
static void bf16(void **state)
{
    (void)state;
    struct dist_case c = base_case(KUMI_BF16);
    check_layouts(&c, 1);
}
/* Other numbers of tensors a parameter, sums over blocks, factors that are read whole. */
static void optimizers(void **state)
{
    (void)state;
    static const int optimizer[] = {KU_OP_sgd,  KU_OP_rmsprop_both, KU_OP_lamb,
                                    KU_OP_lars, KU_OP_adafactor,    KU_OP_lion};
    if (sample_races_only())
        skip();
    for (int i = 0; i < 6; i++) {
        struct dist_case c = base_case(i % 2 ? KUMI_BF16 : KUMI_F32);
        c.optimizer = optimizer[i];
        c.ema = i % 3 == 0 ? 0.9 : 0;
        check_layouts(&c, 3);
    }
}

/* What the plan takes out of memory is there to the byte, and windows are all that takes its place.
 */
static int map_bytes(struct ku_job *job, void *arg)
{
    struct dist_case *c = arg;
    struct ku_trainer *t;
    KU_TRY(dist_trainer(job, c, &t));
    for (int a = 0; a < KU_N_ARENAS && job->rank == 0; a++)
        c->norm[a] = (double)t->memory->bytes[a];
    for (int p = 0; p < KU_N_PROGS && job->rank == 0; p++)
        for (int a = 0; a < KU_N_ARENAS; a++)
            KU_ASSERT((double)t->program[p]->arena_bytes[a] <= c->norm[a]);
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static void arenas_are_smaller(void **state)
{
    (void)state;
    for (int zero = 0; zero <= 3; zero += 3)
        for (int target = HOST; target <= FILES; target++) {
            struct dist_case without = base_case(KUMI_F32), with;
            struct layout l = {target, NONE, NONE, 3, 64, .n = 2, .zero = zero};
            int arena = zero ? KU_AR_SHARD : KU_AR_STATE;
            int to = target == HOST ? KU_AR_OFFLOAD : KU_AR_FILE;
            with = laid_out(&without, &l);
            without = with;
            without.offload = (struct ku_offload){0};
            assert_int_equal(ku_comm_threads(2, NULL, map_bytes, &without), 0);
            assert_int_equal(ku_comm_threads(2, NULL, map_bytes, &with), 0);
            double gone = without.norm[arena] - with.norm[arena];
            assert_true(gone > 0);
            /* a tensor begins at a page in a target, at a line elsewhere */
            assert_true(with.norm[to] >= gone && with.norm[to] < gone + 4096.0 * 100);
            assert_true(without.norm[KU_AR_OFFLOAD] == 0 && without.norm[KU_AR_FILE] == 0);
            assert_true(with.norm[KU_AR_STEP] < without.norm[KU_AR_STEP] + 3 * 65536.0 + 16384);
        }
}

static void resume_elsewhere(void **state)
{
    (void)state;
    struct dist_case one = base_case(KUMI_BF16);
    dist_run(&one);
    const struct layout alone = {.n = 1};
    struct sample s = {.plain = 3, .address = 24, .thread = 24};
    for (int i = 0; i <= N_LAYOUTS; i++) {
        if (!sample_takes(&s, i, i < N_LAYOUTS ? layout[i].zero : 0, -1))
            continue;
        struct dist_case first = laid_out(&one, i ? &layout[i - 1] : &alone);
        struct dist_case then = laid_out(&one, i < N_LAYOUTS ? &layout[i] : &alone);
        dist_resume(&one, &first, &then, 1, i);
    }
    sample_end(&s, "pairs of layouts");
}

static void processes(void **state)
{
    (void)state;
    if (sample_races_only())
        skip();
    struct dist_case one = base_case(KUMI_BF16);
    dist_run(&one);
    struct sample s = {.plain = 6, .address = 36, .thread = 18};
    for (int i = 0; i < N_LAYOUTS; i++)
        if (sample_takes(&s, i, layout[i].zero, -1))
            dist_processes(&one, laid_out(&one, &layout[i]), i);
    sample_end(&s, "layouts");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(f32),
                                       cmocka_unit_test(bf16),
                                       cmocka_unit_test(optimizers),
                                       cmocka_unit_test(arenas_are_smaller),
                                       cmocka_unit_test(resume_elsewhere),
                                       cmocka_unit_test(processes)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
