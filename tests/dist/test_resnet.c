/* SPDX-License-Identifier: Apache-2.0 */
/* Equal bits of batch norm and its running statistics under every layout, ranks as threads. tsan */
#include "dist.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/os/os.h"
#include "base/math/random.h"
#include "comm/world.h"
#include "kumi/model.h"
#include "nn/builder.h"
#include "train/trainer.h"

enum { STEPS = 4, IMAGE = 9, CLASSES = 7 };
static int n_steps(void)
{
    return sample_count(STEPS, 2);
}

/* Numerics first, then layout. */
struct run {
    int v, micro, k, sync;
    int64_t depth;
    enum kumi_resnet_stem stem;
    enum kumi_dtype compute;
    const char *device;
    const struct ku_precision_rules *modules;
    int by_micro; /* each micro-batch is reduced */
    int n, threads, no_sharing, no_overlap, zero, replicate, recompute;
    int tp;         /* ranks that compute the same; 0: 1 */
    bool has_hosts; /* two, whose ranks share one copy each */
    int64_t bucket_bytes;
    int from, to;     /* steps; to 0 = all */
    const char *load; /* a checkpoint to begin with, and a folder to end in; NULL */
    const char *save;
    /* results */
    char digest[72];
    double loss[STEPS], eval_loss;
    double running[2]; /* of bn1: mean and variance of channel 3 */
    int64_t tracked;
};

static struct ku_compile_opts opts_of(const struct run *r)
{
    struct ku_compile_opts o = {.compute = r->compute,
                                .modules = r->modules,
                                .is_training = 1,
                                .optimizer = KU_OP_sgd,
                                .rule = ku_attrs_default,
                                .bucket_bytes = r->bucket_bytes ? r->bucket_bytes : 1 << 20,
                                .first_bucket_bytes = 4096,
                                .overlap = !r->no_overlap,
                                .recompute = r->recompute,
                                .zero = r->zero,
                                .prefetch = 1};
    for (int a = 0; a < KU_N_AXES; a++)
        o.mesh.extent[a] = 1;
    const int hosts = r->has_hosts ? 2 : 1, tp = r->tp ? r->tp : 1, dp = r->n / tp;
    o.mesh.extent[KU_AX_TP] = tp;
    o.mesh.extent[KU_AX_LOCAL] = r->no_sharing ? 1 : dp / hosts;
    o.mesh.extent[KU_AX_REPLICATE] = r->zero && r->replicate ? r->replicate
                                     : r->zero               ? 1
                                     : r->no_sharing         ? dp
                                                             : hosts;
    o.mesh.extent[KU_AX_SHARD] = dp / ku_mesh_dp(&o.mesh);
    o.mesh.extent[KU_AX_VS] = r->v / dp;
    o.mesh.extent[KU_AX_MB] = r->k;
    o.mesh.mb_outer = r->by_micro;
    o.rule.lr = 0.05;
    o.rule.momentum = 0.9;
    o.rule.weight_decay = 1e-3;
    return o;
}

static int create(struct ku_job *job, const struct run *r, struct ku_trainer **t)
{
    struct kumi_graph *builder;
    struct ku_graph *g;
    struct kumi_resnet c;
    struct ku_trainer_opts o = {.device = ku_device_find(r->device), .seed = 21};
    struct kumi_shape_of_batch batch = {.n = (int64_t)r->v * r->micro * r->k};
    kumi_resnet_defaults(&c);
    c.depth = r->depth;
    c.width = sample_count(16, 8);
    c.num_classes = CLASSES;
    c.image_size = IMAGE;
    c.stem = r->stem;
    c.sync_batch_norm = r->sync;
    KU_TRY(kumi_graph_create(&builder));
    kumi_resnet_build(builder, &c, &batch);
    int status = ku_builder_take(builder, &g);
    kumi_graph_destroy(builder);
    KU_TRY(status);
    o.device_opts =
        (struct ku_device_opts){.n_threads = r->threads ? r->threads : 1, .isa = ku_cpu_isa()};
    o.compile = opts_of(r);
    return ku_trainer_create(job, &g, 1, &o, t);
}

static void fill(struct ku_trainer *t, enum ku_trainer_program p, int64_t step)
{
    const int64_t pixels = (int64_t)IMAGE * IMAGE * 3;
    size_t row_bytes;
    for (int u = 0; u < ku_trainer_n_micro(t); u++) {
        int64_t first, n = ku_trainer_rows(t, u, &first);
        char *images = host_of(ku_trainer_port(t, p, "images", u, &row_bytes));
        int32_t *targets = host_of(ku_trainer_port(t, p, "targets", u, &row_bytes));
        enum kumi_dtype dtype = KUMI_F32;
        host_of(ku_trainer_port(t, p, "images", u, &row_bytes));
        if (row_bytes == (size_t)pixels * 8)
            dtype = KUMI_F64;
        for (int64_t i = 0; i < n * pixels; i++)
            ku_store_f64(
                images, dtype, i,
                (double)ku_random_normal(3, (uint32_t)step, 1, (uint64_t)(first * pixels + i)));
        for (int64_t i = 0; i < n; i++)
            targets[i] =
                (int32_t)(ku_random_u32(3, (uint32_t)step, 2, (uint64_t)(first + i)) % CLASSES);
    }
}

static const struct ku_ckpt_tensor *tensor(const struct ku_trainer *t, const char *name)
{
    for (int i = 0; i < t->n_tensors; i++)
        if (strcmp(t->tensor[i].name, name) == 0)
            return &t->tensor[i];
    return NULL;
}

static int rank_main(struct ku_job *job, void *arg)
{
    struct run *r = arg;
    struct ku_trainer *t = NULL;
    KU_TRY(create(job, r, &t));
    KU_TRY(ku_trainer_init_state(t));
    int64_t from = 0;
    if (r->load) {
        KU_TRY(ku_trainer_load(t, r->load, &from));
        assert_int_equal(from, r->from);
    }
    for (int step = r->from; step < (r->to ? r->to : n_steps()); step++) {
        const double *report;
        fill(t, KU_PROG_TRAIN, step % 2);
        KU_TRY(ku_trainer_step(t, step, &report));
        if (job->rank == 0)
            r->loss[step] = report[KU_REPORT_LOSS];
    }
    if (r->save) {
        struct ku_ckpt_desc d = {.dir = r->save, .step = r->to, .model_config = "{}"};
        KU_TRY(ku_trainer_save(t, &d, KUMI_OK));
    }
    ku_trainer_eval_begin(t);
    fill(t, KU_PROG_EVAL, 0);
    KU_TRY(ku_trainer_eval_run(t));
    KU_TRY(ku_trainer_digest_first(t, job->rank == 0 ? r->digest : (char[72]){0}));
    if (job->rank == 0) {
        r->eval_loss = ku_trainer_eval_loss(t);
        const struct ku_ckpt_tensor *mean = tensor(t, "bn1.running_mean");
        const struct ku_ckpt_tensor *var = tensor(t, "bn1.running_var");
        const struct ku_ckpt_tensor *n = tensor(t, "bn1.num_batches_tracked");
        r->running[0] = ku_load_f64(host_tensor(mean), mean->dtype, 3);
        r->running[1] = ku_load_f64(host_tensor(var), var->dtype, 3);
        r->tracked = *(int64_t *)host_tensor(n);
    }
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static void run(struct run *r)
{
    const struct ku_job_opts opts = {.hosts = !r->has_hosts ? NULL : r->n == 2 ? "1,1" : "2,2"};
    int status = ku_comm_threads(r->n, &opts, rank_main, r);
    if (status < 0)
        fail_msg("n=%d: %s", r->n, ku_err_get()->text);
}

enum { N_NUMERICS = 64 };
static int numerics_of(const struct run *r)
{
    return (((int)r->compute * 2 + r->by_micro) * 2 + r->sync) * 2 + (r->modules != NULL);
}
static int layout_of(const struct run *r)
{
    return r->tp ? 48 + r->zero / 2
                 : ((r->zero * 2 + (r->replicate > 0)) * 2 + r->has_hosts) * KU_N_RECOMPUTE +
                       r->recompute;
}

/* Of each numerics at least one layout, each layout with one of them. */
static void expect_equal(const struct run *a, struct run b)
{
    static struct sample sample = {.plain = 5, .address = 16, .thread = 24};
    static int n_rows;
    if (!sample_takes(&sample, n_rows++, numerics_of(&b), N_NUMERICS + layout_of(&b)))
        return;
    run(&b);
    for (int s = 0; s < n_steps(); s++)
        if (memcmp(&a->loss[s], &b.loss[s], 8) != 0)
            fail_msg("n=%d: step %d: loss %.17g, expected %.17g", b.n, s, b.loss[s], a->loss[s]);
    assert_memory_equal(a->running, b.running, sizeof b.running);
    assert_memory_equal(&a->eval_loss, &b.eval_loss, 8);
    assert_string_equal(a->digest, b.digest);
}

static struct run base(const char *device, enum kumi_dtype compute)
{
    return (struct run){
        .v = 4, .micro = 2, .k = 2, .depth = 8, .compute = compute, .device = device, .n = 1};
}

static void check_layouts_of(struct run one)
{
    struct run r = one;
    run(&one);
    assert_true(sample_is_short() || one.loss[2] < one.loss[0]);
    assert_int_equal(one.tracked,
                     n_steps() * one.k); /* once per micro-batch number, not per shard */
    assert_true(one.running[1] > 0 && one.running[1] != 1 && one.running[0] != 0);
    for (r.n = 2; r.n <= 4; r.n *= 2)
        expect_equal(&one, r);
    r.n = 4, r.no_sharing = 1;
    for (r.zero = 0; r.zero <= 3; r.zero++)
        expect_equal(&one, r);
    r.zero = 3, r.replicate = 2;
    expect_equal(&one, r);
    r.replicate = r.no_sharing = 0, r.has_hosts = 1;
    for (r.zero = 0; r.zero <= 2; r.zero++)
        expect_equal(&one, r);
    r.zero = r.has_hosts = 0;
    r.n = 2, r.no_overlap = 1, r.bucket_bytes = 1000;
    r.threads = strcmp(one.device, "cpu") == 0 ? 3 : 1;
    expect_equal(&one, r);
    for (r = one, r.n = 1; r.n <= 2 && !sample_races_only(); r.n++)
        for (r.recompute = KU_RECOMPUTE_SELECTIVE; r.recompute < KU_N_RECOMPUTE; r.recompute++)
            expect_equal(&one, r);
}
static void check_layouts(const char *device, enum kumi_dtype compute, int by_micro)
{
    struct run one = base(device, compute);
    one.by_micro = by_micro;
    check_layouts_of(one);
}

/* Running statistics of 16 bits, and modules of three compute dtypes. */
static const char *const first_layer[] = {"bn1", NULL}, *const blocks[] = {"layer2", NULL},
                         *const norms[] = {"bn2", NULL}, *const last_layers[] = {"layer*", NULL};
static struct ku_precision_rule rule[] = {
    {blocks, {-1, KUMI_BF16, KUMI_BF16, KUMI_F32, KUMI_F16}, true},
    {norms, {-1, KUMI_F16, -1, -1, KUMI_F32}, true},
    {last_layers, {-1, KUMI_BF16, -1, -1, KUMI_BF16}, true},
    {first_layer, {-1, -1, -1, -1, KUMI_BF16}, true}};
static const struct ku_precision_rules rules = {rule, 4};
static struct run of_modules(enum kumi_dtype compute)
{
    struct run one = base("cpu", compute);
    one.modules = &rules;
    return one;
}
static void modules(void **state)
{
    struct run f32 = of_modules(KUMI_F32), wide = f32, ref = f32;
    (void)state;
    check_layouts_of(f32);
    check_layouts_of(of_modules(KUMI_BF16));
    wide.modules = NULL;
    run(&f32);
    run(&wide);
    assert_string_not_equal(f32.digest, wide.digest);
    assert_true(f32.running[0] == (double)ku_bf16_to_f32(ku_bf16_from_f32((float)f32.running[0])));
    for (int i = 0; i < 2; i++) /* rounded once a step, to 8 bits */
        assert_true(fabs(f32.running[i] - wide.running[i]) < 0x1p-6 * fabs(wide.running[i]));
    ref.device = "ref";
    run(&ref);
    assert_true(fabs(ref.loss[0] - f32.loss[0]) < 0.02 * ref.loss[0]);
}
static void cpu_f32(void **state)
{
    (void)state;
    check_layouts("cpu", KUMI_F32, 0);
}
static void cpu_bf16(void **state)
{
    (void)state;
    check_layouts("cpu", KUMI_BF16, 0);
}
static void cpu_f16(void **state)
{
    (void)state;
    check_layouts("cpu", KUMI_F16, 0);
}
static void ref_f64(void **state)
{
    (void)state;
    if (sample_races_only())
        skip();
    check_layouts("ref", KUMI_F64, 0);
}

/* Ranks reduce each micro-batch. Running statistics do not depend on that: after the first step,
 * which parameters have not changed before, they are those of the other order. */
static void by_micro(void **state)
{
    (void)state;
    struct run first[2] = {base("cpu", KUMI_F32), base("cpu", KUMI_F32)};
    check_layouts("cpu", KUMI_F32, 1);
    for (int i = 0; i < 2; i++) {
        first[i].by_micro = i;
        first[i].k = 3;
        first[i].to = 1;
        run(&first[i]);
    }
    struct run sync = base("cpu", KUMI_F32), r;
    sync.v = sync.n = 2, sync.sync = sync.by_micro = 1;
    run(&sync);
    r = sync, r.zero = 3, r.no_sharing = 1;
    expect_equal(&sync, r);
    assert_memory_equal(first[0].running, first[1].running, sizeof first[0].running);
    assert_string_not_equal(first[0].digest, first[1].digest);
}

/* Ranks of axis tp have nothing to divide: each computes what one rank does. */
static void tensor_ranks(void **state)
{
    (void)state;
    struct run one = base("cpu", KUMI_F32), r;
    one.depth = 20, one.micro = one.k = 1, one.to = 2;
    run(&one);
    r = one, r.tp = 2, r.no_sharing = 1;
    for (r.n = 2; r.n <= 4; r.n += 2, r.zero = 2)
        expect_equal(&one, r);
}

/* An odd tree: three shards, whose mean is no power of two. */
static void three_shards(void **state)
{
    (void)state;
    struct run one = base("cpu", KUMI_F32), r;
    one.v = 3;
    run(&one);
    r = one;
    r.n = 3;
    expect_equal(&one, r);
}

/*
 * Statistics over all ranks: two ranks of two samples are one of four, to rounding (the sums' order
 * differs), and nothing like two samples each; other layouts give equal bits.
 */
static void synchronised(void **state)
{
    (void)state;
    struct run whole = base("ref", KUMI_F64), two = whole, r;
    whole.v = 1, whole.micro = 4, whole.k = 1;
    two.v = two.n = 2, two.micro = 2, two.k = 1;
    two.sync = 1;
    run(&whole);
    run(&two);
    for (int s = 0; s < n_steps(); s++)
        if (!(fabs(whole.loss[s] - two.loss[s]) < 1e-9))
            fail_msg("step %d: loss %.17g, expected %.17g", s, two.loss[s], whole.loss[s]);
    for (int i = 0; i < 2; i++)
        if (!(fabs(whole.running[i] - two.running[i]) < 1e-11))
            fail_msg("running %d: %.17g, expected %.17g", i, two.running[i], whole.running[i]);
    assert_int_equal(two.tracked, n_steps() * two.k);
    r = two, r.sync = 0;
    run(&r);
    assert_true(fabs(whole.loss[1] - r.loss[1]) > 1e-3);
    r = two, r.no_sharing = 1, r.no_overlap = 1;
    expect_equal(&two, r);
    for (r.zero = 1; r.zero <= 3; r.zero++)
        expect_equal(&two, r);
    two.device = "cpu", two.compute = KUMI_F32;
    run(&two);
    r = two, r.threads = 2, r.bucket_bytes = 1000, r.recompute = KU_RECOMPUTE_FULL;
    expect_equal(&two, r);
}

/* Buffers are in checkpoints: stopped on two ranks and resumed on four, the bits of a run that was
 * not stopped. */
static void check_resumed(struct run whole)
{
    char dir[] = "/tmp/kumi-test-XXXXXX", path[64];
    struct run first = whole, second = whole;
    const int at = n_steps() / 2;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/step-%08d", dir, at);
    run(&whole);
    first.n = 2, first.to = at, first.save = dir;
    run(&first);
    assert_int_equal(first.tracked, at * first.k);
    second.n = 4, second.from = at, second.load = path;
    run(&second);
    assert_int_equal(second.tracked, whole.tracked);
    assert_string_equal(second.digest, whole.digest);
    assert_memory_equal(&second.eval_loss, &whole.eval_loss, 8);
    second.no_sharing = 1; /* buffers on every rank, parameters in blocks */
    for (second.zero = 1; second.zero <= 3; second.zero++) {
        run(&second);
        assert_string_equal(second.digest, whole.digest);
        assert_memory_equal(&second.eval_loss, &whole.eval_loss, 8);
    }
    second.zero = 1, second.no_sharing = 0, second.has_hosts = 1; /* buffers on every host */
    run(&second);
    assert_string_equal(second.digest, whole.digest);
    ku_os_rmtree(dir);
}

static void resumed(void **state)
{
    (void)state;
    check_resumed(base("cpu", KUMI_F32));
    check_resumed(of_modules(KUMI_F32));
}

/* One rank per shard: the shard is what is normalised together. */
static void sync_is_refused(void **state)
{
    (void)state;
    struct run r = base("cpu", KUMI_F32);
    r.sync = 1, r.n = 2;
    assert_int_equal(ku_comm_threads(r.n, NULL, rank_main, &r), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "ranks: 2, train.virtual_shards: 4"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_f32),        cmocka_unit_test(cpu_bf16),
        cmocka_unit_test(cpu_f16),        cmocka_unit_test(by_micro),
        cmocka_unit_test(ref_f64),        cmocka_unit_test(tensor_ranks),
        cmocka_unit_test(three_shards),   cmocka_unit_test(synchronised),
        cmocka_unit_test(resumed),        cmocka_unit_test(modules),
        cmocka_unit_test(sync_is_refused)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
