/* SPDX-License-Identifier: Apache-2.0 */
/* A run that learned a short text by heart: its checkpoint evaluates to the run's own bits on any
 * rank count, and samples continue the text. */
#include "dist.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "base/tick.h"
#include "ckpt/safetensors.h"
#include "ckpt/snapshot/snapshot.h"
#include "kumi/messages.h"
#include "kumi/run.h"
#include "infer/evaluate.h"
#include "train/session.h"

enum { STEPS = 120, N_TEXT = 2600, PERIOD = 13 };
static const char sentence[] = "abc\xC3\xA9 xy\xE2\x82\xACz\n"; /* é and €: 13 bytes */

struct run {
    char dir[64], config[96], text[96];
    double val_loss; /* at the last step, as the run itself evaluated */
    int n;           /* ranks that trained */
    const char *set[8];
    int n_sets;
};

static void write_file(const char *path, const char *text, size_t bytes)
{
    assert_int_equal(ku_os_replace(path, text, bytes), 0);
}

static int train(struct ku_job *job, void *arg)
{
    struct run *r = arg;
    struct ku_session s = {0};
    char checkpoints[96];
    double loss;
    const double *report;
    int status = KUMI_OK;
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", r->dir);
    KU_TRY_OUT(ku_session_configure(&s, r->config, r->set, r->n_sets, NULL, job->n));
    KU_TRY_OUT(ku_session_open_data(&s, job));
    KU_TRY_OUT(ku_session_create_trainer(&s, job));
    KU_TRY_OUT(ku_session_first_state(&s));
    for (int64_t step = 0; step < s.n_steps; step++) {
        if (step == s.n_steps / 2)
            KU_TRY_OUT(ku_session_save(&s, checkpoints, step));
        KU_TRY_OUT(ku_session_fill_train(&s, step));
        KU_TRY_OUT(ku_trainer_step(s.t, step, &report));
    }
    KU_TRY_OUT(ku_session_evaluate(&s, NULL, &loss));
    KU_TRY_OUT(ku_session_save(&s, checkpoints, s.n_steps));
    if (job->rank == 0)
        r->val_loss = loss;
out:
    ku_session_fini(&s);
    return status;
}

static const char gpt2[] =
    "\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 32,"
    " \"n_positions\": 24, \"vocab_size\": 256, \"resid_pdrop\": 0.1";
static const char llama[] =
    "\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"hidden_size\": 32, \"intermediate_size\": 64,"
    " \"max_position_embeddings\": 24, \"vocab_size\": 256";

static void run_create_model(struct run *r, int n, const char *model, const char *const *set,
                             int n_sets)
{
    char text[N_TEXT], config[2048];
    memset(r, 0, sizeof *r);
    snprintf(r->dir, sizeof r->dir, "/tmp/kumi-sample-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    snprintf(r->config, sizeof r->config, "%s/run.json", r->dir);
    snprintf(r->text, sizeof r->text, "%s/text.txt", r->dir);
    r->n = n;
    for (int i = 0; i < n_sets; i++)
        r->set[r->n_sets++] = set[i];
    assert_int_equal(sizeof sentence - 1, PERIOD);
    for (int i = 0; i < N_TEXT; i++)
        text[i] = sentence[i % PERIOD];
    write_file(r->text, text, N_TEXT);
    int bytes = snprintf(
        config, sizeof config,
        "{\"model\": {%s},"
        " \"data\": {\"train\": \"%s\", \"val_fraction\": 0.2},"
        " \"train\": {\"steps\": %d, \"global_batch\": 8, \"micro_batch\": 2, \"threads\": 1},"
        " \"optimizer\": {\"lr\": 0.01}, \"schedule\": {\"warmup_steps\": 5}}",
        model, r->text, STEPS);
    write_file(r->config, config, (size_t)bytes);
    int status = ku_comm_threads(n, NULL, train, r);
    if (status < 0)
        fail_msg("%s", ku_err_get()->text);
}

static void run_create(struct run *r, int n, const char *const *set, int n_sets)
{
    run_create_model(r, n, gpt2, set, n_sets);
}

static void run_destroy(struct run *r)
{
    assert_int_equal(ku_os_rmtree(r->dir), 0);
}

/* at: the byte; < 0: from the end */
static void flip(const char *path, int64_t at)
{
    char *data;
    size_t bytes;
    assert_int_equal(ku_os_slurp(path, 1 << 24, &data, &bytes), 0);
    data[at < 0 ? (int64_t)bytes + at : at] ^= 1;
    write_file(path, data, bytes);
    ku_free(data);
}

struct piece {
    struct ku_str text;
    int n, n_cut; /* calls; calls that end within a character */
};
static void collect(void *ctx, const char *text, size_t bytes)
{
    struct piece *p = ctx;
    p->n++;
    for (size_t k = 1; k <= 2 && k <= bytes; k++) {
        unsigned char c = (unsigned char)text[bytes - k];
        p->n_cut += (c >= 0xC0 && k == 1) || (c >= 0xE0 && k == 2);
    }
    ku_str_append(&p->text, text, bytes);
}

static int sample(struct kumi_sample_options o, struct piece *p)
{
    *p = (struct piece){0};
    o.emit = collect;
    o.ctx = p;
    return kumi_sample(&o);
}

/* What is made is valid text of the right length; the same call gives the same text. */
static void expect_text(const struct kumi_sample_options *o, const char *wanted)
{
    struct piece p;
    if (sample(*o, &p) < 0)
        fail_msg("%s", ku_err_get()->text);
    assert_string_equal(ku_str_get(&p.text), wanted);
    assert_int_equal(p.n_cut, 0);
    ku_str_fini(&p.text);
}

static void repeat(char *out, int from, int count)
{
    for (int i = 0; i < count; i++)
        out[i] = sentence[(from + i) % PERIOD];
    out[count] = '\0';
}

static void samples(const struct run *r)
{
    char wanted[128];
    /* longer than the window, across both program lengths, then through both slides of it */
    repeat(wanted, 0, 104);
    struct kumi_sample_options o = {.run = r->dir, .prompt = "abc", .tokens = 101};
    expect_text(&o, wanted);
    o.top_k = 1; /* one candidate: any temperature is greedy */
    o.temperature = 5;
    expect_text(&o, wanted);
    o.tokens = 0;
    expect_text(&o, "abc");
    repeat(wanted, PERIOD - 1, 14);
    o = (struct kumi_sample_options){.run = r->dir, .tokens = 13}; /* begins with a newline */
    expect_text(&o, wanted);

    char long_prompt[61]; /* longer than two windows */
    repeat(long_prompt, 0, 60);
    repeat(wanted, 0, 70);
    o = (struct kumi_sample_options){.run = r->dir, .prompt = long_prompt, .tokens = 10};
    expect_text(&o, wanted);
}

static void seeds(const struct run *r)
{
    struct kumi_sample_options o = {
        .run = r->dir, .prompt = "a", .tokens = 40, .temperature = 3, .seed = 1};
    struct piece one, again, other, all;
    assert_int_equal(sample(o, &one), 0);
    assert_int_equal(sample(o, &again), 0);
    assert_int_equal(one.text.bytes, again.text.bytes);
    assert_memory_equal(one.text.text, again.text.text, one.text.bytes);
    assert_true(one.text.bytes == 41);
    o.top_k = 256; /* is all */
    assert_int_equal(sample(o, &all), 0);
    assert_memory_equal(one.text.text, all.text.text, one.text.bytes);
    o.seed = 2;
    assert_int_equal(sample(o, &other), 0);
    assert_true(memcmp(one.text.text, other.text.text, 41) != 0);
    ku_str_fini(&one.text);
    ku_str_fini(&again.text);
    ku_str_fini(&other.text);
    ku_str_fini(&all.text);
}

/* Texts side by side are those that are made alone, whatever their prompts' lengths; the first ends
 * early, the others slide their windows at different steps. */
static void begin(void *ctx, int64_t i)
{
    struct piece *p = ctx;
    ku_str_add(&p->text, "<%lld>", (long long)i);
}
static void batches(const struct run *r)
{
    static const char *const prompts[] = {"abc", "xy", "c\xC3\xA9 xy\xE2\x82\xACz\nabc\xC3\xA9 xy",
                                          "\nab"};
    struct kumi_sample_options o = {
        .run = r->dir, .tokens = 45, .temperature = 0.5, .top_k = 20, .seed = 7};
    struct ku_str alone = {0};
    struct piece p;
    for (int i = 0; i < 4; i++) {
        o.prompt = prompts[i];
        o.seed = 7 + (uint64_t)i;
        assert_int_equal(sample(o, &p), 0);
        ku_str_add(&alone, "<%d>%s", i, ku_str_get(&p.text));
        ku_str_fini(&p.text);
    }
    o.seed = 7;
    o.n = 4;
    o.prompts = prompts;
    o.begin = begin;
    assert_int_equal(sample(o, &p), 0); /* which may end within a character */
    assert_string_equal(ku_str_get(&p.text), ku_str_get(&alone));
    ku_str_fini(&p.text);
    ku_str_fini(&alone);

    struct kumi_sample_speed speed;
    o = (struct kumi_sample_options){
        .run = r->dir, .prompt = "abc", .tokens = 21, .n = 2, .begin = begin, .speed = &speed};
    expect_text(&o, "<0>abc\xC3\xA9 xy\xE2\x82\xACz\nabc\xC3\xA9 xy\xE2\x82\xAC"
                    "<1>abc\xC3\xA9 xy\xE2\x82\xACz\nabc\xC3\xA9 xy\xE2\x82\xAC");
    assert_int_equal(speed.prompt_tokens, 6);
    assert_int_equal(speed.tokens, 40);
    assert_int_equal(speed.steps, 20);
    o = (struct kumi_sample_options){.run = r->dir, .prompt = "abc", .tokens = 50, .stop = "z\nab"};
    expect_text(&o, "abc\xC3\xA9 xy\xE2\x82\xAC");
    o.stop = "z\nax"; /* begins, and goes on otherwise */
    o.tokens = 12;
    expect_text(&o, "abc\xC3\xA9 xy\xE2\x82\xACz\nab");
    o.stop = NULL;
    o.temperature = 50; /* any token, but for the nucleus: the likeliest alone */
    o.top_p = 1e-9;
    expect_text(&o, "abc\xC3\xA9 xy\xE2\x82\xACz\nab");
    o.top_k = 9;
    expect_text(&o, "abc\xC3\xA9 xy\xE2\x82\xACz\nab");
}

static void expect_error(struct kumi_sample_options o, int status, const char *words)
{
    struct piece p;
    assert_int_equal(sample(o, &p), status);
    if (strstr(ku_err_get()->text, words) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", words, ku_err_get()->text);
    assert_int_equal(p.n, 0);
    ku_str_fini(&p.text);
}

static void errors(const struct run *r)
{
    struct kumi_sample_options o = {.run = r->dir, .prompt = "a", .tokens = 1};
    o.temperature = -1;
    expect_error(o, KUMI_EINVAL, "temperature: -1; give");
    o.temperature = (double)NAN;
    expect_error(o, KUMI_EINVAL, "temperature");
    o.temperature = 0;
    o.top_k = -3;
    expect_error(o, KUMI_EINVAL, "top-k: -3");
    o.top_k = 0;
    o.tokens = -1;
    expect_error(o, KUMI_EINVAL, "tokens: -1");
    o.tokens = 1;
    o.top_p = 1.5;
    expect_error(o, KUMI_EINVAL, "top-p: 1.5");
    o.top_p = 0;
    o.threads = -1;
    expect_error(o, KUMI_EINVAL, "threads: -1; give 1 to 4096");
    o.threads = 0;
    o.n = -1;
    expect_error(o, KUMI_EINVAL, "batch: -1");
    o.n = 0;
    o.stop = "";
    expect_error(o, KUMI_EINVAL, "stop: empty");
    o.stop = NULL;
    o.dtype = "f64";
    expect_error(o, KUMI_EINVAL, "dtype: f64");
    o.dtype = NULL;
    o.prompt = "";
    expect_error(o, KUMI_EINVAL, "prompt: empty");
    o.prompt = "a";
    o.run = "/nonexistent/run";
    expect_error(o, KUMI_ENOCKPT, "/nonexistent/run");
}

struct eval_case {
    const char *run;
    int ema;
    struct kumi_eval_result result; /* rank 0's */
};
static int evaluate(struct ku_job *job, void *arg)
{
    struct eval_case *c = arg;
    struct kumi_eval_result result;
    KU_TRY(
        ku_evaluate_run(job, &(struct kumi_eval_options){.run = c->run, .ema = c->ema}, &result));
    if (job->rank == 0)
        c->result = result;
    return KUMI_OK;
}

static void expect_eval(const struct run *r, int n, int64_t step, double loss)
{
    struct eval_case c = {.run = r->dir};
    if (ku_comm_threads(n, NULL, evaluate, &c) < 0)
        fail_msg("%d ranks: %s", n, ku_err_get()->text);
    assert_int_equal(c.result.step, step);
    if (memcmp(&c.result.loss, &loss, sizeof loss) != 0)
        fail_msg("%d ranks: loss %.17g, in training %.17g", n, c.result.loss, loss);
    assert_true(c.result.perplexity == exp(loss));
    assert_int_equal(c.result.tokens, 21 * 24); /* (520 - 1) / 24 samples */
}

/* Rank counts that divide V and that do not, more ranks than micro-batches of a step; the
 * configuration's own first weights and accumulation are not looked at. */
static void evaluates_as_trained(void **state)
{
    (void)state;
    static const char *const f32[] = {"train.steps=20", "train.virtual_shards=4",
                                      "train.accumulation=2"};
    static const char *const bf16[] = {"train.steps=20", "precision.compute=bf16",
                                       "parallel.replicate=1", "train.micro_batch=4"};
    static const int ranks[] = {1, 2, 3, 5};
    struct kumi_eval_result e;
    struct run r;
    for (int i = 0; i < 2; i++) {
        run_create(&r, i ? 1 : 2, i ? bf16 : f32, i ? 4 : 3);
        for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++)
            expect_eval(&r, ranks[k], 20, r.val_loss);
        assert_int_equal(kumi_eval(r.dir, &e), 0); /* alone, as the environment says */
        assert_memory_equal(&e.loss, &r.val_loss, sizeof e.loss);
        assert_int_equal(e.is_reported, 0);
        struct kumi_sample_options o = {.run = r.dir, .prompt = "a", .tokens = 3};
        struct piece p;
        assert_int_equal(sample(o, &p), 0);
        assert_int_equal(p.text.bytes, 4);
        ku_str_fini(&p.text);
        run_destroy(&r);
    }
}

/* A run's last state in a trainer that could go on, whose averages take the weights' place. */
struct averages {
    const struct run *r;
    const char *set[8];
    int n_sets;
    double loss;
};
static int take_averages(struct ku_job *job, void *arg)
{
    struct averages *a = arg;
    struct ku_session s = {0};
    char path[128];
    double loss;
    int64_t step;
    int status;
    snprintf(path, sizeof path, "%s/checkpoints/step-00000020", a->r->dir);
    KU_TRY_OUT(ku_session_configure(&s, a->r->config, a->set, a->n_sets, NULL, job->n));
    KU_TRY_OUT(ku_session_open_data(&s, job));
    KU_TRY_OUT(ku_session_create_trainer(&s, job));
    KU_TRY_OUT(ku_session_load(&s, path, &step));
    KU_TRY_OUT(ku_trainer_take_ema(s.t));
    KU_TRY_OUT(ku_session_evaluate(&s, NULL, &loss));
    if (job->rank == 0)
        a->loss = loss;
out:
    ku_session_fini(&s);
    return status;
}

/*
 * A run in training removes a checkpoint while it is read, at one tick of the reader. An evaluation
 * ticks first when something of it has been read, which is before its averages are.
 */
struct removal {
    struct eval_case c;
    int at; /* the tick; < 0: none */
    _Atomic int n_ticks;
};
static void move(const char *run, const char *from, const char *to)
{
    char path[2][128];
    snprintf(path[0], sizeof path[0], "%s/%s", run, from);
    snprintf(path[1], sizeof path[1], "%s/%s", run, to);
    KU_IGNORE(ku_os_rename(path[0], path[1]), "the reader's result tells");
}
static void replace_checkpoint(void *ctx)
{
    struct removal *m = ctx;
    if (atomic_fetch_add(&m->n_ticks, 1) != m->at)
        return;
    move(m->c.run, "checkpoints/step-00000010", "older");
    move(m->c.run, "newer", "checkpoints/step-00000020");
}
static int evaluate_removed(struct ku_job *job, void *arg)
{
    struct removal *m = arg;
    const struct ku_ticker own = ku_ticker;
    ku_ticker = (struct ku_ticker){replace_checkpoint, m};
    const int status = evaluate(job, &m->c);
    ku_ticker = own;
    return status;
}

static void evaluates_the_newer(const struct run *r, double loss)
{
    for (int n = 1; n <= 2; n++) {
        struct removal m = {.c = {.run = r->dir, .ema = 1}};
        move(r->dir, "checkpoints/step-00000020", "newer");
        if (ku_comm_threads(n, NULL, evaluate_removed, &m) < 0)
            fail_msg("%d ranks: %s", n, ku_err_get()->text);
        assert_true(m.n_ticks > 0);
        assert_int_equal(m.c.result.step, 20);
        assert_memory_equal(&m.c.result.loss, &loss, sizeof loss);
        move(r->dir, "older", "checkpoints/step-00000010");
    }
}

/*
 * The same once the data are open, which is EINPUT: the tokenizer in the checkpoint is opened again
 * after them. The cache's message tells when.
 */
static void replace_at_cache(void *ctx, const char *line, size_t bytes)
{
    static const char words[] = "nothing is stored there";
    if (memmem(line, bytes, words, sizeof words - 1))
        replace_checkpoint(ctx);
}

static void evaluates_the_newer_data(void **state)
{
    (void)state;
    static const char *const set[] = {"train.steps=20", "model.vocab_size=656",
                                      "data.tokenizer=" KUMI_SOURCE_DIR
                                      "/tests/fixtures/tokenizer/small"};
    const char *cache = getenv("KUMI_CACHE");
    char *old = cache ? ku_strdup(cache) : NULL;
    struct run r;
    run_create(&r, 1, set, 3);
    assert_int_equal(setenv("KUMI_CACHE", "/dev/null/none", 1), 0);
    for (int n = 1; n <= 2; n++) {
        struct removal m = {.c = {.run = r.dir}};
        const struct kumi_messages messages = {.line = replace_at_cache, .ctx = &m};
        move(r.dir, "checkpoints/step-00000020", "newer");
        kumi_messages_set(&messages);
        const int status = ku_comm_threads(n, NULL, evaluate, &m.c);
        kumi_messages_set(NULL);
        if (status < 0)
            fail_msg("%d ranks: %s", n, ku_err_get()->text);
        assert_true(m.n_ticks > 0);
        assert_int_equal(m.c.result.step, 20);
        assert_memory_equal(&m.c.result.loss, &r.val_loss, sizeof r.val_loss);
        move(r.dir, "older", "checkpoints/step-00000010");
    }
    run_destroy(&r);
    assert_int_equal(old ? setenv("KUMI_CACHE", old, 1) : unsetenv("KUMI_CACHE"), 0);
    ku_free(old);
}

/* Samples, or exports to `to`, while a ticker runs. */
static int read_ticking(struct kumi_sample_options o, const char *to, struct piece *p,
                        void (*tick)(void *ctx), void *ctx)
{
    const struct kumi_weights_options w = {.ema = o.ema};
    *p = (struct piece){0};
    ku_ticker = (struct ku_ticker){tick, ctx};
    const int status = to ? kumi_ckpt_export(o.run, to, &w) : sample(o, p);
    ku_ticker = (struct ku_ticker){NULL, NULL};
    return status;
}

/* At each tick of the search, sample and export take the newer checkpoint. */
static void samples_the_newer(const struct run *r)
{
    char newest[128], to[128];
    snprintf(newest, sizeof newest, "%s/checkpoints/step-00000020", r->dir);
    snprintf(to, sizeof to, "%s/exported", r->dir);
    for (int i = 0; i < 4; i++) {
        struct kumi_sample_options o = {
            .prompt = "a", .tokens = 24, .temperature = 2, .seed = 1, .ema = i % 2};
        const char *folder = i < 2 ? NULL : to;
        struct removal m = {.c = {.run = r->dir}, .at = -1};
        struct piece wanted, p;
        o.run = newest;
        assert_int_equal(sample(o, &wanted), 0);
        o.run = r->dir;
        assert_int_equal(read_ticking(o, NULL, &p, replace_checkpoint, &m), 0); /* counts */
        ku_str_fini(&p.text);
        const int n_ticks = m.n_ticks;
        assert_true(n_ticks >= 3); /* config.json, the header, tensors */
        for (int at = 0; at < n_ticks; at++) {
            m = (struct removal){.c = {.run = r->dir}, .at = at};
            move(r->dir, "checkpoints/step-00000020", "newer");
            if (read_ticking(o, folder, &p, replace_checkpoint, &m) < 0)
                fail_msg("tick %d of %d: %s", at, n_ticks, ku_err_get()->text);
            if (folder == NULL)
                assert_string_equal(ku_str_get(&p.text), ku_str_get(&wanted.text));
            else
                assert_int_equal(ku_os_rmtree(to), 0);
            ku_str_fini(&p.text);
            move(r->dir, "older", "checkpoints/step-00000010");
        }
        ku_str_fini(&wanted.text);
    }
}

/* A run that removes each checkpoint sooner than it is read, and a removed one by its own path */
static void swap_checkpoints(void *ctx)
{
    struct removal *m = ctx;
    const bool is_even = atomic_fetch_add(&m->n_ticks, 1) % 2 == 0;
    move(m->c.run, is_even ? "checkpoints/step-00000010" : "older",
         is_even ? "older" : "checkpoints/step-00000010");
    move(m->c.run, is_even ? "newer" : "checkpoints/step-00000020",
         is_even ? "checkpoints/step-00000020" : "newer");
}
static void removed_too_often(const struct run *r)
{
    char path[128];
    struct kumi_sample_options o = {.run = r->dir, .prompt = "a", .tokens = 1};
    struct removal m = {.c = {.run = r->dir}};
    struct piece p;
    move(r->dir, "checkpoints/step-00000020", "newer");
    assert_int_equal(read_ticking(o, NULL, &p, swap_checkpoints, &m), KUMI_ENOCKPT);
    assert_non_null(strstr(ku_err_get()->text, "removed 5 checkpoints before they were read"));
    assert_int_equal(p.n, 0);
    assert_int_equal(m.n_ticks, 5);
    move(r->dir, "older", "checkpoints/step-00000010");

    snprintf(path, sizeof path, "%s/checkpoints/step-00000010", r->dir);
    o.run = path;
    m = (struct removal){.c = {.run = r->dir}};
    assert_int_equal(read_ticking(o, NULL, &p, replace_checkpoint, &m), KUMI_ENOCKPT);
    assert_non_null(strstr(ku_err_get()->text, "there is no such directory"));
    move(r->dir, "older", "checkpoints/step-00000010");
}

/* Damaged averages: the checkpoint before them has its own. */
static void damaged_averages(const struct run *r)
{
    char path[192], to[128];
    const struct kumi_weights_options w = {.ema = 1};
    struct kumi_sample_options o = {
        .run = r->dir, .prompt = "a", .tokens = 24, .temperature = 2, .seed = 1, .ema = 1};
    struct piece wanted, p;
    struct ku_st st;
    snprintf(path, sizeof path, "%s/checkpoints/step-00000010", r->dir);
    o.run = path;
    assert_int_equal(sample(o, &wanted), 0);
    snprintf(path, sizeof path, "%s/checkpoints/step-00000020/optimizer/optimizer.safetensors",
             r->dir);
    assert_int_equal(ku_st_open(path, &st), 0);
    const struct ku_st_tensor *x = ku_st_find(&st, "wte.weight.ema");
    assert_non_null(x);
    const int64_t at = (int64_t)x->at;
    ku_st_close(&st);
    flip(path, at);
    o.run = r->dir;
    assert_int_equal(sample(o, &p), 0);
    assert_string_equal(ku_str_get(&p.text), ku_str_get(&wanted.text));
    ku_str_fini(&p.text);
    ku_str_fini(&wanted.text);
    snprintf(to, sizeof to, "%s/exported", r->dir);
    assert_int_equal(kumi_ckpt_export(r->dir, to, &w), 0);
    snprintf(path, sizeof path, "%s/checkpoints/step-00000020", r->dir);
    o.run = path;
    expect_error(o, KUMI_ENOCKPT, "wte.weight.ema");
    o.ema = 0; /* the weights are whole */
    assert_int_equal(sample(o, &p), 0);
    ku_str_fini(&p.text);
}

/* Averages, of a state that was dealt out among ranks, evaluate alike wherever they lie. */
static void evaluates_averages(void **state)
{
    (void)state;
    static const char *const numerics[] = {"train.steps=20", "train.virtual_shards=2",
                                           "train.ema=0.9", "precision.compute=bf16"};
    static const char *const layout[][4] = {
        {"parallel.share_host_state=false", "parallel.zero=3", "parallel.persist_below=0", "2"},
        {"parallel.share_host_state=false", "parallel.zero=1", "parallel.overlap=false", "2"},
        {"parallel.share_host_state=false", "parallel.zero=0", "parallel.overlap=false", "2"},
        {"parallel.share_host_state=true", "parallel.zero=0", "parallel.overlap=false", "1"}};
    struct averages a[4];
    struct run r;
    for (int i = 0; i < 4; i++) {
        a[i] = (struct averages){.r = &r};
        for (int k = 0; k < 7; k++)
            a[i].set[a[i].n_sets++] = k < 4 ? numerics[k] : layout[i][k - 4];
        if (i == 0)
            run_create(&r, 2, a[i].set, a[i].n_sets);
        if (ku_comm_threads(layout[i][3][0] - '0', NULL, take_averages, &a[i]) < 0)
            fail_msg("layout %d: %s", i, ku_err_get()->text);
        assert_memory_equal(&a[i].loss, &a[0].loss, sizeof a[0].loss);
    }
    assert_true(a[0].loss != r.val_loss);
    for (int n = 1; n <= 3; n++) {
        struct eval_case c = {.run = r.dir, .ema = 1};
        expect_eval(&r, n, 20, r.val_loss);
        if (ku_comm_threads(n, NULL, evaluate, &c) < 0)
            fail_msg("%d ranks: %s", n, ku_err_get()->text);
        assert_memory_equal(&c.result.loss, &a[0].loss, sizeof a[0].loss);
    }
    evaluates_the_newer(&r, a[0].loss);
    samples_the_newer(&r);
    removed_too_often(&r);
    damaged_averages(&r);
    run_destroy(&r);
}

/* What an evaluation maps: parameters and their compute copies once a host, whatever the training's
 * stage; no gradients, no optimizer, nothing per rank but a micro-batch. */
struct mapped {
    const struct run *r;
    int is_eval_only;
    size_t bytes[KU_N_ARENAS], params, state;
};
static int map(struct ku_job *job, void *arg)
{
    struct mapped *m = arg;
    struct ku_session s = {.is_eval_only = m->is_eval_only};
    int status;
    KU_TRY_OUT(ku_session_configure(&s, m->r->config, m->r->set, m->r->n_sets, NULL, job->n));
    KU_TRY_OUT(ku_session_open_data(&s, job));
    KU_TRY_OUT(ku_session_create_trainer(&s, job));
    for (int i = 0; i < s.t->n_tensors && job->rank == 0; i++) {
        size_t bytes = (size_t)ku_ckpt_tensor_count(&s.t->tensor[i]) * sizeof(float);
        m->state += bytes;
        m->params += s.t->tensor[i].group == KU_CKPT_MODEL ? bytes : 0;
    }
    if (job->rank == 0)
        memcpy(m->bytes, s.t->memory->bytes, sizeof m->bytes);
out:
    ku_session_fini(&s);
    return status;
}

static void evaluation_holds_parameters(void **state)
{
    (void)state;
    static const char *const set[] = {"train.steps=2", "train.virtual_shards=2", "train.ema=0.9"};
    struct run r;
    run_create(&r, 1, set, 3);
    struct mapped all = {.r = &r}, m = {.r = &r, .is_eval_only = 1};
    assert_int_equal(ku_comm_threads(2, NULL, map, &all), 0);
    assert_int_equal(ku_comm_threads(2, NULL, map, &m), 0);
    assert_int_equal(all.params, m.params);
    assert_int_equal(all.state, 4 * all.params); /* two moments and an average */
    assert_int_equal(m.state, m.params);
    assert_true(m.bytes[KU_AR_HOST] >= m.params && m.bytes[KU_AR_HOST] < m.params + (8 << 10));
    assert_int_equal(m.bytes[KU_AR_SHARD] + m.bytes[KU_AR_STATE], 0);
    assert_true(all.bytes[KU_AR_WIRE] >= all.params); /* gradients */
    assert_true(m.bytes[KU_AR_WIRE] < 4 << 10);
    assert_true(m.bytes[KU_AR_STEP] <= all.bytes[KU_AR_STEP]);
    run_destroy(&r);
}

static void expect_eval_error(const char *run, int status, const char *words)
{
    struct kumi_eval_result e;
    assert_int_equal(kumi_eval(run, &e), status);
    assert_int_equal(e.is_reported, 1);
    if (strstr(ku_err_get()->text, words) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", words, ku_err_get()->text);
}

static void no_validation(void **state)
{
    (void)state;
    static const char *const set[] = {"train.steps=2", "data.val_fraction=0"};
    struct run r;
    run_create(&r, 1, set, 2);
    expect_eval_error(r.dir, KUMI_EINVAL, "no validation split");
    run_destroy(&r);
    expect_eval_error("/nonexistent/run", KUMI_ENOCKPT, "/nonexistent/run");
}

/* A directory as transformers keeps one: f32, bytes, or its own tokenizer. */
static void directories(const struct run *r)
{
    char dir[160], file[192], wanted[64], *text;
    size_t bytes;
    struct piece p;
    repeat(wanted, 0, 39);
    snprintf(dir, sizeof dir, "%s/checkpoints/step-%08d/model", r->dir, STEPS);
    struct kumi_sample_options o = {.run = dir, .prompt = "abc", .tokens = 36};
    expect_text(&o, wanted);

    /* one more than bytes: whose ids are they? */
    snprintf(file, sizeof file, "%s/config.json", dir);
    assert_int_equal(ku_os_slurp(file, 1 << 20, &text, &bytes), 0);
    char *vocab = strstr(text, "256");
    assert_non_null(vocab);
    vocab[2] = '7';
    write_file(file, text, bytes);
    expect_error(o, KUMI_EINPUT, "no tokenizer for a vocabulary of 257");
    /* a tokenizer: then the weights must fit */
    char tokenizer[256];
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.json", dir);
    write_file(tokenizer, "{", 1);
    expect_error(o, KUMI_EINPUT, "tokenizer.json");
    assert_int_equal(ku_os_unlink(tokenizer), 0);
    vocab[2] = '6';
    write_file(file, text, bytes);
    ku_free(text);
    assert_int_equal(sample(o, &p), 0);
    ku_str_fini(&p.text);
}

/* A damaged checkpoint is passed over; where there is no other, its damage is the error. */
static void damages(const struct run *r)
{
    char path[192];
    struct kumi_eval_result e;
    struct piece p;
    struct kumi_sample_options o = {.run = r->dir, .prompt = "abc", .tokens = 20};
    snprintf(path, sizeof path, "%s/checkpoints/step-%08d/model/model.safetensors", r->dir, STEPS);
    flip(path, -100);
    assert_int_equal(sample(o, &p), 0);
    ku_str_fini(&p.text);
    assert_int_equal(kumi_eval(r->dir, &e), 0);
    assert_int_equal(e.step, STEPS / 2);
    snprintf(path, sizeof path, "%s/checkpoints/step-%08d", r->dir, STEPS);
    o.run = path;
    expect_error(o, KUMI_ENOCKPT, "damaged");
    expect_eval_error(path, KUMI_ENOCKPT, "damaged");
    snprintf(path, sizeof path, "%s/checkpoints/step-%08d/model/model.safetensors", r->dir,
             STEPS / 2);
    flip(path, -100);
    o.run = r->dir;
    expect_error(o, KUMI_ENOCKPT, "damaged");
    expect_eval_error(r->dir, KUMI_ENOCKPT, "damaged");
}

/* A vocabulary below 256: the tokenizer knows bytes that the model does not. */
static void small_vocabulary(void **state)
{
    (void)state;
    static const char *const set[] = {"train.steps=2", "model.vocab_size=250",
                                      "model.tie_word_embeddings=false"};
    struct run r;
    struct piece p;
    run_create(&r, 1, set, 3);
    struct kumi_sample_options o = {
        .run = r.dir, .prompt = "a", .tokens = 60, .temperature = 1e6, .seed = 5};
    assert_int_equal(sample(o, &p), 0);
    for (size_t i = 0; i < p.text.bytes; i++)
        assert_true((unsigned char)p.text.text[i] < 250);
    assert_int_equal(p.text.bytes, 61);
    ku_str_fini(&p.text);
    o.prompt = "a\xFA";
    expect_error(o, KUMI_EINVAL, "token 1 is 250, but the model's vocabulary has 250");
    run_destroy(&r);
}

static void learned_by_heart(void **state)
{
    (void)state;
    struct run r;
    run_create(&r, 2, NULL, 0);
    assert_true(r.val_loss < 0.5);
    expect_eval(&r, 1, STEPS, r.val_loss);
    samples(&r);
    seeds(&r);
    batches(&r);
    errors(&r);
    directories(&r);
    damages(&r);
    run_destroy(&r);
}

/* Rotary positions, grouped queries: what is kept was turned by its own position. */
static void llama_by_heart(void **state)
{
    (void)state;
    struct run r;
    run_create_model(&r, 1, llama, NULL, 0);
    assert_true(r.val_loss < 0.5);
    samples(&r);
    batches(&r);
    run_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(evaluates_as_trained),
                                       cmocka_unit_test(evaluates_averages),
                                       cmocka_unit_test(evaluates_the_newer_data),
                                       cmocka_unit_test(evaluation_holds_parameters),
                                       cmocka_unit_test(no_validation),
                                       cmocka_unit_test(small_vocabulary),
                                       cmocka_unit_test(learned_by_heart),
                                       cmocka_unit_test(llama_by_heart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
