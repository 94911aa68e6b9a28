/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
/*
 * GPT-2 against Hugging Face's GPT2LMHeadModel with torch.optim.AdamW, as tools/fixtures/gpt2 wrote
 * down. Each run is a user's: train.json, its weights through model.path, raw tokens.
 */
#define FIXTURES   KUMI_SOURCE_DIR "/tests/fixtures/gpt2"
#define PEER_STEPS 20
#include "peer.h"

#include <unistd.h>

static const char *const models[] = {"tied", "untied", NULL};
static const char ignored_gradients[] = "gradients-ignored.safetensors";

static void read_more(const char *model, const char *path, double *out, size_t n)
{
    char file[512];
    struct ku_json doc;
    snprintf(file, sizeof file, FIXTURES "/%s/expected.json", model);
    if (ku_json_load(file, MAX_EXPECTED_BYTES, &doc) < 0)
        fail_msg("%s", ku_err_get()->text);
    json_t *v = ku_json_at(doc.root, path);
    if (n == 1 ? !json_is_number(v) : json_array_size(v) != n)
        fail_msg("%s: %s: not %zu numbers", file, path, n);
    for (size_t i = 0; i < n; i++)
        out[i] = json_number_value(n == 1 ? v : json_array_get(v, i));
    ku_json_fini(&doc);
}

static int open_data(struct ku_session *s, struct ku_job *job, const char *model,
                     struct ku_st *data)
{
    (void)model, (void)data;
    return ku_session_open_data(s, job);
}

/* make.py's ignore(). */
static void ignore_targets(const struct ku_session *s)
{
    for (int u = 0; u < ku_trainer_n_micro(s->t); u++) {
        size_t row_bytes;
        int64_t first, n = ku_trainer_rows(s->t, u, &first);
        int32_t *target = host_of(ku_trainer_port(s->t, KU_PROG_TRAIN, "targets", u, &row_bytes));
        for (int64_t i = 0; i < n * s->seq_len; i++)
            if ((first * s->seq_len + i) % 7 == 3 || first + i / s->seq_len >= 6)
                target[i] = -100;
    }
}

static int fill(struct ku_session *s, const struct run *r, const struct ku_st *data, int step)
{
    (void)data;
    KU_TRY(ku_session_fill_train(s, step));
    if (r->gradients == ignored_gradients)
        ignore_targets(s);
    return KUMI_OK;
}

static void f32(void **state)
{
    (void)state;
    check_layouts(models, "cpu", "f32");
    check_layouts(models, "ref", "f32");
}

static void older_cpus(void **state)
{
    (void)state;
    check_older_cpus(models);
}

/* Parameters, moments, gradients and their sums are f64 then: f32 anywhere would show as 1e-8. */
static void ref_f64(void **state)
{
    (void)state;
    check_layouts(models, "ref", "f64");
}

/* Each of three ranks has one head, and a third of the MLP. */
static void tensor_parallel(void **state)
{
    (void)state;
    check_tensor("tied", 3, "cpu", "f32");
    check_tensor("tied", 3, "ref", "f64");
}

/* Targets that do not count lie unevenly: the last two rows, a micro-batch of its own on two ranks
 * with k = 2, have none. */
static void ignored_targets(void **state)
{
    static const char *const row[][2] = {{"cpu", "f32"}, {"ref", "f64"}};
    struct expected e;
    double loss, norm, bound[3];
    (void)state;
    read_expected("untied", &e);
    read_more("untied", "ignored.loss", &loss, 1);
    read_more("untied", "ignored.norm", &norm, 1);
    read_more("untied", "ignored.gradient_error_f32", &e.gradient_f32, 1);
    for (int i = 0; i < 8; i++) {
        struct run r = {.model = "untied",
                        .n = 1 + i % 2,
                        .k = 1 + i / 2 % 2,
                        .device = row[i / 4][0],
                        .compute = row[i / 4][1],
                        .steps = 1,
                        .gradients = ignored_gradients};
        bounds_of(r.compute, &e, bound);
        run(&r);
        expect_within(&r, "loss", worst_of(r.loss, &loss, 1), bound[0]);
        expect_within(&r, "norm", worst_of(r.norm, &norm, 1), bound[1]);
        expect_within(&r, "gradient", r.gradient, bound[2]);
    }
}

/*
 * bf16 keeps 8 bits, so a rounding errs by at most u = 2^-8 of its number (half of that on
 * average), f16 11, u = 2^-11. To first order the loss moves by sum_i (x_i dL/dx_i) d_i over all
 * numbers x_i that are rounded, |d_i| <= u. With independent errors, uniform at worst, that is a
 * deviation of sigma = u / sqrt(3) sqrt(sum_i (x_i dL/dx_i)^2), which make.py measures in f64 for
 * each batch. A step may be off by 4 sigma, all steps by 2 sigma in the root mean square. Gradients
 * err by u too: what was learnt until a step, |L_0 - L_t|, is right to u of it.
 */
static double half_excess(const struct run *r, const struct expected *e, double *rms)
{
    double sensitivity[STEPS];
    const double u = strcmp(r->compute, "f16") == 0 ? 0x1p-11 : 0x1p-8;
    double worst = 0, sum = 0;
    read_more(r->model, "sensitivity", sensitivity, STEPS);
    for (int t = 0; t < n_steps(); t++) {
        double sigma = u / sqrt(3.0) * sensitivity[t], off = fabs(r->loss[t] - e->loss[t]);
        double share = off / (4 * sigma + u * fabs(e->loss[0] - e->loss[t]));
        sum += off * off / (sigma * sigma);
        worst = share <= worst ? worst : share;
    }
    *rms = sqrt(sum / n_steps());
    return fmax(worst, *rms / 2);
}

static void half_of(const char *model, const char *compute, const char *isa)
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
                        .compute = compute,
                        .gradients = "",
                        .other = other};
        run(&r);
        expect_within(&r, "share of the bound", half_excess(&r, &e, &rms), 1);
        worst = fmax(worst, worst_of(r.loss, e.loss, n_steps()));
        if (layout == 3)
            print_message("%-7skumi %-4s on %-12s loss %.2e, %.2f sigma in the mean\n", model,
                          compute, isa, worst, rms);
    }
}

static void bf16(void **state)
{
    (void)state;
    for (enum ku_isa isa = KU_ISA_BASE; isa <= ku_cpu_isa(); isa++) {
        half_of("tied", "bf16", ku_cpu_isa_name(isa));
        half_of("untied", "bf16", ku_cpu_isa_name(isa));
    }
}

/* Under the loss scaler, as it is without any key for it; nothing overflows. */
static void f16(void **state)
{
    (void)state;
    for (enum ku_isa isa = KU_ISA_BASE; isa <= ku_cpu_isa(); isa++) {
        half_of("tied", "f16", ku_cpu_isa_name(isa));
        half_of("untied", "f16", ku_cpu_isa_name(isa));
    }
}

static void sees_differences(void **state)
{
    static const char *const f32_rows[] = {
        "optimizer.weight_decay=0", "optimizer.decay=all",   "optimizer.betas=[0.9, 0.999]",
        "optimizer.type=adam",      "optimizer.lr=1.001e-3", "optimizer.eps=1e-6",
        "train.clip_norm=0",        "data.shuffle=true"};
    static const char *const bf16_rows[] = {"optimizer.lr=1.1e-3", "train.freeze=[\"wte.weight\"]"};
    struct expected e;
    double rms;
    (void)state;
    if (sample_is_short())
        skip(); /* deviations grow over all steps */
    read_expected("tied", &e);
    for (size_t i = 0; i < sizeof f32_rows / sizeof f32_rows[0]; i++)
        check_sees("tied", f32_rows[i]);
    for (size_t i = 0; i < sizeof bf16_rows / sizeof bf16_rows[0]; i++) {
        struct run r = {.model = "tied",
                        .n = 1,
                        .k = 1,
                        .device = "cpu",
                        .compute = "bf16",
                        .gradients = "",
                        .other = bf16_rows[i]};
        run(&r);
        if (half_excess(&r, &e, &rms) <= 1)
            fail_msg("bf16, %s: not seen", bf16_rows[i]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(f32),
                                       cmocka_unit_test(older_cpus),
                                       cmocka_unit_test(ref_f64),
                                       cmocka_unit_test(tensor_parallel),
                                       cmocka_unit_test(ignored_targets),
                                       cmocka_unit_test(bf16),
                                       cmocka_unit_test(f16),
                                       cmocka_unit_test(sees_differences)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (chdir(KUMI_SOURCE_DIR) < 0) /* the configurations name their files from there */
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
