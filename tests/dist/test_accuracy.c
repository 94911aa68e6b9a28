/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A classifier's metrics, against counts made here from its parameters: training's over a batch,
 * evaluation's over several of which the last is padded; smoothed labels in training alone; equal
 * bits on any number of ranks. tsan
 */
#include "dist.h"

#include <math.h>

#include "kumi/model.h"
#include "tensor/dtype.h"

enum { N_BATCH = 16, N_IN = 6, N_HIDDEN = 9, N_CLASSES = 7, N_EVAL = 39, N_STEPS = 5 };
static const double smoothing = 0.2;

struct figures {
    double loss, accuracy, top5;
};
struct accuracy_case {
    int n, optimizer;
    const char *device;
    struct figures train, val, want_train, want_val;
    char digest[72];
};

static double pixel(int64_t sample, int64_t i)
{
    return (double)ku_random_normal(3, 0, 1, (uint64_t)(sample * N_IN + i));
}
static int32_t label(int64_t sample)
{
    if (sample % 5 == 4 || sample >= N_EVAL)
        return -100;
    return (int32_t)(ku_random_u32(4, 0, 1, (uint64_t)sample) % N_CLASSES);
}

static void fill(struct ku_trainer *t, enum ku_trainer_program p, int64_t from)
{
    size_t row;
    for (int u = 0; u < ku_trainer_n_micro(t); u++) {
        int64_t first, n = ku_trainer_rows(t, u, &first);
        float *images = host_of(ku_trainer_port(t, p, "images", u, &row));
        int32_t *targets = host_of(ku_trainer_port(t, p, "targets", u, &row));
        for (int64_t r = 0; r < n; r++) {
            for (int64_t i = 0; i < N_IN; i++)
                images[r * N_IN + i] = (float)pixel(from + first + r, i);
            targets[r] = label(from + first + r);
        }
    }
}

static double at(const struct ku_trainer *t, const char *name, int64_t i)
{
    for (int k = 0; k < t->n_tensors; k++)
        if (strcmp(t->tensor[k].name, name) == 0)
            return dist_element(&t->tensor[k], i);
    fail_msg("no %s", name);
    return 0;
}

static void logits_of(const struct ku_trainer *t, int64_t sample, double z[N_CLASSES])
{
    double h[N_HIDDEN];
    for (int f = 0; f < N_HIDDEN; f++) {
        h[f] = at(t, "layers.0.bias", f);
        for (int i = 0; i < N_IN; i++)
            h[f] += at(t, "layers.0.weight", f * N_IN + i) * pixel(sample, i);
        h[f] = h[f] > 0 ? h[f] : 0;
    }
    for (int v = 0; v < N_CLASSES; v++) {
        z[v] = at(t, "layers.1.bias", v);
        for (int f = 0; f < N_HIDDEN; f++)
            z[v] += at(t, "layers.1.weight", v * N_HIDDEN + f) * h[f];
    }
}

/* Samples [from, to), with the present parameters. */
static struct figures count(const struct ku_trainer *t, int64_t from, int64_t to, double s)
{
    struct figures sum = {0};
    double n = 0;
    for (int64_t k = from; k < to; k++) {
        double z[N_CLASSES], total = 0, mean = 0;
        int32_t y = label(k);
        int n_before = 0;
        if (y < 0)
            continue;
        logits_of(t, k, z);
        for (int v = 0; v < N_CLASSES; v++) {
            total += exp(z[v]);
            mean += z[v] / N_CLASSES;
            n_before += z[v] > z[y];
        }
        sum.loss += log(total) - (1 - s) * z[y] - s * mean;
        sum.accuracy += n_before < 1;
        sum.top5 += n_before < 5;
        n++;
    }
    return (struct figures){sum.loss / n, sum.accuracy / n, sum.top5 / n};
}

static int create(struct ku_job *job, const struct accuracy_case *c, struct ku_trainer **t)
{
    struct kumi_graph *builder;
    struct ku_graph *g;
    struct kumi_mlp m;
    struct dist_case layout = {
        .n = c->n, .v = 4, .micro = 2, .k = 2, .device = c->device, .optimizer = c->optimizer};
    struct ku_trainer_opts o = {.device = ku_device_find(c->device), .seed = 1};
    struct kumi_shape_of_batch batch = {.n = N_BATCH, .t = 1};
    kumi_mlp_defaults(&m);
    m.n_input = 2, m.input[0] = 2, m.input[1] = 3;
    m.n_hidden = 1, m.hidden[0] = N_HIDDEN, m.num_classes = N_CLASSES;
    KU_TRY(kumi_graph_create(&builder));
    int status = kumi_mlp_build(builder, &m, &batch);
    if (status == KUMI_OK)
        status = ku_builder_take(builder, &g);
    kumi_graph_destroy(builder);
    KU_TRY(status);
    dist_smooth(g, smoothing);
    o.device_opts = (struct ku_device_opts){.n_threads = 1, .isa = ku_cpu_isa()};
    o.compile = dist_compile_opts(&layout);
    return ku_trainer_create(job, &g, 1, &o, t);
}

static int train(struct ku_job *job, void *arg)
{
    struct accuracy_case *c = arg;
    struct ku_trainer *t = NULL;
    const double *report = NULL;
    struct figures got = {0}, val = {0};
    KU_TRY(create(job, c, &t));
    KU_TRY(ku_trainer_init_state(t));
    for (int step = 0; step < N_STEPS; step++) {
        fill(t, KU_PROG_TRAIN, 0);
        if (job->rank == 0 && step == N_STEPS - 1 && job->n == 1)
            c->want_train = count(t, 0, N_BATCH, smoothing);
        KU_TRY(ku_trainer_step(t, step, &report));
    }
    got.loss = report[KU_REPORT_LOSS];
    KU_TRY(ku_trainer_metric(t, "accuracy", 0, &got.accuracy));
    KU_TRY(ku_trainer_metric(t, "top5", 0, &got.top5));
    ku_trainer_eval_begin(t);
    for (int64_t from = 0; from < N_EVAL; from += N_BATCH) {
        fill(t, KU_PROG_EVAL, from);
        KU_TRY(ku_trainer_eval_run(t));
    }
    val.loss = ku_trainer_eval_loss(t);
    KU_TRY(ku_trainer_metric(t, "accuracy", 1, &val.accuracy));
    KU_TRY(ku_trainer_metric(t, "top5", 1, &val.top5));
    if (ku_trainer_metric(t, "nothing", 1, &val.top5) != KUMI_EINVAL)
        return KUMI_EBUG;
    if (job->rank == 0) {
        c->train = got, c->val = val;
        c->want_val = count(t, 0, N_EVAL, 0);
        KU_TRY(ku_trainer_digest(t, 0, c->digest));
    }
    ku_trainer_destroy(t);
    return KUMI_OK;
}

static void run(struct accuracy_case *c)
{
    if (ku_comm_threads(c->n, NULL, train, c) < 0)
        fail_msg("n=%d: %s", c->n, ku_err_get()->text);
}

static void expect(const char *what, const struct figures *got, const struct figures *want)
{
    /* counts are exact; a loss of f32 logits, of 15 roundings at most, near 2 */
    if (fabs(got->loss - want->loss) > 1e-5 || got->accuracy != want->accuracy ||
        got->top5 != want->top5)
        fail_msg("%s: loss %.9g, accuracy %.9g, top5 %.9g; expected %.9g, %.9g, %.9g", what,
                 got->loss, got->accuracy, got->top5, want->loss, want->accuracy, want->top5);
}

static void check(const char *device, int optimizer)
{
    struct accuracy_case one = {.n = 1, .device = device, .optimizer = optimizer};
    run(&one);
    expect("a step", &one.train, &one.want_train);
    expect("the evaluation", &one.val, &one.want_val);
    assert_true(one.val.accuracy > 0 && one.val.accuracy < one.val.top5 && one.val.top5 < 1);
    for (int n = 2; n <= 4; n *= 2) {
        struct accuracy_case c = {.n = n, .device = device, .optimizer = optimizer};
        run(&c);
        assert_memory_equal(&c.train, &one.train, sizeof c.train);
        assert_memory_equal(&c.val, &one.val, sizeof c.val);
        assert_string_equal(c.digest, one.digest);
    }
}

static void on_cpu(void **state)
{
    (void)state;
    check("cpu", KU_OP_lamb);
    check("cpu", KU_OP_sgd);
}
static void on_ref(void **state)
{
    (void)state;
    check("ref", KU_OP_lars);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_cpu), cmocka_unit_test(on_ref)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
