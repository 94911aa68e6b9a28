/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
/*
 * Against PyTorch: small residual networks of torchvision's blocks with torch.optim.SGD, as
 * tools/fixtures/resnet wrote down; on one rank, and on two with synchronised statistics, which
 * are those of the whole batch. The truth is PyTorch in f64; f32 is held to four times PyTorch's
 * own distance from it, the most of several orders of summation.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "ckpt/safetensors.h"
#include "kumi/model.h"
#include "nn/builder.h"
#include "tensor/dtype.h"
#include "comm/consensus.h"
#include "comm/world.h"
#include "train/trainer.h"

#include "host.h"
#include "sample.h"

#define FIXTURES KUMI_SOURCE_DIR "/tests/fixtures/resnet"

enum { STEPS = 10, MAX_JSON_BYTES = 1 << 20, MAX_TENSORS = 256 };

struct run {
    const char *name;
    int n; /* ranks: more than one synchronise */
    const char *device;
    enum kumi_dtype compute;
    /* the fixture */
    struct kumi_resnet model;
    int64_t rows;
    double lr, momentum, decay, want_loss[STEPS], want_eval;
    double f32_loss, f32_eval, f32_gradient, f32_running;
    struct ku_st file;
    /* results: worst errors */
    double loss, eval, gradient, logits, running;
    char worst[96]; /* the parameter with the worst gradient */
};

/* -- what make.py computes ---------------------------------------------------------------- */

static double hashed(uint64_t stream, int64_t i)
{
    uint64_t x = (stream << 32) + (uint64_t)i + UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    x ^= x >> 31;
    return (double)(x >> 48) / 32768 - 1;
}
static double weight_of(const struct ku_ckpt_tensor *t, int number, int64_t i)
{
    double v = hashed(1000 + (uint64_t)number, i);
    size_t bytes = strlen(t->name);
    int is_gain = bytes > 6 && strcmp(t->name + bytes - 6, "weight") == 0;
    return t->ndim > 1 ? 0.5 * v : is_gain ? 1 + 0.25 * v : 0.25 * v;
}

/* -- the fixture ------------------------------------------------------------------------------ */

static double number(json_t *doc, const char *path)
{
    json_t *v = ku_json_at(doc, path);
    if (!json_is_number(v) && !json_is_boolean(v))
        fail_msg("%s: no number", path);
    return json_is_boolean(v) ? json_is_true(v) : json_number_value(v);
}
static int is_word(json_t *doc, const char *path, const char *word)
{
    return strcmp(json_string_value(ku_json_at(doc, path)), word) == 0;
}

static void read_model(struct run *r, json_t *doc)
{
    json_t *depths = ku_json_at(doc, "config.depths");
    kumi_resnet_defaults(&r->model);
    for (size_t i = 0; i < json_array_size(depths); i++)
        r->model.depths[i] = (int64_t)json_integer_value(json_array_get(depths, i));
    r->model.bottleneck = (int)number(doc, "config.bottleneck");
    r->model.width = (int64_t)number(doc, "config.width");
    r->model.num_classes = (int64_t)number(doc, "config.num_classes");
    r->model.image_size = (int64_t)number(doc, "config.image_size");
    r->model.stem = is_word(doc, "config.stem", "cifar") ? KUMI_STEM_CIFAR : KUMI_STEM_IMAGENET;
    r->model.shortcut =
        is_word(doc, "config.shortcut", "A") ? KUMI_SHORTCUT_PAD : KUMI_SHORTCUT_PROJECTION;
    r->model.sync_batch_norm = r->n > 1;
    r->rows = (int64_t)number(doc, "config.rows");
}

static void read_fixture(struct run *r)
{
    char path[512];
    struct ku_json doc;
    snprintf(path, sizeof path, FIXTURES "/%s.json", r->name);
    if (ku_json_load(path, MAX_JSON_BYTES, &doc) < 0)
        fail_msg("%s", ku_err_get()->text);
    read_model(r, doc.root);
    r->lr = number(doc.root, "lr");
    r->momentum = number(doc.root, "momentum");
    r->decay = number(doc.root, "weight_decay");
    json_t *loss = ku_json_at(doc.root, "f64.loss");
    assert_int_equal(json_array_size(loss), STEPS);
    for (size_t i = 0; i < STEPS; i++)
        r->want_loss[i] = json_number_value(json_array_get(loss, i));
    r->want_eval = number(doc.root, "f64.eval_loss");
    r->f32_loss = number(doc.root, "f32_error.loss");
    r->f32_eval = number(doc.root, "f32_error.eval_loss");
    r->f32_gradient = number(doc.root, "f32_error.gradient");
    r->f32_running = number(doc.root, "f32_error.running");
    ku_json_fini(&doc);
    snprintf(path, sizeof path, FIXTURES "/%s.safetensors", r->name);
    if (ku_st_open(path, &r->file) < 0)
        fail_msg("%s", ku_err_get()->text);
}

/* -- one run --------------------------------------------------------------------------------- */

/* The loss reads the logits: they become a result. */
static int name_logits(struct ku_graph *g)
{
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].op == KU_OP_softmax_xent)
            return ku_graph_output(g, "logits", ku_in(g, &g->node[n], 0));
    return KUMI_EINVAL;
}

static int create(struct ku_job *job, const struct run *r, struct ku_trainer **t)
{
    struct kumi_graph *builder;
    struct ku_graph *g;
    struct ku_trainer_opts o = {.device = ku_device_find(r->device),
                                .device_opts = {.n_threads = 1, .isa = ku_cpu_isa()}};
    KU_TRY(kumi_graph_create(&builder));
    kumi_resnet_build(builder, &r->model, &(struct kumi_shape_of_batch){.n = r->rows});
    int status = ku_builder_take(builder, &g);
    kumi_graph_destroy(builder);
    KU_TRY(status);
    KU_TRY(name_logits(g));
    o.compile = (struct ku_compile_opts){.compute = r->compute,
                                         .is_training = 1,
                                         .optimizer = KU_OP_sgd,
                                         .rule = ku_attrs_default,
                                         .decay = KU_DECAY_ALL,
                                         .bucket_bytes = 1 << 20,
                                         .first_bucket_bytes = 1 << 20,
                                         .overlap = 1};
    o.compile.rule.lr = r->lr;
    o.compile.rule.momentum = r->momentum;
    o.compile.rule.weight_decay = r->decay;
    for (int a = 0; a < KU_N_AXES; a++)
        o.compile.mesh.extent[a] = 1;
    o.compile.mesh.extent[KU_AX_LOCAL] = r->n;
    return ku_trainer_create(job, &g, 1, &o, t);
}

static void fill(const struct run *r, struct ku_trainer *t, enum ku_trainer_program p, int step)
{
    int64_t pixels = r->model.image_size * r->model.image_size * 3, first;
    int64_t n = ku_trainer_rows(t, 0, &first);
    size_t bytes;
    int32_t *targets = host_of(ku_trainer_port(t, p, "targets", 0, &bytes));
    void *images = host_of(ku_trainer_port(t, p, "images", 0, &bytes));
    enum kumi_dtype dtype = bytes == (size_t)pixels * 8 ? KUMI_F64 : KUMI_F32;
    for (int64_t i = 0; i < n * pixels; i++)
        ku_store_f64(images, dtype, i, hashed(2 * (uint64_t)step + 1, first * pixels + i));
    for (int64_t i = 0; i < n; i++) {
        double word = (hashed(2 * (uint64_t)step + 2, first + i) + 1) * 32768;
        targets[i] = (int32_t)((int64_t)word % r->model.num_classes);
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct ku_ckpt_tensor *const *)a)->name,
                  (*(const struct ku_ckpt_tensor *const *)b)->name);
}
static int is_buffer(const char *name)
{
    return strstr(name, ".running_") || strstr(name, ".num_batches_tracked");
}
static int sorted_params(const struct ku_trainer *t, const struct ku_ckpt_tensor **list)
{
    int n = 0;
    for (int i = 0; i < t->n_tensors; i++)
        if (t->tensor[i].group == KU_CKPT_MODEL && !is_buffer(t->tensor[i].name) && n < MAX_TENSORS)
            list[n++] = &t->tensor[i];
    qsort(list, (size_t)n, sizeof *list, by_name);
    return n;
}
static const struct ku_ckpt_tensor *tensor(const struct ku_trainer *t, const char *name)
{
    for (int i = 0; i < t->n_tensors; i++)
        if (strcmp(t->tensor[i].name, name) == 0)
            return &t->tensor[i];
    return NULL;
}

/* |got - want|^2 and |want|^2 of one tensor of the fixture; got = x - decay * weight. */
static void distance(const struct run *r, const char *name, const void *x, enum kumi_dtype dtype,
                     const struct ku_ckpt_tensor *weight, int number_of_weight, double sum[2])
{
    const struct ku_st_tensor *want = ku_st_find(&r->file, name);
    if (want == NULL)
        fail_msg("%s: no %s", r->name, name);
    double *truth = ku_malloc(want->bytes);
    assert_non_null(truth);
    assert_int_equal(ku_st_read_bytes(&r->file, want, 0, truth, want->bytes), 0);
    sum[0] = sum[1] = 0;
    for (int64_t i = 0; i < want->count; i++) {
        double got = ku_load_f64(x, dtype, i);
        if (weight)
            got -= r->decay * weight_of(weight, number_of_weight, i);
        sum[0] += (got - truth[i]) * (got - truth[i]);
        sum[1] += truth[i] * truth[i];
    }
    ku_free(truth);
}

/* After one step the momentum is the gradient and the decay. */
static void check_first(struct run *r, const struct ku_trainer *t)
{
    const struct ku_ckpt_tensor *list[MAX_TENSORS];
    double sum[MAX_TENSORS][2], whole = 0;
    int n = sorted_params(t, list);
    assert_int_equal(n, t->n_params);
    for (int i = 0; i < n; i++) {
        char name[300];
        snprintf(name, sizeof name, "%s.momentum_buffer", list[i]->name);
        const struct ku_ckpt_tensor *m = tensor(t, name);
        assert_non_null(m);
        snprintf(name, sizeof name, "gradient.%s", list[i]->name);
        distance(r, name, host_tensor(m), m->dtype, list[i], i, sum[i]);
        whole += sum[i][1];
    }
    for (int i = 0; i < n; i++) {
        double error = sqrt(sum[i][0]) / fmax(sqrt(sum[i][1]), 1e-3 * sqrt(whole));
        if (!(error <= r->gradient)) {
            r->gradient = error;
            snprintf(r->worst, sizeof r->worst, "%s", list[i]->name);
        }
    }
    if (r->n > 1) /* a rank's result holds its own rows */
        return;
    const void *logits = host_of(ku_exec_port(t->exec[KU_PROG_TRAIN], 0, "logits"));
    double off[2];
    distance(r, "logits", logits, r->compute, NULL, 0, off);
    r->logits = sqrt(off[0] / off[1]);
}

static void check_running(struct run *r, const struct ku_trainer *t)
{
    int n_seen = 0;
    for (int i = 0; i < r->file.n; i++) {
        const char *name = r->file.tensor[i].name;
        double off[2];
        if (strstr(name, ".running_") == NULL)
            continue;
        const struct ku_ckpt_tensor *x = tensor(t, name);
        assert_non_null(x);
        distance(r, name, host_tensor(x), x->dtype, NULL, 0, off);
        r->running = fmax(r->running, sqrt(off[0] / off[1]));
        n_seen++;
    }
    assert_true(n_seen >= 6);
}

static int rank_main(struct ku_job *job, void *arg)
{
    struct run *r = arg;
    struct ku_trainer *t = NULL;
    const struct ku_ckpt_tensor *list[MAX_TENSORS];
    KU_TRY(create(job, r, &t));
    KU_TRY(ku_trainer_init_state(t));
    int n = sorted_params(t, list);
    for (int i = 0; i < n && job->rank == 0; i++)
        for (int64_t k = 0; k < ku_ckpt_tensor_count(list[i]); k++)
            ku_store_f64(host_tensor(list[i]), list[i]->dtype, k, weight_of(list[i], i, k));
    KU_TRY(ku_agree_worst(job, KUMI_OK)); /* written before any rank reads */
    KU_TRY(ku_trainer_derive(t));
    for (int step = 0; step < STEPS; step++) {
        const double *report;
        fill(r, t, KU_PROG_TRAIN, step);
        KU_TRY(ku_trainer_step(t, step, &report));
        if (job->rank == 0)
            r->loss = fmax(r->loss, fabs(report[KU_REPORT_LOSS] / r->want_loss[step] - 1));
        if (job->rank == 0 && step == 0)
            check_first(r, t);
    }
    ku_trainer_eval_begin(t);
    fill(r, t, KU_PROG_EVAL, 0);
    KU_TRY(ku_trainer_eval_run(t));
    if (job->rank == 0) {
        r->eval = fabs(ku_trainer_eval_loss(t) / r->want_eval - 1);
        check_running(r, t);
    }
    ku_trainer_destroy(t);
    return KUMI_OK;
}

/* -- checks --------------------------------------------------------------------------------- */

static void within(const struct run *r, const char *what, double error, double bound)
{
    if (!(error <= bound))
        fail_msg("%s, %s on %s, %d ranks: %s: %.3g, more than %.3g; %s", r->name,
                 kumi_dtype_name(r->compute), r->device, r->n, what, error, bound, r->worst);
}

static const char *const models[] = {"basic-imagenet", "basic-cifar", "bottleneck-imagenet",
                                     "bottleneck-cifar"};
enum { N_MODELS = 4 };

/* Of each model one run, and of each way to compute. */
static int is_taken(int model, const char *device, enum kumi_dtype compute, int n)
{
    static struct sample s = {.address = 16};
    const int way = (strcmp(device, "cpu") == 0) * 2 + (compute == KUMI_F64);
    return sample_takes(&s, (model * 4 + way) * 2 + n - 1, model, N_MODELS + way * 2 + n - 1);
}

static void check(int model, const char *device, enum kumi_dtype compute, int n)
{
    struct run r = {.name = models[model], .n = n, .device = device, .compute = compute};
    if (!is_taken(model, device, compute, n))
        return;
    read_fixture(&r);
    if (ku_comm_threads(r.n, NULL, rank_main, &r) < 0)
        fail_msg("%s, %d ranks: %s", r.name, r.n, ku_err_get()->text);
    ku_st_close(&r.file);
    print_message("%-20s %s on %s, %d ranks: loss %.1e of PyTorch's %.1e, gradient %.1e %.1e, "
                  "running %.1e %.1e, logits %.1e, evaluation %.1e\n",
                  r.name, kumi_dtype_name(compute), device, n, r.loss, r.f32_loss, r.gradient,
                  r.f32_gradient, r.running, r.f32_running, r.logits, r.eval);
    int is_exact = compute == KUMI_F64;
    within(&r, "gradient", r.gradient, is_exact ? 1e-11 : 1e-5);
    within(&r, "logits", r.logits, is_exact ? 1e-11 : 1e-5);
    within(&r, "loss", r.loss, is_exact ? 1e-11 : 4 * r.f32_loss);
    within(&r, "running statistics", r.running, is_exact ? 1e-11 : 4 * r.f32_running);
    within(&r, "loss in evaluation", r.eval, is_exact ? 1e-11 : 4 * r.f32_eval);
}

static void ref_f64(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++)
        for (int n = 1; n <= 2; n++)
            check(m, "ref", KUMI_F64, n);
}
static void f32(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++)
        for (int n = 1; n <= 2; n++) {
            check(m, "cpu", KUMI_F32, n);
            check(m, "ref", KUMI_F32, n);
        }
}

/* Names and shapes of the whole networks are torchvision's. */
static void torchvision_names(void **state)
{
    static const int64_t depth[] = {18, 34, 50};
    struct ku_json doc;
    (void)state;
    assert_int_equal(ku_json_load(FIXTURES "/names.json", MAX_JSON_BYTES, &doc), 0);
    for (int i = 0; i < 3; i++) {
        struct kumi_resnet c;
        struct kumi_graph *builder;
        struct ku_graph *g;
        char key[16];
        size_t n_seen = 0;
        kumi_resnet_defaults(&c);
        c.depth = depth[i], c.num_classes = 10;
        assert_int_equal(kumi_graph_create(&builder), 0);
        kumi_resnet_build(builder, &c, &(struct kumi_shape_of_batch){.n = 1});
        assert_int_equal(ku_builder_take(builder, &g), 0);
        kumi_graph_destroy(builder);
        snprintf(key, sizeof key, "%d", (int)depth[i]);
        json_t *want = json_object_get(doc.root, key);
        for (ku_id t = 1; t < g->n_tensors; t++) {
            int64_t dim[KU_MAX_DIMS];
            int ndim = ku_tensor_file_shape(g, t, dim);
            json_t *shape = json_object_get(want, g->tensor[t].name);
            if (shape == NULL || json_array_size(shape) != (size_t)ndim)
                fail_msg("resnet%s: %s", key, g->tensor[t].name);
            for (int d = 0; d < ndim; d++)
                assert_int_equal(json_integer_value(json_array_get(shape, (size_t)d)), dim[d]);
            n_seen++;
        }
        assert_int_equal(n_seen, json_object_size(want));
        ku_graph_destroy(g);
    }
    ku_json_fini(&doc);
}

static void refusals(void **state)
{
    static const struct {
        struct kumi_resnet c;
        const char *text;
    } row[] = {
        {{.depth = 19, .num_classes = 2, .num_channels = 3}, "depth: 19"},
        {{.depth = 50, .num_classes = 2, .num_channels = 3, .shortcut = KUMI_SHORTCUT_PAD},
         "shortcut: A;"},
        {{.depth = 18, .num_classes = 0, .num_channels = 3}, "num_classes: 0"},
        {{.depths = {1, 0, 1}, .num_classes = 2, .num_channels = 3}, "stage 2 has 0 blocks"},
        {{.depths = {0, 1}, .num_classes = 2, .num_channels = 3}, "stage 1 has 0 blocks"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct kumi_graph *g;
        assert_int_equal(kumi_graph_create(&g), 0);
        assert_int_equal(kumi_resnet_build(g, &row[i].c, &(struct kumi_shape_of_batch){.n = 2}),
                         KUMI_EINVAL);
        if (strstr(ku_err_get()->text, row[i].text) == NULL)
            fail_msg("%s: not about %s", ku_err_get()->text, row[i].text);
        kumi_graph_destroy(g);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ref_f64), cmocka_unit_test(f32),
                                       cmocka_unit_test(torchvision_names),
                                       cmocka_unit_test(refusals)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
