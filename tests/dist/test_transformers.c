/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
/*
 * Llama and BERT against Hugging Face's with torch.optim.AdamW, as tools/fixtures/transformers
 * wrote down. Weights come through model.path; the ports are filled from data.safetensors, whatever
 * kind of data would give them.
 */
#define FIXTURES KUMI_SOURCE_DIR "/tests/fixtures/transformers"
#include "peer.h"

#include "infer/generator.h"

static const char *const models[] = {"llama-tied",    "llama-untied", "llama3",
                                     "llama-dynamic", "bert",         NULL};

static int open_data(struct ku_session *s, struct ku_job *job, const char *model,
                     struct ku_st *data)
{
    (void)s, (void)job;
    return open_fixture(model, "data.safetensors", data);
}

/* A step's rows of every port that the fixture has. */
static int fill(struct ku_session *s, const struct run *r, const struct ku_st *data, int step)
{
    (void)r;
    const int64_t first_row = step * s->batch.global_batch;
    for (int u = 0; u < ku_trainer_n_micro(s->t); u++) {
        int64_t first, n = ku_trainer_rows(s->t, u, &first);
        for (int i = 0; i < data->n; i++) {
            const struct ku_st_tensor *t = &data->tensor[i];
            size_t row_bytes, row = (size_t)(t->bytes / (uint64_t)t->dim[0]);
            void *to = host_of(ku_trainer_port(s->t, KU_PROG_TRAIN, t->name, u, &row_bytes));
            if (to == NULL || row != row_bytes)
                return KU_ERR(KUMI_EINPUT, "%s: the model has no such port", t->name);
            KU_TRY(ku_st_read_bytes(data, t, (uint64_t)(first_row + first) * row, to,
                                    (size_t)n * row));
        }
    }
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

/* -- logits of the first two rows, at every position ------------------------------------------ */

/*
 * By kept keys and values, token by token behind a prompt of one; and of the whole text anew.
 * is_whole: only the prompt of the whole text.
 */
static int compare_logits(struct ku_infer *m, const struct ku_st *data, const struct ku_st *truth,
                          int is_whole, double *worst)
{
    const struct ku_st_tensor *tokens = ku_st_find(data, "tokens"), *t = &truth->tensor[0];
    const int64_t n_tokens = t->dim[1], vocab = t->dim[2];
    double want[256], got[256];
    for (int64_t row = 0; row < t->dim[0]; row++)
        for (int64_t i = is_whole ? 2 * n_tokens - 1 : 0; i < 2 * n_tokens; i++) {
            const int64_t n = i % n_tokens + 1;
            uint32_t token[64];
            double error = 0, size = 0;
            assert_true(n_tokens <= 64 && vocab <= 256);
            KU_TRY(ku_st_read_bytes(data, tokens, (uint64_t)(row * n_tokens * 4), token,
                                    (size_t)n * 4));
            KU_TRY(ku_st_read_bytes(truth, t, (uint64_t)((row * n_tokens + n - 1) * vocab * 8),
                                    want, (size_t)vocab * 8));
            if (i == 0 || i >= n_tokens)
                KU_TRY(ku_infer_prompt(m, &(struct ku_infer_text){token, n}, got));
            else
                KU_TRY(ku_infer_next(m, &token[n - 1], NULL, got));
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
    const char *const *keep_f32;
    int is_whole; /* only the prompt of the whole text */
    int64_t room; /* tokens that the cache holds beside the text's */
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
                              .keep_f32 = q->keep_f32,
                              .device = ku_device_find(q->device),
                              .device_opts = {.n_threads = 1, .isa = ku_cpu_isa()},
                              .n_rows = 1,
                              .max_tokens = truth.tensor[0].dim[1] + q->room};
    KU_TRY_OUT(ku_infer_create(job, &s.model, dir, &o, &m));
    KU_TRY_OUT(compare_logits(m, &data, &truth, q->is_whole, &q->worst));
out:
    ku_infer_destroy(m);
    ku_session_fini(&s);
    ku_st_close(&data);
    ku_st_close(&truth);
    return status;
}

static void check_logits(struct question q)
{
    struct expected e;
    read_expected(q.model, &e);
    if (ku_comm_threads(1, NULL, ask, &q) < 0)
        fail_msg("%s: %s", q.model, ku_err_get()->text);
    double bound = q.compute == KUMI_F64 ? 1e-12 : 4 * e.logits_f32;
    print_message("%s on %s: logits off by %.2e, bound %.2e\n", q.model, q.device, q.worst, bound);
    if (!(q.worst <= bound))
        fail_msg("%s on %s: logits off by %.3g, more than %.3g", q.model, q.device, q.worst, bound);
}

static void logits(void **state)
{
    (void)state;
    for (int m = 0; m < 3; m++) {
        check_logits((struct question){.model = models[m], .device = "ref", .compute = KUMI_F64});
        check_logits((struct question){.model = models[m], .device = "cpu", .compute = KUMI_F32});
    }
}

/*
 * Dynamic frequencies follow the length of the text, whatever the cache has room for. PyTorch's
 * logits are those of the whole text's length, so only the last ones are compared.
 */
static void dynamic_logits(void **state)
{
    (void)state;
    for (int64_t room = 0; room < 2; room++) {
        struct question q = {.model = "llama-dynamic", .is_whole = 1, .room = room};
        q.device = "ref", q.compute = KUMI_F64;
        check_logits(q);
        q.device = "cpu", q.compute = KUMI_F32;
        check_logits(q);
    }
}

/* With all of its modules kept in f32 a text is that of f32, keys and values included. */
static void kept_in_f32(void **state)
{
    static const char *const all[] = {"*", NULL};
    (void)state;
    for (int m = 0; m < 3; m++) {
        struct question q[3] = {
            {.model = models[m], .device = "cpu", .compute = KUMI_F32},
            {.model = models[m], .device = "cpu", .compute = KUMI_BF16, .keep_f32 = all},
            {.model = models[m], .device = "cpu", .compute = KUMI_BF16}};
        for (int i = 0; i < 3; i++)
            if (ku_comm_threads(1, NULL, ask, &q[i]) < 0)
                fail_msg("%s: %s", models[m], ku_err_get()->text);
        assert_true(q[1].worst == q[0].worst && q[2].worst > q[0].worst);
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
    if (sample_is_short())
        skip(); /* deviations grow over all steps */
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        check_sees(row[i].model, row[i].other);
}

/*
 * Grouped queries: ranks divide key and value heads, with the queries of each. Six ranks, of which
 * three share a key and value head, divide its queries; they do not divide the inner width.
 */
static void tensor_parallel(void **state)
{
    static const char whole_mlp[] = "{\"model.layers.*.mlp.*\": \"replicate\"}";
    (void)state;
    check_tensor_plan("llama-tied", 6, whole_mlp, "cpu", "f32");
    check_tensor_plan("llama-untied", 6, whole_mlp, "ref", "f64");
    check_tensor("llama-tied", 2, "cpu", "f32");
    check_tensor("llama-untied", 2, "ref", "f64");
    check_tensor("llama3", 2, "cpu", "f32");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_parallel), cmocka_unit_test(f32),
        cmocka_unit_test(older_cpus),      cmocka_unit_test(ref_f64),
        cmocka_unit_test(logits),          cmocka_unit_test(dynamic_logits),
        cmocka_unit_test(kept_in_f32),     cmocka_unit_test(sees_differences)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
