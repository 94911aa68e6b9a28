/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor parallelism, without and with divided sequences (sp): for one tp and sp, equal bits under
 * every other layout; checkpoints and digests do not depend on them; losses agree with the
 * undivided model to rounding. tp does not divide the sequences' length. tsan
 */
#include <math.h>

#include "resume.h"

static struct dist_case base_case(int tp, int sp, const char *device, enum kumi_dtype compute)
{
    struct dist_case c = {.n = tp,
                          .tp = tp,
                          .sp = sp,
                          .v = 2,
                          .micro = 1,
                          .k = 2,
                          .steps = sample_count(3, 2),
                          .device = device,
                          .compute = compute,
                          .model = dist_model(),
                          .t = sample_count(7, 5)};
    c.model.n_head = 4, c.model.n_embd = 48;
    return c;
}

static void expect_equal(const struct dist_case *a, const struct dist_case *b, int layout)
{
    for (int s = 0; s < a->steps; s++)
        if (memcmp(&a->loss[s], &b->loss[s], 8) || memcmp(&a->norm[s], &b->norm[s], 8))
            fail_msg("tp=%d, sp=%d, layout %d: step %d: loss %.17g %.17g norm %.17g %.17g", a->tp,
                     a->sp, layout, s, a->loss[s], b->loss[s], a->norm[s], b->norm[s]);
    if (strcmp(a->digest, b->digest) != 0)
        fail_msg("tp=%d, sp=%d, layout %d: digests differ", a->tp, a->sp, layout);
    assert_memory_equal(&a->eval_loss, &b->eval_loss, 8);
    assert_memory_equal(a->scale, b->scale, (size_t)a->steps * 8);
}

/* offload: optimizer state in host memory (2: in a file); zero 3: parameters too. sp_keeps: without
 * effect where sp is not. */
static const struct layout {
    int dp, threads, no_overlap, recompute, bucket_bytes, zero, persist_below, replicate, group;
    int offload, sp_keeps;
    const char *hosts; /* pretended, of so many ranks each; NULL: one */
} layout[] = {
    {.dp = 2},
    {.dp = 2, .zero = 1},
    {.dp = 2, .zero = 2, .bucket_bytes = 3000},
    {.dp = 2, .zero = 3},
    {.dp = 2, .zero = 3, .no_overlap = 1, .persist_below = 1000, .recompute = KU_RECOMPUTE_FULL},
    {.dp = 1, .threads = 2},
    {.dp = 1, .no_overlap = 1},
    {.dp = 2, .bucket_bytes = 3000},
    {.dp = 1, .recompute = KU_RECOMPUTE_SELECTIVE},
    {.dp = 2, .recompute = KU_RECOMPUTE_FULL},
    {.dp = 1, .offload = 1},
    {.dp = 2, .zero = 2, .offload = 2},
    {.dp = 2, .zero = 3, .offload = 1},
    {.dp = 2, .sp_keeps = 1},
    {.dp = 2, .hosts = "2,2"},
    {.dp = 1, .sp_keeps = 1, .recompute = KU_RECOMPUTE_FULL},
};
enum { N_LAYOUTS = sizeof layout / sizeof layout[0] };

static struct dist_case with(struct dist_case c, const struct layout *l)
{
    c.n = c.tp * l->dp;
    c.threads = l->threads;
    c.no_overlap = l->no_overlap;
    c.recompute = l->recompute;
    c.bucket_bytes = l->bucket_bytes;
    c.zero = l->zero, c.replicate = l->replicate, c.group = l->group;
    c.persist_below = l->persist_below;
    c.sp_keeps = l->sp_keeps;
    c.on_hosts = c.tp == 2 ? l->hosts : NULL;
    c.target.path = ".";
    if (l->offload)
        c.offload =
            (struct ku_offload){.optimizer = l->offload == 2 ? KU_OFFLOAD_FILE : KU_OFFLOAD_HOST,
                                .params = l->zero == 3 ? KU_OFFLOAD_HOST : 0,
                                .ratio = 1,
                                .buffer_count = 3,
                                .buffer_bytes = 1 << 14};
    return c;
}

/* Every layout at the first call, a ninth of them at each of the others. */
static void equal_bits(int tp, int sp, const char *device, enum kumi_dtype compute, int optimizer)
{
    static struct sample pick = {.plain = 9, .address = 8, .thread = 16};
    static int n_calls;
    struct dist_case one = base_case(tp, sp, device, compute);
    one.optimizer = optimizer;
    dist_run(&one);
    for (int i = 0; i < N_LAYOUTS; i++) {
        struct dist_case c = with(one, &layout[i]);
        if (!sample_takes(&pick, n_calls * N_LAYOUTS + i, i, -1))
            continue;
        dist_run(&c);
        expect_equal(&one, &c, i);
    }
    n_calls++;
    sample_end(&pick, "layouts");
}

static void layouts(void **state)
{
    (void)state;
    equal_bits(2, 0, "cpu", KUMI_F32, KU_OP_adamw);
    equal_bits(4, 0, "cpu", KUMI_BF16, KU_OP_lamb);
    equal_bits(2, 0, "cpu", KUMI_F32, KU_OP_lars);
    equal_bits(2, 0, "ref", KUMI_F32, KU_OP_adamw);
    equal_bits(2, 1, "cpu", KUMI_F32, KU_OP_lars);
    equal_bits(4, 1, "cpu", KUMI_BF16, KU_OP_lamb);
    equal_bits(2, 1, "ref", KUMI_F32, KU_OP_adamw);
    equal_bits(2, 0, "cpu", KUMI_F32, KU_OP_adafactor);
    equal_bits(4, 1, "cpu", KUMI_BF16, KU_OP_adafactor);
}

/* Copies of the state, each partitioned over two of the data-parallel ranks, and groups of two;
 * with masters, and with stochastic rounding, which draws by the indices of whole tensors. */
static void hybrid(void **state)
{
    static const struct layout row[] = {
        {.dp = 4, .zero = 1, .replicate = 2},
        {.dp = 4, .zero = 2, .replicate = 2},
        {.dp = 4, .zero = 3, .replicate = 2},
        {.dp = 4, .zero = 3, .group = 2},
    };
    struct sample pick = {.plain = 2, .address = 4, .thread = 6};
    (void)state;
    for (int k = 0; k < 4; k++) {
        const int by_micro = k % 2;
        struct dist_case one = base_case(2, k / 2, "cpu", KUMI_BF16);
        one.v = 4;
        one.by_micro = one.no_master = one.stochastic_rounding = by_micro;
        dist_run(&one);
        for (int i = 0; i < (int)(sizeof row / sizeof row[0]); i++) {
            struct dist_case c = with(one, &row[i]);
            if (!sample_takes(&pick, i, 0, -1))
                continue;
            dist_run(&c);
            expect_equal(&one, &c, i);
        }
    }
}

/* f16 with a loss scale that overflows at first, averages of the parameters, and dtypes of modules:
 * under every tp the bits of its smallest layout, in a pipeline those of one rank. */
static void precisions(void **state)
{
    static const char *const mlp[] = {"h.*.mlp", NULL}, *const attention[] = {"h.0.attn", NULL},
                             *const table[] = {"wte", NULL}, *const last[] = {"ln_f", NULL};
    static struct ku_precision_rule rules[] = {
        {mlp, {KUMI_BF16, KUMI_BF16, KUMI_BF16, KUMI_F32, -1}, true},
        {attention, {-1, KUMI_F16, -1, -1, -1}, true},
        {table, {-1, KUMI_F32, KUMI_BF16, -1, -1}, true},
        {last, {-1, KUMI_F32, -1, KUMI_BF16, -1}, true}};
    static const struct ku_precision_rules modules = {rules, 4};
    static const struct {
        enum kumi_dtype compute;
        const struct ku_precision_rules *modules;
        double loss_scale, ema;
    } numerics[] = {
        {KUMI_F16, NULL, 0x1p18, 0.9}, {KUMI_BF16, &modules, 0, 0.9}, {KUMI_F32, &modules, 0, 0}};
    static const struct {
        int tp, sp, pp, dp, zero, recompute;
        const char *schedule;
    } row[] = {{1, 0, 2, 1, 0, 0, "zb-h1"}, {1, 0, 2, 2, 3, KU_RECOMPUTE_FULL, "zb-v"},
               {2, 0, 1, 2, 2, 0, NULL},    {2, 0, 2, 2, 1, KU_RECOMPUTE_FULL, "1f1b"},
               {2, 1, 1, 2, 3, 0, NULL},    {2, 1, 2, 1, 0, 0, "zb-v"}};
    enum { N = sizeof row / sizeof row[0] };
    struct sample pick = {.plain = 3, .address = 6, .thread = 9};
    (void)state;
    for (int i = 0; i < 3 * N; i++) {
        const int k = i % N, of = i / N;
        if (!sample_takes(&pick, i, of, -1))
            continue;
        struct dist_case one = base_case(row[k].tp, row[k].sp, "cpu", numerics[of].compute);
        one.model.n_layer = 4, one.modules = numerics[of].modules, one.ema = numerics[of].ema;
        one.loss_scale = numerics[of].loss_scale, one.window = 2;
        struct dist_case many = one;
        many.n = row[k].tp * row[k].pp * row[k].dp, many.pp = row[k].pp;
        many.zero = row[k].zero, many.recompute = row[k].recompute;
        many.schedule = row[k].schedule, many.no_sharing = 1;
        dist_run(&one);
        dist_run(&many);
        expect_equal(&one, &many, i);
        if (one.loss_scale > 0) /* the first step overflows */
            assert_true(one.scale[1] < one.loss_scale);
    }
    sample_end(&pick, "precisions");
}

static void processes(void **state)
{
    struct dist_case one = base_case(2, 1, "cpu", KUMI_F32);
    (void)state;
    if (sample_races_only())
        skip();
    dist_run(&one);
    dist_processes(&one, one, 0);
    one.n = 4;
    dist_processes(&one, one, 1);
}

static void expect_close(const struct dist_case *whole, const struct dist_case *c, int row)
{
    for (int s = 0; s < c->steps; s++)
        if (fabs(c->loss[s] - whole->loss[s]) > 1e-12 * whole->loss[s] ||
            fabs(c->norm[s] - whole->norm[s]) > 1e-10 * whole->norm[s])
            fail_msg("row %d, tp=%d sp=%d step %d: loss %.17g %.17g norm %.17g %.17g", row, c->tp,
                     c->sp, s, c->loss[s], whole->loss[s], c->norm[s], whole->norm[s]);
}

/* Against the undivided model: the same random numbers, sums in another order. */
static void agrees(void **state)
{
    (void)state;
    static const int optimizer[] = {KU_OP_adamw, KU_OP_lamb, KU_OP_lars, KU_OP_adafactor};
    struct sample pick = {.plain = 2, .address = 4, .thread = 8};
    for (int i = 0; i < 20; i++) {
        const int tp = i >= 16 ? 3 : i % 2 ? 4 : 2; /* 3: the vocabulary gets more padding */
        if (!sample_takes(&pick, i, i / 2 % 4, -1))
            continue;
        struct dist_case whole = base_case(1, 0, "ref", KUMI_F64);
        struct dist_case c = base_case(tp, i < 16 ? i / 8 : i % 2, "ref", KUMI_F64);
        whole.optimizer = c.optimizer = optimizer[tp == 3 ? i % 4 : i / 2 % 4];
        whole.smoothing = c.smoothing = tp == 4 ? 0 : 0.1;
        whole.model.n_head = c.model.n_head = tp == 3 ? 6 : 4;
        dist_run(&whole);
        dist_run(&c);
        expect_close(&whole, &c, i);
    }
}

/* Fewer key and value heads than tensor-parallel ranks: two over four ranks, one over two and four.
 * Close to the undivided model, dropout included; equal bits in every layout of one tp and sp. */
static void shared_heads(void **state)
{
    static const struct {
        int key_heads, tp, sp, optimizer;
        enum kumi_dtype compute;
    } row[] = {{2, 4, 0, KU_OP_adamw, KUMI_F32},      {2, 4, 1, KU_OP_lamb, KUMI_BF16},
               {1, 2, 1, KU_OP_adamw, KUMI_F32},      {1, 4, 0, KU_OP_lamb, KUMI_F32},
               {1, 2, 0, KU_OP_lars, KUMI_BF16},      {1, 4, 1, KU_OP_lars, KUMI_F32},
               {2, 4, 0, KU_OP_adafactor, KUMI_BF16}, {1, 4, 1, KU_OP_adafactor, KUMI_F32}};
    static const int other[] = {1, 3, 7, 9, 12, 14}; /* of `layout` */
    struct sample rows = {.address = 4, .thread = 8},
                  pick = {.plain = 2, .address = 4, .thread = 8};
    (void)state;
    for (int i = 0; i < (int)(sizeof row / sizeof row[0]); i++) {
        if (!sample_takes(&rows, i, row[i].key_heads, -1))
            continue;
        struct dist_case whole = base_case(1, 0, "ref", KUMI_F64), c = whole;
        whole.key_heads = row[i].key_heads, whole.optimizer = row[i].optimizer;
        c = whole;
        c.n = c.tp = row[i].tp, c.sp = row[i].sp;
        dist_run(&whole);
        dist_run(&c);
        expect_close(&whole, &c, i);
        struct dist_case one = c;
        one.device = "cpu", one.compute = row[i].compute;
        dist_run(&one);
        for (int k = 0; k < (int)(sizeof other / sizeof other[0]); k++) {
            struct dist_case many = with(one, &layout[other[k]]);
            if (!sample_takes(&pick, i, k, -1))
                continue;
            dist_run(&many);
            expect_equal(&one, &many, other[k]);
        }
    }
}

/* Plans of the user and whole vocabularies: close to the undivided model, and equal bits. */
static void plans(void **state)
{
    static char match[][16] = {"h.*.mlp.c_fc", "h.*.mlp.c_proj", "ln_1", "wpe", "h.*.attn.*"};
    static struct ku_tp_rule gathered[] = {{match[0], KU_TP_COL_GATHER},
                                           {match[1], KU_TP_COL_GATHER}},
                             replicated[] = {{match[2], KU_TP_REPLICATE},
                                             {match[3], KU_TP_REPLICATE},
                                             {match[4], KU_TP_REPLICATE}};
    static const struct {
        int tp, sp, is_whole;
        struct ku_tp_plan plan;
    } row[] = {{2, 1, 1, {NULL, 0}},     {2, 0, 0, {gathered, 2}},   {4, 1, 0, {gathered, 2}},
               {4, 1, 1, {gathered, 2}}, {2, 1, 0, {replicated, 3}}, {2, 0, 1, {replicated, 3}}};
    struct dist_case whole = base_case(1, 0, "ref", KUMI_F64);
    struct sample s = {.plain = 3, .address = 8, .thread = 16};
    (void)state;
    dist_run(&whole);
    for (int i = 0; i < (int)(sizeof row / sizeof row[0]); i++) {
        if (!sample_takes(&s, i, row[i].plan.n, 4 + row[i].is_whole))
            continue;
        struct dist_case c = base_case(row[i].tp, row[i].sp, "ref", KUMI_F64);
        c.whole_vocabulary = row[i].is_whole;
        c.plan = row[i].plan;
        dist_run(&c);
        expect_close(&whole, &c, i);
        struct dist_case one = base_case(row[i].tp, row[i].sp, "cpu", KUMI_BF16), other;
        one.whole_vocabulary = row[i].is_whole;
        one.plan = row[i].plan;
        other = with(one, &(struct layout){.dp = 2, .zero = 3, .recompute = KU_RECOMPUTE_FULL});
        dist_run(&one);
        dist_run(&other);
        expect_equal(&one, &other, i);
    }
    sample_end(&s, "plans");
}

/* One layout saves, another loads: the same state, whatever divides it. */
struct moved {
    struct dist_case c;
    const char *dir;
    int is_saving, from;
};
static int move_rank(struct ku_job *job, void *arg)
{
    struct moved *m = arg;
    struct ku_trainer *t = NULL;
    KU_TRY(dist_begin(job, &m->c, m->dir, m->from, &t));
    if (m->is_saving) {
        KU_TRY(dist_steps(&m->c, t, m->from, m->from + 2));
        KU_TRY(dist_save(t, m->dir, m->from + 2));
    }
    if (job->rank == 0)
        KU_TRY(ku_trainer_digest(t, 0, m->c.digest));
    ku_trainer_destroy(t);
    return KUMI_OK;
}
static void move(struct moved *m)
{
    if (ku_comm_threads(m->c.n, NULL, move_rank, m) < 0)
        fail_msg("tp=%d from %d: %s", m->c.tp, m->from, ku_err_get()->text);
}

static void checkpoints(void **state)
{
    static const struct {
        int tp, sp, n, zero;
    } row[] = {{2, 1, 2, 0}, {1, 0, 2, 0}, {3, 1, 3, 0}, {2, 1, 4, 3},
               {4, 0, 4, 0}, {3, 0, 6, 3}, {2, 0, 4, 1}, {1, 0, 1, 0}};
    static const int key_heads[] = {0, 1}; /* f32: GPT-2; bf16: Llama with one key head */
    enum { N = sizeof row / sizeof row[0] };
    struct sample pick = {.plain = 4, .address = 8, .thread = 12};
    (void)state;
    for (int dtype = 0; dtype < 2; dtype++) {
        char dir[] = "/tmp/kumi-tensor-XXXXXX";
        assert_non_null(mkdtemp(dir));
        for (int i = 0; i < N; i++) {
            struct moved a = {
                .c = base_case(row[i].tp, row[i].sp, "cpu", dtype ? KUMI_BF16 : KUMI_F32),
                .dir = dir,
                .from = 2 * i,
                .is_saving = 1};
            a.c.n = row[i].n, a.c.zero = row[i].zero, a.c.model.n_head = 12;
            a.c.key_heads = key_heads[dtype];
            move(&a);
            for (int k = 0; k < N; k++) {
                struct moved b = a;
                if (!sample_takes(&pick, i * N + k, i, -1))
                    continue;
                b.c.tp = row[k].tp, b.c.sp = row[k].sp, b.c.n = row[k].n, b.c.zero = row[k].zero;
                b.from = 2 * i + 2, b.is_saving = 0;
                move(&b);
                if (strcmp(a.c.digest, b.c.digest) != 0)
                    fail_msg("saved with tp %d, loaded with tp %d: digests differ", a.c.tp, b.c.tp);
            }
        }
        assert_int_equal(ku_os_rmtree(dir), 0);
    }
}

/* The initial state does not depend on tp either. */
static void initial_state(void **state)
{
    char digest[72] = "";
    (void)state;
    for (int tp = 1; tp <= 4; tp++) {
        struct moved m = {.c = base_case(tp, tp == 4, "cpu", KUMI_BF16)};
        m.c.model.n_head = 12;
        move(&m);
        if (tp > 1)
            assert_string_equal(m.c.digest, digest);
        snprintf(digest, sizeof digest, "%s", m.c.digest);
    }
}

static void resume(void **state)
{
    struct dist_case one = base_case(2, 1, "cpu", KUMI_F32), other = one;
    (void)state;
    one.steps = 4;
    dist_run(&one);
    other = one;
    other.n = 4, other.zero = 3;
    dist_resume(&one, &one, &other, 2, 0);
    dist_resume(&one, &other, &one, 2, 1);
}

/*
 * With tp_exact one digest for every tp that has whole nodes of the tree of slices, also of numbers
 * of slices that are no power of two: norms in chunks, smoothed losses, both dtypes, and through
 * a checkpoint.
 */
static void exact(void **state)
{
    static const struct {
        int slices, key_heads, optimizer;
        enum kumi_dtype compute;
        struct {
            int tp, sp, dp, zero;
        } as[4];
    } row[] = {
        {12, 0, KU_OP_lamb, KUMI_F32, {{3, 1, 1, 0}, {6, 0, 1, 0}, {3, 0, 2, 3}, {12, 1, 1, 0}}},
        {6, 6, KU_OP_adamw, KUMI_BF16, {{3, 0, 1, 0}, {6, 1, 1, 0}, {3, 1, 2, 1}}},
        {3, 3, KU_OP_lars, KUMI_F32, {{3, 1, 1, 0}, {3, 0, 1, 0}}},
        {4, 0, KU_OP_adamw, KUMI_BF16, {{2, 1, 1, 0}, {4, 0, 1, 0}}},
    };
    struct sample pick = {.plain = 2, .address = 4, .thread = 6};
    (void)state;
    for (int i = 0; i < (int)(sizeof row / sizeof row[0]); i++) {
        struct dist_case one = base_case(1, 0, "cpu", row[i].compute);
        one.tp_exact = row[i].slices, one.key_heads = row[i].key_heads;
        one.optimizer = row[i].optimizer, one.smoothing = 0.1;
        one.model.n_head = 12, one.t = 12, one.no_sharing = 1;
        dist_run(&one);
        for (int k = 0; k < 4 && row[i].as[k].tp; k++) {
            struct dist_case c = one;
            if (!sample_takes(&pick, 4 * i + k, i, -1))
                continue;
            c.tp = row[i].as[k].tp, c.sp = row[i].as[k].sp, c.zero = row[i].as[k].zero;
            c.n = c.tp * row[i].as[k].dp;
            dist_run(&c);
            expect_equal(&one, &c, i);
        }
    }
    sample_end(&pick, "exact");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(initial_state), cmocka_unit_test(agrees),
        cmocka_unit_test(layouts),       cmocka_unit_test(plans),
        cmocka_unit_test(hybrid),        cmocka_unit_test(checkpoints),
        cmocka_unit_test(resume),        cmocka_unit_test(processes),
        cmocka_unit_test(shared_heads),  cmocka_unit_test(precisions),
        cmocka_unit_test(exact),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
