/* SPDX-License-Identifier: Apache-2.0 */
/* links: train */
/*
 * Against PyTorch: Hugging Face's GPT2LMHeadModel with torch.optim.AdamW, as tools/fixtures/gpt2
 * wrote down. Each run is a user's: train.json, its weights through model.path, raw tokens. The
 * truth is PyTorch in f64; PyTorch's own f32 against it is printed beside kumi's.
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
#include "train/session.h"

#define FIXTURES KUMI_SOURCE_DIR "/tests/fixtures/gpt2"

enum { STEPS = 20, MAX_SETS = 12, SET_BYTES = 256, MAX_EXPECTED_BYTES = 1 << 20 };
static const double beta1 = 0.9;

/* What PyTorch says of one model. */
struct expected {
    double loss[STEPS], norm[STEPS], loss_f32[STEPS], norm_f32[STEPS];
    double sensitivity[STEPS];
    double clip, gradient_f32;
    double ignored_loss, ignored_norm, ignored_gradient_f32;
};

struct run {
    const char *model; /* "tied", "untied" */
    int n, k;          /* ranks, micro-batches of each */
    const char *device, *compute;
    int steps;
    const char *other;     /* one more setting; NULL: none */
    const char *gradients; /* file to hold the first step's gradients against; NULL: not asked */
    int is_ignoring;       /* leave out the targets that make.py leaves out */
    /* results */
    double loss[STEPS], norm[STEPS], gradient;
    char worst[64]; /* the parameter with the worst gradient */
};

static double number(json_t *doc, const char *path)
{
    json_t *v = ku_json_at(doc, path);
    if (!json_is_number(v))
        fail_msg("expected.json: %s: no number", path);
    return json_number_value(v);
}

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
    memset(e, 0, sizeof *e);
    numbers(doc.root, "f64.loss", e->loss);
    numbers(doc.root, "f64.norm", e->norm);
    numbers(doc.root, "f32.loss", e->loss_f32);
    numbers(doc.root, "f32.norm", e->norm_f32);
    numbers(doc.root, "sensitivity", e->sensitivity);
    e->clip = number(doc.root, "clip");
    e->gradient_f32 = number(doc.root, "gradient_error_f32");
    if (ku_json_at(doc.root, "ignored")) {
        e->ignored_loss = number(doc.root, "ignored.loss");
        e->ignored_norm = number(doc.root, "ignored.norm");
        e->ignored_gradient_f32 = number(doc.root, "ignored.gradient_error_f32");
    }
    ku_json_fini(&doc);
}

/* -- one run
 * --------------------------------------------------------------------------------------------- */

static int configure(struct ku_session *s, const struct run *r)
{
    char path[512], text[MAX_SETS][SET_BYTES];
    const char *set[MAX_SETS];
    int n = 0;
    for (int i = 0; i < MAX_SETS; i++)
        set[i] = text[i];
    snprintf(path, sizeof path, FIXTURES "/%s/train.json", r->model);
    snprintf(text[n++], SET_BYTES, "model.path=" FIXTURES "/%s", r->model);
    snprintf(text[n++], SET_BYTES, "data.train=" FIXTURES "/%s/data.bin", r->model);
    snprintf(text[n++], SET_BYTES, "train.accumulation=%d", r->k);
    snprintf(text[n++], SET_BYTES, "parallel.device=%s", r->device);
    snprintf(text[n++], SET_BYTES, "precision.compute=%s", r->compute);
    snprintf(text[n++], SET_BYTES, "train.threads=%d", strcmp(r->device, "cpu") == 0 ? r->k : 1);
    if (r->other)
        snprintf(text[n++], SET_BYTES, "%s", r->other);
    return ku_session_configure(s, path, set, n, NULL, r->n);
}

/* make.py's ignore(). */
static void ignore_targets(const struct ku_session *s)
{
    for (int u = 0; u < ku_trainer_n_micro(s->t); u++) {
        size_t row_bytes;
        int64_t first, n = ku_trainer_rows(s->t, u, &first);
        int32_t *target = ku_trainer_port(s->t, KU_PROG_TRAIN, "targets", u, &row_bytes);
        for (int64_t i = 0; i < n * s->seq_len; i++)
            if ((first * s->seq_len + i) % 7 == 3 || first + i / s->seq_len >= 6)
                target[i] = -100;
    }
}

/* The greatest error of a parameter's gradient over its norm, or 1e-3 of the norm of all: some
 * gradients are 0 but for rounding (a bias of keys moves no softmax). */
static int compare_gradients(const struct ku_trainer *t, const struct ku_st *file, double scale,
                             struct run *r)
{
    double sum[64][2], whole = 0;
    if (file->n > 64 || file->n != t->n_params)
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
    char path[512];
    struct ku_st file;
    double clip = s->cfg.train_clip_norm, factor = clip > 0 ? clip / (r->norm[0] + 1e-6) : 1;
    snprintf(path, sizeof path, FIXTURES "/%s/%s", r->model, r->gradients);
    KU_TRY(ku_st_open(path, &file));
    int status = compare_gradients(s->t, &file, 1 / ((1 - beta1) * fmin(1, factor)), r);
    ku_st_close(&file);
    return status;
}

static int train(struct ku_session *s, struct ku_job *job, struct run *r)
{
    KU_TRY(configure(s, r));
    KU_TRY(ku_session_open_data(s, job));
    KU_TRY(ku_session_create_trainer(s, job));
    KU_TRY(ku_session_first_state(s));
    for (int step = 0; step < r->steps; step++) {
        const double *report;
        KU_TRY(ku_session_fill_train(s, step));
        if (r->is_ignoring)
            ignore_targets(s);
        KU_TRY(ku_trainer_step(s->t, step, &report));
        if (job->rank == 0) {
            r->loss[step] = report[KU_REPORT_LOSS];
            r->norm[step] = report[KU_REPORT_NORM];
        }
        if (job->rank == 0 && step == 0 && r->gradients)
            KU_TRY(check_gradients(s, r)); /* others may start to compute: the step's end waits */
    }
    return KUMI_OK;
}

static int rank_main(struct ku_job *job, void *arg)
{
    struct ku_session s = {0};
    int status = train(&s, job, arg);
    ku_session_fini(&s);
    return status;
}

static void run(struct run *r)
{
    if (ku_job_threads(r->n, NULL, rank_main, r) < 0)
        fail_msg("%s, %d ranks: %s", r->model, r->n, ku_err_get()->text);
}

/* -- checks
 * ---------------------------------------------------------------------------------------------- */

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
        fail_msg("%s, %s on %s, %d ranks, k %d: %s: %.3g, more than %.3g%s%s", r->model, r->compute,
                 r->device, r->n, r->k, what, error, bound, r->gradients ? "; " : "",
                 r->gradients ? r->worst : "");
}

static void say(const char *model, const char *who, double loss, double norm, double gradient)
{
    print_message("%-7s%-24s loss %.2e  norm %.2e  first gradient %.2e\n", model, who, loss, norm,
                  gradient);
}

/* All that is held against PyTorch's f64: losses, norms, first gradients; `most` of them. */
static void check_run(const struct run *wanted, const struct expected *e, const double bound[3],
                      double most[3])
{
    struct run r = *wanted;
    r.steps = STEPS;
    run(&r);
    double loss = worst_of(r.loss, e->loss, STEPS), norm = worst_of(r.norm, e->norm, STEPS);
    expect_within(&r, "loss", loss, bound[0]);
    expect_within(&r, "norm", norm, bound[1]);
    r.steps = 1, r.gradients = "gradients.safetensors";
    run(&r);
    expect_within(&r, "gradient", r.gradient, bound[2]);
    most[0] = fmax(most[0], loss), most[1] = fmax(most[1], norm);
    most[2] = fmax(most[2], r.gradient);
}

static void check_layouts(const char *model, const char *device, const char *compute,
                          const struct expected *e, const double bound[3])
{
    double most[3] = {0};
    char who[64];
    for (int layout = 0; layout < 4; layout++) {
        struct run r = {.model = model,
                        .n = 1 + layout % 2,
                        .k = 1 + layout / 2,
                        .device = device,
                        .compute = compute};
        check_run(&r, e, bound, most);
    }
    snprintf(who, sizeof who, "kumi %s on %s", compute, device);
    say(model, who, most[0], most[1], most[2]);
}

/* f32 may err four times as much as PyTorch's f32 does: sums go in other orders. */
static void f32_bounds(const struct expected *e, double bound[3])
{
    double own[3] = {worst_of(e->loss_f32, e->loss, STEPS), worst_of(e->norm_f32, e->norm, STEPS),
                     e->gradient_f32};
    for (int i = 0; i < 3; i++)
        bound[i] = 4 * own[i];
}

static void f32_of(const char *model)
{
    struct expected e;
    double bound[3], most[3] = {0};
    read_expected(model, &e);
    f32_bounds(&e, bound);
    say(model, "PyTorch f32", bound[0] / 4, bound[1] / 4, bound[2] / 4);
    check_layouts(model, "cpu", "f32", &e, bound);
    check_layouts(model, "ref", "f32", &e, bound);
    for (enum ku_isa isa = KU_ISA_BASE; isa < ku_cpu_isa(); isa++) {
        char other[64];
        snprintf(other, sizeof other, "parallel.isa=%s", ku_cpu_isa_name(isa));
        struct run r = {
            .model = model, .n = 1, .k = 1, .device = "cpu", .compute = "f32", .other = other};
        check_run(&r, &e, bound, most);
    }
    say(model, "kumi f32, older CPUs", most[0], most[1], most[2]);
}

static void f32(void **state)
{
    (void)state;
    f32_of("tied");
    f32_of("untied");
}

/* Parameters, moments, gradients and their sums are f64 then: f32 anywhere would show as 1e-8. */
static void ref_f64(void **state)
{
    static const char *const model[] = {"tied", "untied"};
    static const double bound[3] = {1e-12, 1e-12, 1e-12};
    struct expected e;
    (void)state;
    for (int i = 0; i < 2; i++) {
        read_expected(model[i], &e);
        check_layouts(model[i], "ref", "f64", &e, bound);
    }
}

/* Targets that do not count lie unevenly: the last two rows, a micro-batch of its own on two ranks
 * with k = 2, have none. */
static void ignored_targets(void **state)
{
    static const char *const row[][2] = {{"cpu", "f32"}, {"ref", "f64"}};
    double f32_bound[3];
    struct expected e;
    (void)state;
    read_expected("untied", &e);
    f32_bounds(&e, f32_bound);
    f32_bound[2] = 4 * e.ignored_gradient_f32;
    for (int i = 0; i < 8; i++) {
        struct run r = {.model = "untied",
                        .n = 1 + i % 2,
                        .k = 1 + i / 2 % 2,
                        .device = row[i / 4][0],
                        .compute = row[i / 4][1],
                        .steps = 1,
                        .gradients = "gradients-ignored.safetensors",
                        .is_ignoring = 1};
        double bound[3] = {1e-12, 1e-12, 1e-12};
        if (i < 4)
            memcpy(bound, f32_bound, sizeof bound);
        run(&r);
        expect_within(&r, "loss", worst_of(r.loss, &e.ignored_loss, 1), bound[0]);
        expect_within(&r, "norm", worst_of(r.norm, &e.ignored_norm, 1), bound[1]);
        expect_within(&r, "gradient", r.gradient, bound[2]);
    }
}

/*
 * bf16 keeps 8 bits, so a rounding errs by at most u = 2^-8 of its number (half of that on
 * average). To first order the loss moves by sum_i (x_i dL/dx_i) d_i over all numbers x_i that are
 * rounded, |d_i| <= u. With independent errors, uniform at worst, that is a deviation of
 * sigma = u / sqrt(3) sqrt(sum_i (x_i dL/dx_i)^2), which make.py measures in f64 for each batch.
 * A step may be off by 4 sigma, all steps by 2 sigma in the root mean square. Gradients err by u
 * too: what was learnt until a step, |L_0 - L_t|, is right to u of it.
 */
static double bf16_excess(const struct run *r, const struct expected *e, double *rms)
{
    const double u = 0x1p-8;
    double worst = 0, sum = 0;
    for (int t = 0; t < r->steps; t++) {
        double sigma = u / sqrt(3.0) * e->sensitivity[t], off = fabs(r->loss[t] - e->loss[t]);
        double share = off / (4 * sigma + u * fabs(e->loss[0] - e->loss[t]));
        sum += off * off / (sigma * sigma);
        worst = share <= worst ? worst : share;
    }
    *rms = sqrt(sum / r->steps);
    return fmax(worst, *rms / 2);
}

static void bf16_of(const char *model, const char *isa)
{
    struct expected e;
    char other[64];
    double rms, worst = 0;
    read_expected(model, &e);
    snprintf(other, sizeof other, "parallel.isa=%s", isa);
    for (int layout = 0; layout < 4; layout++) {
        struct run r = {.model = model,
                        .n = 1 + layout % 2,
                        .k = 1 + layout / 2,
                        .device = "cpu",
                        .compute = "bf16",
                        .steps = STEPS,
                        .other = other};
        run(&r);
        expect_within(&r, "share of bf16's bound", bf16_excess(&r, &e, &rms), 1);
        worst = fmax(worst, worst_of(r.loss, e.loss, STEPS));
        if (layout == 3)
            print_message("%-7skumi bf16 on %-12s loss %.2e, %.2f sigma in the mean\n", model, isa,
                          worst, rms);
    }
}

static void bf16(void **state)
{
    (void)state;
    for (enum ku_isa isa = KU_ISA_BASE; isa <= ku_cpu_isa(); isa++) {
        bf16_of("tied", ku_cpu_isa_name(isa));
        bf16_of("untied", ku_cpu_isa_name(isa));
    }
}

/* These bounds see a run that is not PyTorch's. */
static void sees_differences(void **state)
{
    static const struct {
        const char *compute, *other;
    } row[] = {
        {"f32", "optimizer.weight_decay=0"},
        {"f32", "optimizer.decay=all"},
        {"f32", "optimizer.betas=[0.9, 0.999]"},
        {"f32", "optimizer.type=adam"},
        {"f32", "optimizer.lr=1.001e-3"},
        {"f32", "optimizer.eps=1e-6"},
        {"f32", "train.clip_norm=0"},
        {"f32", "data.shuffle=true"},
        {"bf16", "optimizer.lr=1.1e-3"},
        {"bf16", "train.freeze=[\"wte.weight\"]"},
    };
    struct expected e;
    double bound[3], rms;
    (void)state;
    read_expected("tied", &e);
    f32_bounds(&e, bound);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct run r = {.model = "tied",
                        .n = 1,
                        .k = 1,
                        .device = "cpu",
                        .compute = row[i].compute,
                        .steps = STEPS,
                        .other = row[i].other};
        run(&r);
        double share = strcmp(row[i].compute, "bf16") == 0
                           ? bf16_excess(&r, &e, &rms)
                           : fmax(worst_of(r.loss, e.loss, STEPS) / bound[0],
                                  worst_of(r.norm, e.norm, STEPS) / bound[1]);
        if (share <= 1)
            fail_msg("%s, %s: not seen, %.3g of the bound", row[i].compute, row[i].other, share);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(f32), cmocka_unit_test(ref_f64),
                                       cmocka_unit_test(ignored_targets), cmocka_unit_test(bf16),
                                       cmocka_unit_test(sees_differences)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
