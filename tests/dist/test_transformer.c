/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
/*
 * The encoder-decoder Transformer against PyTorch with torch.optim.Adam, as
 * tools/fixtures/transformer wrote down: sentences of unequal lengths from text files, so that
 * vocabularies, padding and what masks it are compared too.
 */
#define FIXTURES KUMI_SOURCE_DIR "/tests/fixtures/transformer"
#include "peer.h"

#include <unistd.h>

#include "data/tokenizer/vocab.h"
#include "infer/beam.h"
#include "infer/translator.h"

static const char *const models[] = {"post-shared", "pre-separate", "pre-tied", "post-untied",
                                     NULL};

static int open_data(struct ku_session *s, struct ku_job *job, const char *model,
                     struct ku_st *data)
{
    (void)model, (void)data;
    return ku_session_open_data(s, job);
}

static int fill(struct ku_session *s, const struct run *r, const struct ku_st *data, int step)
{
    (void)r;
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
    int32_t *targets = host_of(ku_trainer_port(s->t, KU_PROG_EVAL, "targets", 0, &row_bytes));
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
    double want[256], got;
    int32_t target;
    struct sample positions = {.address = 16};
    assert_true(vocab <= 256);
    for (int64_t at = 0; at < t->dim[0] * n_positions; at++) {
        if (!sample_takes(&positions, (int)at, (int)(at / n_positions), -1))
            continue;
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
    for (int i = 0; i < s->source->data->n_ports; i++) {
        size_t bytes;
        const char *name = s->source->data->port[i].name;
        void *from = host_of(ku_trainer_port(s->t, KU_PROG_TRAIN, name, 0, &bytes));
        void *to = host_of(ku_trainer_port(s->t, KU_PROG_EVAL, name, 0, &bytes));
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
    } row[] = {{"ref", "f64"}, {"cpu", "f32"}};
    (void)state;
    for (int m = 0; models[m]; m++) {
        struct expected e;
        read_expected(models[m], &e);
        for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
            struct question q = {models[m], row[i].device, row[i].compute, 0};
            if (ku_comm_threads(1, NULL, ask, &q) < 0)
                fail_msg("%s: %s", models[m], ku_err_get()->text);
            double bound = i ? 4 * e.logits_f32 : 1e-12;
            print_message("%s on %s: logits off by %.2e, bound %.2e\n", models[m], row[i].device,
                          q.worst, bound);
            if (!(q.worst <= bound))
                fail_msg("%s on %s: logits off by %.3g, more than %.3g", models[m], row[i].device,
                         q.worst, bound);
        }
    }
}

/* -- translation ------------------------------------------------------------------------------- */

/* Sources of unequal lengths, some beyond the shortest program's 8; texts of at most TGT tokens. */
enum { SENTENCES = 8, SRC = 9, TGT = 10, MAX_BEAM = 4, MAX_TEXTS = SENTENCES * (1 + MAX_BEAM) };
static const int64_t source_len[SENTENCES] = {1, 9, 5, 8, 3, 9, 2, 7};

/* What the translator said of a sentence, and how likely it called that. */
struct said {
    int sentence;
    int64_t n;
    uint32_t token[TGT];
    double log_p, taught; /* taught: by teacher forcing */
};
struct talk {
    const char *model, *device, *compute;
    struct said said[MAX_TEXTS];
    int n;
    const char *const *keep_f32;
};

static uint32_t source_token(int sentence, int64_t i)
{
    return KU_VOCAB_SPECIALS + (uint32_t)(sentence * 7 + i * i + 3 * i) % 15;
}

/* A model in batches of all sentences, as the session's own data would make it. */
static int open_model(struct ku_session *s, struct ku_job *job, const struct talk *k)
{
    struct run r = {.model = k->model, .n = 1, .k = 1, .device = k->device, .compute = k->compute};
    const struct kumi_shape_of_batch b = {.n = SENTENCES, .s = SRC, .t = TGT};
    struct ku_trainer_opts o = {.device = ku_device_find(k->device)};
    struct ku_graph *g;
    KU_TRY(configure(s, &r));
    s->n_steps = STEPS;
    o.device_opts.isa = ku_cpu_isa();
    KU_TRY(ku_session_compile_opts(s, &o.compile));
    KU_TRY(ku_model_graph(&s->model, &b, &g));
    KU_TRY(ku_trainer_create(job, &g, 1, &o, &s->t));
    return ku_session_first_state(s);
}

/* Batches of `rows` sentences, the last padded with other sentences. */
static int search(struct ku_translator *m, struct talk *k, const struct ku_beam_opts *how)
{
    uint32_t source[SENTENCES][SRC];
    struct ku_translator_text text[SENTENCES * MAX_BEAM];
    const struct ku_beam_model model = {ku_translator_step, ku_translator_select, m};
    for (int first = 0; first < SENTENCES; first += (int)how->n_sentences) {
        struct ku_beam_results r;
        for (int64_t i = 0; i < how->n_sentences * how->beam_size; i++) {
            int at = (first + (int)(i / how->beam_size)) % SENTENCES;
            for (int64_t j = 0; j < source_len[at]; j++)
                source[at][j] = source_token(at, j);
            text[i] = (struct ku_translator_text){source[at], source_len[at]};
        }
        KU_TRY(ku_translator_read(m, text));
        KU_TRY(ku_beam_search(how, &model, &r));
        for (int64_t i = 0; i < how->n_sentences * how->n_best; i++) {
            int sentence = first + (int)(i / how->n_best);
            if (sentence >= SENTENCES || r.text[i].n == 0)
                continue;
            struct said *x = &k->said[k->n++];
            *x = (struct said){.sentence = sentence, .n = r.text[i].n, .log_p = r.text[i].log_p};
            memcpy(x->token, r.text[i].token, (size_t)x->n * sizeof *x->token);
        }
        ku_beam_fini(&r);
    }
    return KUMI_OK;
}

static int say(struct ku_job *job, struct talk *k, int64_t beam, int64_t rows)
{
    struct ku_session s = {0};
    struct ku_translator *m = NULL;
    struct run r = {.model = k->model, .n = 1, .k = 1, .device = k->device, .compute = k->compute};
    struct ku_translator_opts o = {
        .device = ku_device_find(k->device), .n_rows = rows * beam, .src_max = SRC, .tgt_max = TGT};
    int64_t most[SENTENCES];
    struct ku_beam_opts how = {.n_sentences = rows,
                               .beam_size = beam,
                               .n_best = beam,
                               .alpha = 0.6,
                               .max_tokens = most,
                               .first = KU_VOCAB_BOS,
                               .end = KU_VOCAB_EOS};
    int status;
    for (int i = 0; i < SENTENCES; i++)
        most[i] = TGT - i % 3;
    o.device_opts.isa = ku_cpu_isa();
    o.keep_f32 = k->keep_f32;
    KU_TRY(ku_dtype_parse(k->compute, &o.compute));
    KU_TRY_OUT(configure(&s, &r));
    how.vocab_size = s.model.properties.vocab_size;
    KU_TRY_OUT(ku_translator_create(job, &s.model, s.model.path, &o, &m));
    KU_TRY_OUT(search(m, k, &how));
out:
    ku_translator_destroy(m);
    ku_session_fini(&s);
    return status;
}

static int say_greedily(struct ku_job *job, void *talk)
{
    return say(job, talk, 1, 3);
}
static int say_by_beam(struct ku_job *job, void *talk)
{
    return say(job, talk, MAX_BEAM, SENTENCES);
}

/* Every source, and in the row of its own one text; all others have no targets. */
static void write_pair(struct ku_session *s, const struct said *x)
{
    size_t bytes;
    int32_t *src = host_of(ku_trainer_port(s->t, KU_PROG_EVAL, "src", 0, &bytes));
    int32_t *src_len = host_of(ku_trainer_port(s->t, KU_PROG_EVAL, "src_len", 0, &bytes));
    int32_t *in = host_of(ku_trainer_port(s->t, KU_PROG_EVAL, "tgt_in", 0, &bytes));
    int32_t *targets = host_of(ku_trainer_port(s->t, KU_PROG_EVAL, "targets", 0, &bytes));
    int32_t *tgt_len = host_of(ku_trainer_port(s->t, KU_PROG_EVAL, "tgt_len", 0, &bytes));
    for (int row = 0; row < SENTENCES; row++) {
        int is_asked = row == x->sentence;
        src_len[row] = (int32_t)source_len[row];
        tgt_len[row] = is_asked ? (int32_t)x->n : 1;
        for (int i = 0; i < SRC; i++)
            src[row * SRC + i] = i < source_len[row] ? (int32_t)source_token(row, i) : 0;
        for (int i = 0; i < TGT; i++) {
            in[row * TGT + i] = i == 0                      ? KU_VOCAB_BOS
                                : is_asked && i <= x->n - 1 ? (int32_t)x->token[i - 1]
                                                            : KU_VOCAB_PAD;
            targets[row * TGT + i] = is_asked && i < x->n ? (int32_t)x->token[i] : -100;
        }
    }
}

static int teach(struct ku_job *job, void *talk)
{
    struct talk *k = talk;
    struct ku_session s = {0};
    int status = open_model(&s, job, k);
    for (int i = 0; i < k->n && status == KUMI_OK; i++) {
        write_pair(&s, &k->said[i]);
        ku_trainer_eval_begin(s.t);
        status = ku_trainer_eval_run(s.t);
        k->said[i].taught = -ku_trainer_eval_loss(s.t) * (double)k->said[i].n;
    }
    ku_session_fini(&s);
    return status;
}

static void job_of_one(int (*f)(struct ku_job *, void *), struct talk *k)
{
    if (ku_comm_threads(1, NULL, f, k) < 0)
        fail_msg("%s on %s: %s", k->model, k->device, ku_err_get()->text);
}

/*
 * Token by token with what is kept, a text is as likely as all at once. In f64 to rounding. In f32
 * both ways deviate from the truth, ref's in f64: `bound` is four times the most that teacher
 * forcing does for a token of any text, and what the translator may.
 */
static void check_translations(const char *model, int (*how)(struct ku_job *, void *),
                               const char *compute, int n_wanted)
{
    const int is_f64 = strcmp(compute, "f64") == 0;
    struct talk k = {model, is_f64 ? "ref" : "cpu", compute, .n = 0};
    double bound = 0, worst = 0;
    int n_lengths = 0, has_length[TGT + 1] = {0};
    job_of_one(how, &k);
    assert_int_equal(k.n, n_wanted);
    job_of_one(teach, &k);
    struct talk truth = k;
    truth.device = "ref", truth.compute = "f64";
    job_of_one(teach, &truth);
    for (int i = 0; i < k.n; i++) {
        const struct said *x = &k.said[i], *t = &truth.said[i];
        bound = fmax(bound, 4 * fabs(x->taught - t->taught) / (double)x->n);
        worst = fmax(worst, fabs(x->log_p - t->taught) / (double)x->n);
        n_lengths += !has_length[x->n];
        has_length[x->n] = 1;
        assert_true(x->log_p < -0.1); /* it says something */
    }
    bound = is_f64 ? 1e-11 : bound;
    assert_true(how == say_greedily || n_lengths > 2);
    print_message("%-14s%s: %d texts, of a token's log-probability %.2e, bound %.2e\n", model,
                  compute, k.n, worst, bound);
    if (!(worst <= bound))
        fail_msg("%s in %s: log-probabilities off by %.3g, more than %.3g", model, compute, worst,
                 bound);
}

static void translations(void **state)
{
    (void)state;
    for (int m = 0; models[m]; m++)
        for (int is_f64 = 0; is_f64 < 2; is_f64++) {
            const char *compute = is_f64 ? "f64" : "f32";
            check_translations(models[m], say_greedily, compute, SENTENCES);
            check_translations(models[m], say_by_beam, compute, SENTENCES * MAX_BEAM);
        }
}

/* With all modules kept in f32 the texts are those of f32, keys and values included. */
static void kept_in_f32(void **state)
{
    static const char *const all[] = {"*", NULL};
    (void)state;
    for (int m = 0; models[m]; m++) {
        struct talk wide = {models[m], "cpu", "f32", .n = 0}, kept = wide;
        kept.compute = "bf16", kept.keep_f32 = all;
        job_of_one(say_by_beam, &wide);
        job_of_one(say_by_beam, &kept);
        assert_int_equal(kept.n, wide.n);
        for (int i = 0; i < wide.n; i++) {
            const struct said *x = &wide.said[i], *y = &kept.said[i];
            assert_int_equal(y->n, x->n);
            assert_memory_equal(y->token, x->token, (size_t)x->n * sizeof *x->token);
            assert_true(y->log_p == x->log_p);
        }
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
    if (sample_is_short())
        skip(); /* deviations grow over all steps */
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        check_sees(row[i].model, row[i].other);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(f32),
                                       cmocka_unit_test(older_cpus),
                                       cmocka_unit_test(ref_f64),
                                       cmocka_unit_test(logits),
                                       cmocka_unit_test(translations),
                                       cmocka_unit_test(kept_in_f32),
                                       cmocka_unit_test(sees_differences)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (chdir(KUMI_SOURCE_DIR) < 0) /* the configurations name their files from there */
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
