/* SPDX-License-Identifier: Apache-2.0 */
/* A trained model continues a text, token by token. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/random.h"
#include "comm/job.h"
#include "data/tokenizer.h"
#include "data/words.h"
#include "kumi/run.h"
#include "train/infer.h"
#include "train/model.h"
#include "train/stored.h"

enum { MAX_MODEL_BYTES = 1 << 20, BYTE_VOCAB = 256, STREAM = 0x73616d70 /* "samp" */ };

struct sample {
    const struct kumi_sample_options *o;
    struct ku_model model;
    char *weights; /* directory with model.safetensors */
    struct ku_infer_opts infer;
    struct ku_tokenizer *tokenizer;
    int64_t n_ids; /* that the model may say and the tokenizer can write */
    struct ku_tokens prompt;
    uint32_t *id; /* [cap]; the text's last n tokens, at least n_positions of them if there are */
    int64_t n, cap;
    double *logits; /* [vocab_size] */
    struct rank {
        double logit;
        uint32_t id;
    } * rank;              /* [n_ids], where top_k needs it */
    struct ku_str pending; /* text that was not handed out yet */
};

static int has(const char *dir, const char *name)
{
    struct stat st;
    char *path = ku_asprintf("%s/%s", dir, name);
    int found = path && ku_os_stat(path, &st) == 0;
    ku_free(path);
    return found;
}

static int set_device(struct sample *s, const char *device, const char *isa, int64_t threads)
{
    s->infer.device = ku_device_find(device);
    s->infer.device_opts.n_threads = threads > 0 ? (int)threads : ku_os_n_cpus();
    s->infer.device_opts.isa = ku_cpu_isa();
    if (isa) {
        enum ku_isa pinned;
        KU_TRY(ku_cpu_isa_parse(isa, &pinned));
        if (pinned < s->infer.device_opts.isa)
            s->infer.device_opts.isa = pinned;
    }
    return KUMI_OK;
}

/* A directory that transformers loads: its own tokenizer, or bytes where that is what the
 * vocabulary must mean. */
static int open_directory(struct sample *s, const char *dir)
{
    size_t bytes;
    char *text, *path = ku_asprintf("%s/config.json", dir);
    s->weights = ku_strdup(dir);
    if (path == NULL || s->weights == NULL) {
        ku_free(path);
        return KUMI_ENOMEM;
    }
    int status = KUMI_OK;
    if (ku_os_slurp(path, MAX_MODEL_BYTES, &text, &bytes) < 0)
        status = KU_ERR(ku_os_status(KUMI_EINPUT), "model: %s: %s", path, ku_os_why());
    else {
        status = ku_model_parse(path, text, bytes, &s->model);
        ku_free(text);
    }
    ku_free(path);
    KU_TRY(status);
    KU_TRY(set_device(s, "cpu", NULL, 0));
    s->infer.compute = KUMI_F32;
    if (has(dir, "tokenizer.json") || (has(dir, "vocab.json") && has(dir, "merges.txt")) ||
        (has(dir, "encoder.json") && has(dir, "vocab.bpe")))
        return ku_tokenizer_open(dir, &s->tokenizer);
    if (s->model.facts.vocab_size == BYTE_VOCAB)
        return ku_tokenizer_open("byte", &s->tokenizer);
    return KU_ERR(KUMI_EINPUT,
                  "sample: %s: no tokenizer for a vocabulary of %lld; put tokenizer.json, or "
                  "vocab.json and merges.txt, beside the model",
                  dir, (long long)s->model.facts.vocab_size);
}

/* Tokens of unknown meaning: a run on token files whose configuration names no tokenizer. */
static int check_tokens_are_text(const struct ku_config *cfg, const char *run, int64_t vocab_count)
{
    const char *file = cfg->data_train.n > 0 ? cfg->data_train.item[0] : "";
    size_t bytes = strlen(file);
    if (strcmp(cfg->data_tokenizer, "byte") != 0 || vocab_count <= BYTE_VOCAB || bytes < 4 ||
        strcmp(file + bytes - 4, ".bin") != 0)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL,
                  "sample: %s: trained on tokens (%s), and data.tokenizer does not say whose; "
                  "export the model and put its tokenizer's files beside it",
                  run, file);
}

static int use_config(struct sample *s, const struct ku_config *cfg)
{
    KU_TRY(ku_model_read(cfg, &s->model));
    KU_TRY(check_tokens_are_text(cfg, s->o->run, s->model.facts.vocab_size));
    KU_TRY(ku_dtype_parse(cfg->precision_compute, &s->infer.compute));
    KU_TRY(set_device(s, cfg->parallel_device, cfg->parallel_isa,
                      cfg->train_threads == KU_NULL ? 0 : cfg->train_threads));
    return ku_tokenizer_open(cfg->data_tokenizer, &s->tokenizer);
}

static int open_checkpoint(struct sample *s)
{
    struct ku_config cfg = {0};
    struct ku_ckpt c;
    KU_TRY(ku_stored_find(s->o->run, &c));
    int status = ku_stored_config(&c, NULL, 0, &cfg);
    if (status == KUMI_OK) {
        status = use_config(s, &cfg);
        ku_config_fini(&cfg);
    }
    if (status == KUMI_OK) {
        s->weights = ku_asprintf("%s/model", c.path);
        status = s->weights ? KUMI_OK : KUMI_ENOMEM;
    }
    ku_ckpt_close(&c);
    return status;
}

static int check_options(const struct kumi_sample_options *o)
{
    if (o->run == NULL || o->emit == NULL)
        return KU_ERR(KUMI_EINVAL, "sample: run and emit must be given");
    if (!(o->temperature >= 0 && isfinite(o->temperature)))
        return KU_ERR(KUMI_EINVAL, "sample: temperature: %g; give 0 or more", o->temperature);
    if (o->top_k < 0)
        return KU_ERR(KUMI_EINVAL, "sample: top-k: %lld; give 0 (all) or more",
                      (long long)o->top_k);
    if (o->tokens < 0)
        return KU_ERR(KUMI_EINVAL, "sample: tokens: %lld; give 0 or more", (long long)o->tokens);
    if (o->prompt && o->prompt[0] == '\0')
        return KU_ERR(KUMI_EINVAL, "sample: prompt: empty; give a text, or none for a newline");
    return KUMI_OK;
}

static int encode_prompt(struct sample *s)
{
    const char *text = s->o->prompt ? s->o->prompt : "\n";
    int64_t vocab = s->model.facts.vocab_size;
    if (!s->model.facts.is_causal)
        return KU_ERR(KUMI_EINVAL,
                      "sample: %s: model_type %s does not continue texts; give gpt2 or llama",
                      s->o->run, ku_model_type(&s->model));
    KU_TRY(ku_tokenizer_encode(s->tokenizer, text, strlen(text), &s->prompt));
    if (s->prompt.count == 0)
        return KU_ERR(KUMI_EINVAL, "sample: prompt: it has no tokens; give more text");
    for (size_t i = 0; i < s->prompt.count; i++)
        if (s->prompt.id[i] >= vocab)
            return KU_ERR(KUMI_EINVAL,
                          "sample: prompt: token %zu is %u, the model's vocabulary has %lld; leave "
                          "out what the model was not trained on",
                          i, s->prompt.id[i], (long long)vocab);
    ku_str_append(&s->pending, text, strlen(text));
    return s->pending.failed ? KUMI_ENOMEM : KUMI_OK;
}

/* The window, and room to slide it now and then instead of at every token. */
static int make_buffers(struct sample *s)
{
    int64_t most = s->model.facts.max_positions, n = (int64_t)s->prompt.count;
    int64_t vocab = s->model.facts.vocab_size, known = ku_tokenizer_vocab_count(s->tokenizer);
    s->n_ids = known < vocab ? known : vocab;
    s->cap = s->o->tokens > 2 * most - n ? 2 * most : n + s->o->tokens;
    s->infer.max_tokens = s->cap < most ? s->cap : most;
    s->n = n < most ? n : most;
    s->id = ku_malloc((size_t)s->cap * sizeof *s->id);
    s->logits = ku_malloc((size_t)vocab * sizeof *s->logits);
    if (s->o->top_k > 0 && s->o->top_k < s->n_ids) {
        s->rank = ku_malloc((size_t)s->n_ids * sizeof *s->rank);
        if (s->rank == NULL)
            return KUMI_ENOMEM;
    }
    if (s->id == NULL || s->logits == NULL)
        return KUMI_ENOMEM;
    memcpy(s->id, s->prompt.id + n - s->n, (size_t)s->n * sizeof *s->id);
    return KUMI_OK;
}

static void push(struct sample *s, uint32_t id)
{
    int64_t keep = s->model.facts.max_positions - 1;
    if (s->n == s->cap) {
        memmove(s->id, s->id + s->n - keep, (size_t)keep * sizeof *s->id);
        s->n = keep;
    }
    s->id[s->n++] = id;
}

/* Likelier first; of equals the lower id. */
static int by_logit(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Number `number` of the made tokens. Its random number is a function of (seed, number). */
static int pick(struct sample *s, int64_t number, uint32_t *id)
{
    double *logit = s->logits, total = 0, sum = 0;
    struct rank first = {-HUGE_VAL, 0}, last = {-HUGE_VAL, UINT32_MAX};
    for (int64_t v = 0; v < s->n_ids; v++) {
        if (!(logit[v] < HUGE_VAL))
            return KU_ERR(KUMI_ENUMERIC,
                          "sample: the logit of token %lld is %g: the model is broken",
                          (long long)v, logit[v]);
        if (logit[v] > first.logit)
            first = (struct rank){logit[v], (uint32_t)v};
    }
    *id = first.id;
    if (s->o->temperature == 0 || !(first.logit > -HUGE_VAL))
        return KUMI_OK;
    if (s->rank) {
        for (int64_t v = 0; v < s->n_ids; v++)
            s->rank[v] = (struct rank){logit[v], (uint32_t)v};
        qsort(s->rank, (size_t)s->n_ids, sizeof *s->rank, by_logit);
        last = s->rank[s->o->top_k - 1];
    }
    for (int64_t v = 0; v < s->n_ids; v++) { /* from here on: weights */
        struct rank r = {logit[v], (uint32_t)v};
        logit[v] = by_logit(&r, &last) > 0 ? 0 : exp((r.logit - first.logit) / s->o->temperature);
        total += logit[v];
    }
    struct ku_philox random = ku_philox(s->o->seed, 0, STREAM, (uint64_t)number);
    double u = ((double)(random.word[0] >> 5) * 0x1p26 + (double)(random.word[1] >> 6)) * 0x1p-53;
    for (int64_t v = 0; v < s->n_ids; v++) {
        sum += logit[v];
        if (sum > u * total) {
            *id = (uint32_t)v;
            return KUMI_OK;
        }
    }
    return KUMI_OK; /* u * total was rounded up to total */
}

/* Hands out what is there, but for the beginning of a character whose end is still to come. */
static void hand_out(struct sample *s, int is_end)
{
    const unsigned char *at = (const unsigned char *)ku_str_get(&s->pending);
    size_t all = s->pending.bytes, held = 0;
    for (size_t k = 1; k <= 3 && k <= all && !is_end; k++)
        if (ku_utf8_is_partial(at + all - k, at + all))
            held = k;
    if (all == held)
        return;
    s->o->emit(s->o->ctx, s->pending.text, all - held);
    memmove(s->pending.text, s->pending.text + all - held, held);
    s->pending.bytes = held;
}

static int make_text(struct sample *s, struct ku_infer *m)
{
    hand_out(s, 0);
    for (int64_t i = 0; i < s->o->tokens; i++) {
        uint32_t id;
        int64_t seen = s->n < s->infer.max_tokens ? s->n : s->infer.max_tokens;
        KU_TRY(ku_infer_next(m, s->id + s->n - seen, seen, s->logits));
        KU_TRY(pick(s, i, &id));
        push(s, id);
        KU_TRY(ku_tokenizer_decode(s->tokenizer, &id, 1, &s->pending));
        hand_out(s, 0);
    }
    hand_out(s, 1);
    return KUMI_OK;
}

static int run(struct ku_job *job, void *arg)
{
    struct sample *s = arg;
    struct ku_infer *m;
    KU_TRY(ku_infer_create(job, &s->model, s->weights, &s->infer, &m));
    int status = make_text(s, m);
    ku_infer_destroy(m);
    return status;
}

static int prepare(struct sample *s)
{
    const char *dir = s->o->run;
    KU_TRY(check_options(s->o));
    if (ku_stored_is_weights(dir))
        KU_TRY(open_directory(s, dir));
    else
        KU_TRY(open_checkpoint(s));
    KU_TRY(encode_prompt(s));
    return make_buffers(s);
}

int kumi_sample(const struct kumi_sample_options *options)
{
    struct sample s = {.o = options};
    int status = prepare(&s);
    if (status == KUMI_OK) /* a job of one, whatever the environment says */
        status = ku_job_threads(1, NULL, run, &s);
    ku_str_fini(&s.pending);
    ku_free(s.rank);
    ku_free(s.logits);
    ku_free(s.id);
    ku_tokens_fini(&s.prompt);
    ku_tokenizer_destroy(s.tokenizer);
    ku_free(s.weights);
    ku_model_fini(&s.model);
    return status;
}
