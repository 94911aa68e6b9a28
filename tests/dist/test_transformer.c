/* SPDX-License-Identifier: Apache-2.0 */
/* links: train */
/*
 * The encoder-decoder Transformer against PyTorch with torch.optim.Adam, as
 * tools/fixtures/transformer wrote down: sentences of unequal lengths from text files, so that
 * vocabularies, padding and what masks it are compared too.
 */
#define FIXTURES KUMI_SOURCE_DIR "/tests/fixtures/transformer"
#include "peer.h"

#include <unistd.h>

static const char *const models[] = {"post-shared", "pre-separate", "pre-tied", "post-untied",
                                     NULL};

static int open_data(struct ku_session *s, struct ku_job *job, const char *model,
                     struct ku_st *data)
{
    (void)model, (void)data;
    return ku_session_open_data(s, job);
}

static int fill(struct ku_session *s, const struct ku_st *data, int step)
{
    (void)data;
    return ku_session_fill_train(s, step);
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

static void ref_f64(void **state)
{
    (void)state;
    check_layouts(models, "ref", "f64");
}

/* -- logits ------------------------------------------------------------------------------------ */

struct question {
    const char *model, *device, *compute;
    double worst;
};

/* The evaluation's loss with one target, token v at one position: log(sum of exp) - logit[v]. */
static int ask_one(struct ku_session *s, int64_t row, int64_t position, int32_t v, double *loss)
{
    size_t row_bytes;
    int32_t *targets = ku_trainer_port(s->t, KU_PROG_EVAL, "targets", 0, &row_bytes);
    for (size_t i = 0; i < row_bytes / 4 * (size_t)s->batch.global_batch; i++)
        targets[i] = -100;
    targets[(size_t)row * (row_bytes / 4) + (size_t)position] = v;
    ku_trainer_eval_begin(s->t);
    KU_TRY(ku_trainer_eval_run(s->t));
    *loss = ku_trainer_eval_loss(s->t);
    return KUMI_OK;
}

static double log_sum_exp(const double *x, int64_t n)
{
    double most = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        most = fmax(most, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - most);
    return most + log(sum);
}

/* At every position of the first two rows that has a target. */
static int compare_logits(struct ku_session *s, const struct ku_st *truth, double *worst)
{
    const struct ku_st_tensor *t = ku_st_find(truth, "logits"), *y = ku_st_find(truth, "targets");
    const int64_t n_positions = t->dim[1], vocab = t->dim[2];
    double want[64], got;
    int32_t target;
    assert_true(vocab <= 64);
    for (int64_t at = 0; at < t->dim[0] * n_positions; at++) {
        KU_TRY(ku_st_read_bytes(truth, y, (uint64_t)at * 4, &target, 4));
        KU_TRY(ku_st_read_bytes(truth, t, (uint64_t)(at * vocab) * 8, want, (size_t)vocab * 8));
        for (int32_t v = 0; v < vocab && target >= 0; v++) {
            KU_TRY(ask_one(s, at / n_positions, at % n_positions, v, &got));
            double error = fabs(log_sum_exp(want, vocab) - want[v] - got);
            *worst = error <= *worst ? *worst : error; /* NaN stays */
        }
    }
    return KUMI_OK;
}

/* Ports for evaluation hold what a step of training reads. */
static int copy_ports(struct ku_session *s)
{
    for (int i = 0; i < s->data->n_ports; i++) {
        size_t bytes;
        const char *name = s->data->port[i].name;
        void *from = ku_trainer_port(s->t, KU_PROG_TRAIN, name, 0, &bytes);
        void *to = ku_trainer_port(s->t, KU_PROG_EVAL, name, 0, &bytes);
        memmove(to, from, bytes * (size_t)s->batch.global_batch);
    }
    return KUMI_OK;
}

static int ask(struct ku_job *job, void *arg)
{
    struct question *q = arg;
    struct ku_session s = {0};
    struct ku_st truth = {0};
    struct run r = {.model = q->model, .n = 1, .k = 1, .device = q->device, .compute = q->compute};
    int status;
    KU_TRY(open_fixture(q->model, "logits.safetensors", &truth));
    KU_TRY_OUT(configure(&s, &r));
    KU_TRY_OUT(ku_session_open_data(&s, job));
    KU_TRY_OUT(ku_session_create_trainer(&s, job));
    KU_TRY_OUT(ku_session_first_state(&s));
    KU_TRY_OUT(ku_session_fill_train(&s, 0));
    KU_TRY_OUT(copy_ports(&s));
    KU_TRY_OUT(compare_logits(&s, &truth, &q->worst));
out:
    ku_session_fini(&s);
    ku_st_close(&truth);
    return status;
}

static void logits(void **state)
{
    static const struct {
        const char *device, *compute;
        double bound;
    } row[] = {{"ref", "f64", 1e-11}, {"cpu", "f32", 2e-6}};
    (void)state;
    for (int m = 0; models[m]; m++)
        for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
            struct question q = {models[m], row[i].device, row[i].compute, 0};
            if (ku_job_threads(1, NULL, ask, &q) < 0)
                fail_msg("%s: %s", models[m], ku_err_get()->text);
            if (!(q.worst <= row[i].bound))
                fail_msg("%s on %s: logits off by %.3g", models[m], row[i].device, q.worst);
        }
}

static void sees_differences(void **state)
{
    static const struct {
        const char *model, *other;
    } row[] = {
        {"post-shared", "optimizer.lr=1.001e-3"},
        {"post-shared", "train.label_smoothing=0.1001"},
        {"post-shared", "model.layer_norm_epsilon=2e-5"},
        {"pre-separate", "model.activation_function=gelu_new"},
        {"pre-separate", "model.scale_embedding=true"},
        {"pre-tied", "model.activation_function=gelu"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        check_sees(row[i].model, row[i].other);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(f32), cmocka_unit_test(older_cpus),
                                       cmocka_unit_test(ref_f64), cmocka_unit_test(logits),
                                       cmocka_unit_test(sees_differences)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (chdir(KUMI_SOURCE_DIR) < 0) /* the configurations name their files from there */
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
