/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PEER_H
#define TESTS_PEER_H

/*
 * Runs of kumi held to runs of PyTorch that a fixture wrote down: FIXTURES/MODEL/train.json is the
 * configuration, model.safetensors the model before training (model.path), expected.json and
 * gradients.safetensors what PyTorch says. The truth is PyTorch in f64.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "ckpt/safetensors.h"
#include "comm/world.h"
#include "train/session.h"

#include "gradients.h"
#include "host.h"
#include "sample.h"

#ifndef PEER_STEPS
#define PEER_STEPS 10 /* of the fixture's runs */
#endif
enum {
    STEPS = PEER_STEPS,
    MAX_SETS = 8,
    SET_BYTES = 256,
    MAX_EXPECTED_BYTES = 1 << 20,
    MAX_PARAMS = 256
};
static const double beta1 = 0.9;

/* Of the fixture's steps, as many as a run makes. */
static int n_steps(void)
{
    return sample_count(STEPS, 2);
}

/* What PyTorch says of one model. */
struct expected {
    double loss[STEPS], norm[STEPS], loss_f32[STEPS], norm_f32[STEPS], gradient_f32;
    double logits_f32; /* greatest error of a logit; 0: the fixture has none */
};

struct run {
    const char *model;
    int n, k; /* ranks, micro-batches of each */
    const char *device, *compute;
    const char *other;     /* one more setting; NULL: none */
    const char *plan;      /* parallel.plan; NULL: none */
    int steps;             /* 0: all */
    const char *gradients; /* what first gradients are held against: NULL: gradients.safetensors;
                              "": they are not */
    /* results */
    double loss[STEPS], norm[STEPS], gradient;
    char worst[96]; /* the parameter with the worst gradient */
};

/* What a test adds: data of its own, opened before the programs are compiled, and a step's rows. */
static int open_data(struct ku_session *s, struct ku_job *job, const char *model,
                     struct ku_st *data);
static int fill(struct ku_session *s, const struct run *r, const struct ku_st *data, int step);

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
    e->logits_f32 = json_number_value(ku_json_at(doc.root, "logits_error_f32"));
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
    if (r->plan)
        snprintf(text[n++], SET_BYTES, "parallel.plan=%s", r->plan);
    return ku_session_configure(s, path, set, n, NULL, r->n);
}

static int open_fixture(const char *model, const char *file, struct ku_st *st)
{
    char path[512];
    snprintf(path, sizeof path, FIXTURES "/%s/%s", model, file);
    return ku_st_open(path, st);
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
    KU_TRY(open_fixture(r->model, r->gradients ? r->gradients : "gradients.safetensors", &file));
    int status = compare_gradients(s->t, &file, 1 / ((1 - beta1) * fmin(1, factor)), r);
    ku_st_close(&file);
    return status;
}

static int train(struct ku_session *s, struct ku_job *job, const struct ku_st *data, struct run *r)
{
    KU_TRY(ku_session_create_trainer(s, job));
    KU_TRY(ku_session_first_state(s));
    for (int step = 0; step < (r->steps ? r->steps : n_steps()); step++) {
        const double *report;
        KU_TRY(fill(s, r, data, step));
        KU_TRY(ku_trainer_step(s->t, step, &report));
        if (job->rank == 0) {
            r->loss[step] = report[KU_REPORT_LOSS];
            r->norm[step] = report[KU_REPORT_NORM];
        }
        if (job->rank == 0 && step == 0 && (r->gradients == NULL || r->gradients[0]))
            KU_TRY(check_gradients(s, r)); /* others may start to compute: the step's end waits */
    }
    return KUMI_OK;
}

static int rank_main(struct ku_job *job, void *arg)
{
    struct ku_session s = {0};
    struct run *r = arg;
    struct ku_st data = {0};
    int status = configure(&s, r);
    if (status == KUMI_OK)
        status = open_data(&s, job, r->model, &data);
    if (status == KUMI_OK)
        status = train(&s, job, &data, r);
    ku_session_fini(&s);
    ku_st_close(&data);
    return status;
}

static void run(struct run *r)
{
    if (ku_comm_threads(r->n, NULL, rank_main, r) < 0)
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

/* f32: steps to four times what PyTorch's f32 deviates; first gradients, of which the fixture has
 * one draw, to ten times, and 1e-5 at most. */
static void bounds_of(const char *compute, const struct expected *e, double bound[3])
{
    const int is_f64 = strcmp(compute, "f64") == 0;
    bound[0] = is_f64 ? 1e-12 : 4 * worst_of(e->loss_f32, e->loss, STEPS);
    bound[1] = is_f64 ? 1e-12 : 4 * worst_of(e->norm_f32, e->norm, STEPS);
    bound[2] = is_f64 ? 1e-12 : fmin(10 * e->gradient_f32, 1e-5);
}

static void check_run(struct run r, const struct expected *e, double most[3])
{
    double bound[3];
    bounds_of(r.compute, e, bound);
    run(&r);
    const double error[3] = {worst_of(r.loss, e->loss, n_steps()),
                             worst_of(r.norm, e->norm, n_steps()), r.gradient};
    static const char *const what[3] = {"loss", "norm", "first gradient"};
    for (int i = 0; i < 3; i++) {
        expect_within(&r, what[i], error[i], bound[i]);
        most[i] = fmax(most[i], error[i]);
    }
}

static void check_layouts(const char *const *models, const char *device, const char *compute)
{
    for (int m = 0; models[m]; m++) {
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

/* Tensor parallelism: `tp` ranks divide the layers, on one and two data-parallel ranks. plan: NULL:
 * the default one. */
static inline void check_tensor_plan(const char *model, int tp, const char *plan,
                                     const char *device, const char *compute)
{
    struct expected e;
    char other[64];
    double most[3] = {0};
    read_expected(model, &e);
    snprintf(other, sizeof other, "parallel.tp=%d", tp);
    for (int layout = 0; layout < 3; layout++)
        check_run((struct run){.model = model,
                               .n = tp * (1 + layout % 2),
                               .k = 1 + layout / 2,
                               .device = device,
                               .compute = compute,
                               .other = other,
                               .plan = plan},
                  &e, most);
    print_message("%-14s%s on %s, tp %d: loss %.2e  norm %.2e  first gradient %.2e\n", model,
                  compute, device, tp, most[0], most[1], most[2]);
}

static inline void check_tensor(const char *model, int tp, const char *device, const char *compute)
{
    check_tensor_plan(model, tp, NULL, device, compute);
}

static void check_older_cpus(const char *const *models)
{
    for (int m = 0; models[m]; m++)
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

/* The bounds of f32 see a run that is not PyTorch's, after all of its steps. */
static void check_sees(const char *model, const char *other)
{
    struct expected e;
    double bound[3];
    struct run r = {
        .model = model, .n = 1, .k = 1, .device = "cpu", .compute = "f32", .other = other};
    read_expected(model, &e);
    bounds_of("f32", &e, bound);
    run(&r);
    if (worst_of(r.loss, e.loss, STEPS) <= bound[0] && worst_of(r.norm, e.norm, STEPS) <= bound[1])
        fail_msg("%s, %s: not seen", model, other);
}

#endif
