/* SPDX-License-Identifier: Apache-2.0 */
/* links: train */
/*
 * Llama and BERT against Hugging Face's with torch.optim.AdamW, as tools/fixtures/transformers
 * wrote down. The truth is PyTorch in f64. Weights come through model.path; the ports are filled
 * from data.safetensors, whatever kind of data would give them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "dist/gradients.h"

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "ckpt/safetensors.h"
#include "train/infer.h"
#include "train/session.h"

#define FIXTURES KUMI_SOURCE_DIR "/tests/fixtures/transformers"

enum { STEPS = 10, MAX_SETS = 8, SET_BYTES = 256, MAX_EXPECTED_BYTES = 1 << 20, MAX_PARAMS = 128 };
static const double beta1 = 0.9;
static const char *const models[] = {"llama-tied", "llama-untied", "llama3", "llama-dynamic",
                                     "bert"};
enum { N_MODELS = sizeof models / sizeof models[0] };

/* What PyTorch says of one model. */
struct expected {
    double loss[STEPS], norm[STEPS], loss_f32[STEPS], norm_f32[STEPS], gradient_f32;
};

struct run {
    const char *model;
    int n, k; /* ranks, micro-batches of each */
    const char *device, *compute;
    const char *other; /* one more setting; NULL: none */
    /* results */
    double loss[STEPS], norm[STEPS], gradient;
    char worst[96]; /* the parameter with the worst gradient */
};

static void numbers(json_t *doc, const char *path, double out[STEPS])
{
    json_t *v = ku_json_at(doc, path);
    assert_int_equal(json_array_size(v), STEPS);
    for (size_t i = 0; i < STEPS; i++)
        out[i] = json_number_value(json_array_get(v, i));
}

static void read_expected(const char *model, struct expected *e)
{
    char path[512];
    struct ku_json doc;
    snprintf(path, sizeof path, FIXTURES "/%s/expected.json", model);
    if (ku_json_load(path, MAX_EXPECTED_BYTES, &doc) < 0)
        fail_msg("%s", ku_err_get()->text);
    numbers(doc.root, "f64.loss", e->loss);
    numbers(doc.root, "f64.norm", e->norm);
    numbers(doc.root, "f32.loss", e->loss_f32);
    numbers(doc.root, "f32.norm", e->norm_f32);
    e->gradient_f32 = json_number_value(ku_json_at(doc.root, "gradient_error_f32"));
    ku_json_fini(&doc);
}

/* -- one run ---------------------------------------------------------------------------------- */

static int configure(struct ku_session *s, const struct run *r)
{
    char path[512], text[MAX_SETS][SET_BYTES];
    const char *set[MAX_SETS];
    int n = 0;
    for (int i = 0; i < MAX_SETS; i++)
        set[i] = text[i];
    snprintf(path, sizeof path, FIXTURES "/%s/train.json", r->model);
    snprintf(text[n++], SET_BYTES, "model.path=" FIXTURES "/%s", r->model);
    snprintf(text[n++], SET_BYTES, "train.accumulation=%d", r->k);
    snprintf(text[n++], SET_BYTES, "parallel.device=%s", r->device);
    snprintf(text[n++], SET_BYTES, "precision.compute=%s", r->compute);
    snprintf(text[n++], SET_BYTES, "train.threads=%d", strcmp(r->device, "cpu") == 0 ? r->k : 1);
    if (r->other)
        snprintf(text[n++], SET_BYTES, "%s", r->other);
    return ku_session_configure(s, path, set, n, NULL, r->n);
}

static int open_fixture(const char *model, const char *file, struct ku_st *st)
{
    char path[512];
    snprintf(path, sizeof path, FIXTURES "/%s/%s", model, file);
    return ku_st_open(path, st);
}

/* A step's rows of every port that the fixture has. */
static int fill(struct ku_session *s, const struct ku_st *data, int step)
{
    const int64_t first_row = step * s->batch.global_batch;
    for (int u = 0; u < ku_trainer_n_micro(s->t); u++) {
        int64_t first, n = ku_trainer_rows(s->t, u, &first);
        for (int i = 0; i < data->n; i++) {
            const struct ku_st_tensor *t = &data->tensor[i];
            size_t row_bytes, row = (size_t)(t->bytes / (uint64_t)t->dim[0]);
            void *to = ku_trainer_port(s->t, KU_PROG_TRAIN, t->name, u, &row_bytes);
            if (to == NULL || row != row_bytes)
                return KU_ERR(KUMI_EINPUT, "%s: the model has no such port", t->name);
            KU_TRY(ku_st_read_bytes(data, t, (uint64_t)(first_row + first) * row, to,
                                    (size_t)n * row));
        }
    }
    return KUMI_OK;
}

/* The greatest error of a parameter's gradient over its norm, or 1e-3 of the norm of all: some
 * gradients are 0 but for rounding (a bias of keys moves no softmax). */
static int compare_gradients(const struct ku_trainer *t, const struct ku_st *file, double scale,
                             struct run *r)
{
    double sum[MAX_PARAMS][2], whole = 0;
    if (file->n > MAX_PARAMS || file->n != t->n_params)
        return KU_ERR(KUMI_EINPUT, "%s: %d gradients, %d parameters", file->path, file->n,
                      t->n_params);
    for (int i = 0; i < file->n; i++) {
        const struct ku_ckpt_tensor *m = first_moment(t, file->tensor[i].name);
        if (m == NULL || !ku_st_is_same_shape(&file->tensor[i], m))
            return KU_ERR(KUMI_EINPUT, "%s: %s: no such parameter, or another shape", file->path,
                          file->tensor[i].name);
        KU_TRY(compare_gradient(file, &file->tensor[i], m, scale, sum[i]));
        whole += sum[i][1];
    }
    r->gradient = 0;
    for (int i = 0; i < file->n; i++) {
        double error = sqrt(sum[i][0]) / fmax(sqrt(sum[i][1]), 1e-3 * sqrt(whole));
        if (!(error <= r->gradient)) { /* also NaN */
            r->gradient = error;
            snprintf(r->worst, sizeof r->worst, "%s", file->tensor[i].name);
        }
    }
    return KUMI_OK;
}

static int check_gradients(const struct ku_session *s, struct run *r)
{
    struct ku_st file;
    double clip = s->cfg.train_clip_norm, factor = clip > 0 ? clip / (r->norm[0] + 1e-6) : 1;
    KU_TRY(open_fixture(r->model, "gradients.safetensors", &file));
    int status = compare_gradients(s->t, &file, 1 / ((1 - beta1) * fmin(1, factor)), r);
    ku_st_close(&file);
    return status;
}

static int train(struct ku_session *s, struct ku_job *job, const struct ku_st *data, struct run *r)
{
    KU_TRY(configure(s, r));
    KU_TRY(ku_session_create_trainer(s, job));
    KU_TRY(ku_session_first_state(s));
    for (int step = 0; step < STEPS; step++) {
        const double *report;
        KU_TRY(fill(s, data, step));
        KU_TRY(ku_trainer_step(s->t, step, &report));
        if (job->rank == 0) {
            r->loss[step] = report[KU_REPORT_LOSS];
            r->norm[step] = report[KU_REPORT_NORM];
        }
        if (job->rank == 0 && step == 0)
            KU_TRY(check_gradients(s, r)); /* others may start to compute: the step's end waits */
    }
    return KUMI_OK;
}

static int rank_main(struct ku_job *job, void *arg)
{
    struct ku_session s = {0};
    struct run *r = arg;
    struct ku_st data;
    KU_TRY(open_fixture(r->model, "data.safetensors", &data));
    int status = train(&s, job, &data, r);
    ku_session_fini(&s);
    ku_st_close(&data);
    return status;
}

static void run(struct run *r)
{
    if (ku_job_threads(r->n, NULL, rank_main, r) < 0)
        fail_msg("%s, %s on %s, %d ranks: %s", r->model, r->compute, r->device, r->n,
                 ku_err_get()->text);
}

/* -- checks ----------------------------------------------------------------------------------- */

static double worst_of(const double *got, const double *want, int n)
{
    double worst = 0;
    for (int i = 0; i < n; i++) {
        double error = fabs(got[i] - want[i]) / fabs(want[i]);
        worst = error <= worst ? worst : error; /* NaN stays */
    }
    return worst;
}

static void expect_within(const struct run *r, const char *what, double error, double bound)
{
    if (!(error <= bound))
        fail_msg("%s, %s on %s, %d ranks, k %d: %s: %.3g, more than %.3g (%s)", r->model,
                 r->compute, r->device, r->n, r->k, what, error, bound, r->worst);
}

/* f32: first gradients to 1e-5, the ten steps to four times what PyTorch's f32 deviates. */
static void bounds_of(const char *compute, const struct expected *e, double bound[3])
{
    const int is_f64 = strcmp(compute, "f64") == 0;
    bound[0] = is_f64 ? 1e-11 : 4 * worst_of(e->loss_f32, e->loss, STEPS);
    bound[1] = is_f64 ? 1e-11 : 4 * worst_of(e->norm_f32, e->norm, STEPS);
    bound[2] = is_f64 ? 1e-11 : 1e-5;
}

static void check_run(struct run r, const struct expected *e, double most[3])
{
    double bound[3];
    bounds_of(r.compute, e, bound);
    run(&r);
    const double error[3] = {worst_of(r.loss, e->loss, STEPS), worst_of(r.norm, e->norm, STEPS),
                             r.gradient};
    static const char *const what[3] = {"loss", "norm", "first gradient"};
    for (int i = 0; i < 3; i++) {
        expect_within(&r, what[i], error[i], bound[i]);
        most[i] = fmax(most[i], error[i]);
    }
}

static void check_layouts(const char *device, const char *compute)
{
    for (int m = 0; m < N_MODELS; m++) {
        struct expected e;
        double most[3] = {0};
        read_expected(models[m], &e);
        for (int layout = 0; layout < 4; layout++)
            check_run((struct run){.model = models[m],
                                   .n = 1 + layout % 2,
                                   .k = 1 + layout / 2,
                                   .device = device,
                                   .compute = compute},
                      &e, most);
        print_message("%-14s%s on %s: loss %.2e  norm %.2e  first gradient %.2e (PyTorch's f32 "
                      "%.2e %.2e %.2e)\n",
                      models[m], compute, device, most[0], most[1], most[2],
                      worst_of(e.loss_f32, e.loss, STEPS), worst_of(e.norm_f32, e.norm, STEPS),
                      e.gradient_f32);
    }
}

static void f32(void **state)
{
    (void)state;
    check_layouts("cpu", "f32");
    check_layouts("ref", "f32");
}

static void older_cpus(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++)
        for (enum ku_isa isa = KU_ISA_BASE; isa < ku_cpu_isa(); isa++) {
            struct expected e;
            char other[64];
            double most[3] = {0};
            read_expected(models[m], &e);
            snprintf(other, sizeof other, "parallel.isa=%s", ku_cpu_isa_name(isa));
            check_run((struct run){.model = models[m],
                                   .n = 1,
                                   .k = 1,
                                   .device = "cpu",
                                   .compute = "f32",
                                   .other = other},
                      &e, most);
        }
}

/* Parameters, moments, gradients and their sums are f64 then: f32 anywhere would show as 1e-8. */
static void ref_f64(void **state)
{
    (void)state;
    check_layouts("ref", "f64");
}

/* -- logits of the first two rows, at every position ------------------------------------------ */

static int compare_logits(struct ku_infer *m, const struct ku_st *data, const struct ku_st *truth,
                          double *worst)
{
    const struct ku_st_tensor *tokens = ku_st_find(data, "tokens"), *t = &truth->tensor[0];
    const int64_t n_tokens = t->dim[1], vocab = t->dim[2];
    double want[256], got[256];
    for (int64_t row = 0; row < t->dim[0]; row++)
        for (int64_t n = 1; n <= n_tokens; n++) {
            uint32_t token[64];
            double error = 0, size = 0;
            assert_true(n_tokens <= 64 && vocab <= 256);
            KU_TRY(ku_st_read_bytes(data, tokens, (uint64_t)(row * n_tokens * 4), token,
                                    (size_t)n * 4));
            KU_TRY(ku_st_read_bytes(truth, t, (uint64_t)((row * n_tokens + n - 1) * vocab * 8),
                                    want, (size_t)vocab * 8));
            KU_TRY(ku_infer_prompt(m, &(struct ku_infer_text){token, n}, got));
            for (int64_t v = 0; v < vocab; v++) {
                error = fmax(error, fabs(got[v] - want[v]));
                size = fmax(size, fabs(want[v]));
            }
            *worst = fmax(*worst, error / size);
        }
    return KUMI_OK;
}

struct question {
    const char *model, *device;
    enum kumi_dtype compute;
    double worst;
};
static int ask(struct ku_job *job, void *arg)
{
    struct question *q = arg;
    struct ku_session s = {0};
    struct ku_infer *m = NULL;
    struct ku_st data, truth;
    struct run r = {.model = q->model, .n = 1, .k = 1, .device = "ref", .compute = "f32"};
    char dir[512];
    int status;
    snprintf(dir, sizeof dir, FIXTURES "/%s", q->model);
    KU_TRY(open_fixture(q->model, "data.safetensors", &data));
    KU_TRY(open_fixture(q->model, "logits.safetensors", &truth));
    KU_TRY_OUT(configure(&s, &r));
    struct ku_infer_opts o = {.compute = q->compute,
                              .device = ku_device_find(q->device),
                              .device_opts = {.n_threads = 1, .isa = ku_cpu_isa()},
                              .n_rows = 1,
                              .max_tokens = truth.tensor[0].dim[1]};
    KU_TRY_OUT(ku_infer_create(job, &s.model, dir, &o, &m));
    KU_TRY_OUT(compare_logits(m, &data, &truth, &q->worst));
out:
    ku_infer_destroy(m);
    ku_session_fini(&s);
    ku_st_close(&data);
    ku_st_close(&truth);
    return status;
}

static void logits(void **state)
{
    /* not the dynamic one: its frequencies follow the length of the whole text */
    static const struct {
        const char *device;
        enum kumi_dtype compute;
        double bound;
    } row[] = {{"ref", KUMI_F64, 1e-11}, {"cpu", KUMI_F32, 2e-6}};
    (void)state;
    for (int m = 0; m < 3; m++)
        for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
            struct question q = {models[m], row[i].device, row[i].compute, 0};
            if (ku_job_threads(1, NULL, ask, &q) < 0)
                fail_msg("%s: %s", models[m], ku_err_get()->text);
            if (!(q.worst <= row[i].bound))
                fail_msg("%s on %s: logits off by %.3g", models[m], row[i].device, q.worst);
        }
}

/* These bounds see a run that is not PyTorch's. */
static void sees_differences(void **state)
{
    static const struct {
        const char *model, *other;
    } row[] = {
        {"llama-tied", "optimizer.lr=1.001e-3"},
        {"llama-tied", "model.rms_norm_eps=2e-5"},
        {"llama-tied", "model.rope_theta=10010"},
        {"llama-untied", "model.rope_scaling={\"rope_type\":\"linear\",\"factor\":2.501}"},
        {"llama-dynamic", "model.hidden_act=gelu"},
        {"bert", "model.layer_norm_eps=1e-6"},
        {"bert", "optimizer.decay=all"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct expected e;
        double bound[3];
        struct run r = {.model = row[i].model,
                        .n = 1,
                        .k = 1,
                        .device = "cpu",
                        .compute = "f32",
                        .other = row[i].other};
        read_expected(r.model, &e);
        bounds_of("f32", &e, bound);
        run(&r);
        if (worst_of(r.loss, e.loss, STEPS) <= bound[0] &&
            worst_of(r.norm, e.norm, STEPS) <= bound[1])
            fail_msg("%s, %s: not seen", r.model, r.other);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(f32), cmocka_unit_test(older_cpus),
                                       cmocka_unit_test(ref_f64), cmocka_unit_test(logits),
                                       cmocka_unit_test(sees_differences)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
