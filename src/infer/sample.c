/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Continues prompts with a trained model, token by token. Text 0 is streamed; the others are
 * emitted when all are finished. Output is held back while it may be an incomplete UTF-8 character
 * or the start of the stop string.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/utf8.h"
#include "comm/world.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/words.h"
#include "kumi/run.h"
#include "batch/text_source.h"
#include "infer/generator.h"
#include "infer/inference.h"
#include "model/model.h"
#include "infer/sampling.h"
#include "base/progress_line.h"
#include "train/session.h"
#include "model/pretrained.h"
#include "sim/kernel_choice.h"

enum { MAX_MODEL_BYTES = 1 << 20, BYTE_VOCAB = 256, MAX_TEXTS = 1 << 16 };

struct text {
    const char *prompt;
    struct ku_tokens tokens; /* of the prompt */
    struct ku_str pending;   /* decoded but not emitted yet */
    struct ku_str made;      /* output of texts 1 …, emitted at the end */
};
struct sample {
    const struct kumi_sample_options *o;
    struct ku_config cfg; /* of a run; zero for a directory of weights */
    struct ku_model model;
    char *weights, *checkpoint; /* directory with model.safetensors; its checkpoint, or NULL */
    struct ku_infer_opts infer;
    struct ku_tokenizer *tokenizer;
    struct ku_pretrained_ends ends; /* tokens that end a text */
    int64_t n_ids;                  /* ids that model and tokenizer have, but for gaps */
    uint32_t *gap;                  /* [n_gaps]: ids below n_ids without a token */
    int64_t n_gaps;
    int64_t n; /* number of texts */
    struct text *text;
    double *logits;         /* [n][vocab_size] */
    uint32_t *id;           /* [n]: newest tokens */
    unsigned char *is_done; /* [n] */
    struct ku_sampling sampling;
    bool is_loaded;          /* texts may have been emitted */
    struct kumi_error error; /* of an attempt after that */
};

/* trained: the model's compute dtype, which the option replaces */
static int set_device(struct sample *s, const char *trained, const char *device, const char *isa)
{
    KU_TRY(ku_dtype_parse(s->o->dtype ? s->o->dtype : trained, &s->infer.compute));
    s->infer.device = ku_device_find(device);
    KU_TRY(ku_inference_threads("sample", s->o->threads, &s->infer.device_opts.n_threads));
    KU_TRY(ku_isa_resolve(isa, s->infer.compute, &s->infer.device_opts.isa));
    KU_LOG(EXEC, INFO, "sample: %s on %s, threads: %d", kumi_dtype_name(s->infer.compute),
           ku_cpu_isa_name(s->infer.device_opts.isa), s->infer.device_opts.n_threads);
    return KUMI_OK;
}

/*
 * Opens a directory in Hugging Face's format, with its own tokenizer, or bytes if the vocabulary
 * requires it.
 */
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
    KU_TRY(set_device(s, "f32", "cpu", NULL));
    const char *where;
    KU_TRY(ku_pretrained_tokenizer(dir, s->o->tokenizer, s->model.properties.vocab_size, &where));
    return ku_tokenizer_open(where, &s->tokenizer);
}

/*
 * Rejects a run on token ids whose configuration names no tokenizer: the meaning of its tokens is
 * unknown.
 */
static int check_tokens_are_text(const struct ku_config *cfg, const char *run, int64_t vocab_count)
{
    const char *file = NULL;
    if (vocab_count > BYTE_VOCAB)
        KU_TRY(ku_text_find_ids(cfg, &file));
    if (file == NULL)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL,
                  "sample: %s: trained on token ids (%s), and data.tokenizer does not name their "
                  "tokenizer; name it with --tokenizer",
                  run, file);
}

/*
 * Opens the tokenizer of the options, or the run's: from its configuration, or the one stored with
 * the initial weights.
 */
static int open_tokenizer(struct sample *s, const struct ku_config *cfg, const char *dir)
{
    const char *where = s->o->tokenizer ? s->o->tokenizer : cfg->data_tokenizer;
    if (s->o->tokenizer == NULL && !ku_text_is_tokenized(cfg) && ku_companions_has_tokenizer(dir))
        where = dir;
    else if (s->o->tokenizer == NULL)
        KU_TRY(check_tokens_are_text(cfg, s->o->run, s->model.properties.vocab_size));
    return ku_tokenizer_open(where, &s->tokenizer);
}

static int use_config(struct sample *s, const struct ku_config *cfg, const char *dir)
{
    KU_TRY(ku_model_read(cfg, &s->model));
    s->infer.keep_f32 = (const char *const *)cfg->precision_keep_f32.item;
    s->infer.modules = &cfg->precision_modules.rules;
    KU_TRY(set_device(s, cfg->precision_compute, cfg->parallel_device, cfg->parallel_isa));
    return open_tokenizer(s, cfg, dir);
}

static int open_checkpoint(struct sample *s, const struct ku_ckpt *c)
{
    s->weights = ku_asprintf("%s/model", c->path);
    s->checkpoint = ku_strdup(c->path);
    s->infer.averages = s->o->ema ? s->checkpoint : NULL;
    if (s->weights == NULL || s->checkpoint == NULL)
        return KUMI_ENOMEM;
    KU_TRY(ku_pretrained_config(c, NULL, 0, &s->cfg));
    return use_config(s, &s->cfg, s->weights);
}

static int check_options(const struct kumi_sample_options *o)
{
    if (!(o->temperature >= 0 && isfinite(o->temperature)))
        return KU_ERR(KUMI_EINVAL, "sample: temperature: %g; give 0 or more", o->temperature);
    if (o->top_k < 0)
        return KU_ERR(KUMI_EINVAL, "sample: top-k: %lld; give 0 (all) or more",
                      (long long)o->top_k);
    if (o->tokens < 0)
        return KU_ERR(KUMI_EINVAL, "sample: tokens: %lld; give 0 or more", (long long)o->tokens);
    if (!(o->top_p >= 0 && o->top_p <= 1))
        return KU_ERR(KUMI_EINVAL,
                      "sample: top-p: %g; give a probability from 0 to 1; 0 and 1 keep all tokens",
                      o->top_p);
    if (o->n < 0 || o->n > MAX_TEXTS)
        return KU_ERR(KUMI_EINVAL, "sample: batch: %lld; give 1 to %d samples", (long long)o->n,
                      (int)MAX_TEXTS);
    if (o->dtype && strcmp(o->dtype, "f32") != 0 && strcmp(o->dtype, "bf16") != 0 &&
        strcmp(o->dtype, "f16") != 0)
        return KU_ERR(KUMI_EINVAL, "sample: dtype: %.60s: unknown; give f32, bf16 or f16",
                      o->dtype);
    if (o->stop && o->stop[0] == '\0')
        return KU_ERR(KUMI_EINVAL, "sample: stop: empty; give a string, or leave it out");
    return KUMI_OK;
}

static int encode_prompt(struct sample *s, struct text *t)
{
    int64_t vocab = s->model.properties.vocab_size;
    if (t->prompt[0] == '\0')
        return KU_ERR(KUMI_EINVAL,
                      "sample: prompt: empty; give text, or leave it out for a newline");
    KU_TRY(
        ku_tokenizer_encode_with_special(s->tokenizer, t->prompt, strlen(t->prompt), &t->tokens));
    if (t->tokens.count == 0)
        return KU_ERR(KUMI_EINVAL, "sample: prompt: encodes to no tokens; give more text");
    for (size_t i = 0; i < t->tokens.count; i++)
        if (t->tokens.id[i] >= vocab)
            return KU_ERR(KUMI_EINVAL,
                          "sample: prompt: token %zu is %u, but the model's vocabulary has %lld; "
                          "remove its text",
                          i, t->tokens.id[i], (long long)vocab);
    ku_str_append(&t->pending, t->prompt, strlen(t->prompt));
    return t->pending.failed ? KUMI_ENOMEM : KUMI_OK;
}

static int encode_prompts(struct sample *s)
{
    const struct kumi_sample_options *o = s->o;
    s->n = o->n ? o->n : 1;
    s->text = ku_calloc((size_t)s->n, sizeof *s->text);
    if (s->text == NULL)
        return KUMI_ENOMEM;
    for (int64_t i = 0; i < s->n; i++) {
        s->text[i].prompt = o->prompts ? o->prompts[i] : o->prompt ? o->prompt : "\n";
        KU_TRY(encode_prompt(s, &s->text[i]));
    }
    return KUMI_OK;
}

static int find_gaps(struct sample *s)
{
    for (int64_t v = 0; v < s->n_ids; v++)
        s->n_gaps += !ku_tokenizer_has(s->tokenizer, (uint32_t)v);
    s->gap = ku_calloc((size_t)s->n_gaps + 1, sizeof *s->gap);
    for (int64_t v = 0, n = 0; v < s->n_ids && s->gap; v++)
        if (!ku_tokenizer_has(s->tokenizer, (uint32_t)v))
            s->gap[n++] = (uint32_t)v;
    return s->gap ? KUMI_OK : KUMI_ENOMEM;
}

static int make_buffers(struct sample *s)
{
    int64_t vocab = s->model.properties.vocab_size, known = ku_tokenizer_vocab_count(s->tokenizer);
    int64_t most = s->model.properties.max_positions;
    size_t all;
    s->n_ids = known < vocab ? known : vocab;
    KU_TRY(find_gaps(s));
    s->infer.n_rows = s->n;
    s->infer.max_tokens = 1;
    for (int64_t i = 0; i < s->n; i++) {
        int64_t n = (int64_t)s->text[i].tokens.count;
        int64_t end = s->o->tokens > most - n ? most : n + s->o->tokens;
        if (end > s->infer.max_tokens)
            s->infer.max_tokens = end;
    }
    KU_TRY(ku_mul_size((size_t)s->n, (size_t)vocab * sizeof *s->logits, &all));
    s->logits = ku_malloc(all);
    s->id = ku_calloc((size_t)s->n, sizeof *s->id);
    s->is_done = ku_calloc((size_t)s->n, 1);
    s->sampling = (struct ku_sampling){
        .temperature = s->o->temperature, .top_k = s->o->top_k, .top_p = s->o->top_p};
    s->sampling.order = ku_malloc((size_t)s->n_ids * sizeof *s->sampling.order);
    return s->logits && s->id && s->is_done && s->sampling.order ? KUMI_OK : KUMI_ENOMEM;
}

/* Number of bytes at the end that may be the start of a character or of the stop string. */
static size_t held_bytes(const struct sample *s, const struct ku_str *pending)
{
    const char *text = ku_str_get(pending);
    const unsigned char *at = (const unsigned char *)text;
    size_t all = pending->bytes, held = 0, stop = s->o->stop ? strlen(s->o->stop) : 0;
    for (size_t k = 1; k <= 3 && k <= all; k++)
        if (ku_utf8_is_partial(at + all - k, at + all))
            held = k;
    for (size_t k = 1; k < stop && k <= all; k++)
        if (k > held && memcmp(text + all - k, s->o->stop, k) == 0)
            held = k;
    return held;
}

static void emit(struct sample *s, struct text *t, const char *text, size_t bytes)
{
    if (t == s->text)
        s->o->emit(s->o->ctx, text, bytes);
    else
        ku_str_append(&t->made, text, bytes);
}

static void hand_out(struct sample *s, struct text *t, int is_end)
{
    size_t all = t->pending.bytes, held = is_end ? 0 : held_bytes(s, &t->pending);
    if (all == held)
        return;
    emit(s, t, t->pending.text, all - held);
    memmove(t->pending.text, t->pending.text + all - held, held);
    t->pending.bytes = held;
}

/* Cuts the text at the stop string; returns 1 if it was found. */
static bool has_ended(const struct sample *s, struct ku_str *pending)
{
    const size_t stop = s->o->stop ? strlen(s->o->stop) : 0;
    for (size_t k = 0; stop && k + stop <= pending->bytes; k++)
        if (memcmp(pending->text + k, s->o->stop, stop) == 0) {
            pending->bytes = k;
            return 1;
        }
    return 0;
}

static bool is_end(const struct sample *s, uint32_t id)
{
    for (int i = 0; i < s->ends.n; i++)
        if (s->ends.id[i] == id)
            return 1;
    return 0;
}

/* Samples token `number` of text i from its logits. */
static int add_token(struct sample *s, int64_t i, int64_t number)
{
    struct text *t = &s->text[i];
    double *logits = s->logits + i * s->model.properties.vocab_size;
    for (int64_t g = 0; g < s->n_gaps; g++)
        logits[s->gap[g]] = -HUGE_VAL;
    KU_TRY(ku_sampling_draw(&s->sampling, logits, s->n_ids, s->o->seed + (uint64_t)i, number,
                            &s->id[i]));
    s->is_done[i] = (unsigned char)is_end(s, s->id[i]);
    if (!s->is_done[i]) {
        KU_TRY(ku_tokenizer_decode(s->tokenizer, &s->id[i], 1, &t->pending));
        s->is_done[i] = (unsigned char)has_ended(s, &t->pending);
    }
    hand_out(s, t, s->is_done[i]);
    return KUMI_OK;
}

static int read_prompts(struct sample *s, struct ku_infer *m)
{
    struct ku_infer_text *text = ku_calloc((size_t)s->n, sizeof *text);
    if (text == NULL)
        return KUMI_ENOMEM;
    for (int64_t i = 0; i < s->n; i++)
        text[i] = (struct ku_infer_text){s->text[i].tokens.id, (int64_t)s->text[i].tokens.count};
    int status = ku_infer_prompt(m, text, s->logits);
    ku_free(text);
    return status;
}

static int make_tokens(struct sample *s, struct ku_infer *m)
{
    for (int64_t number = 0; number < s->o->tokens; number++) {
        int64_t n_open = 0;
        if (number == 0)
            KU_TRY(read_prompts(s, m));
        else
            KU_TRY(ku_infer_next(m, s->id, s->is_done, s->logits));
        for (int64_t i = 0; i < s->n; i++) {
            if (!s->is_done[i])
                KU_TRY(add_token(s, i, number));
            n_open += !s->is_done[i];
        }
        if (n_open == 0)
            break;
    }
    return KUMI_OK;
}

static int make_texts(struct sample *s, struct ku_infer *m)
{
    const struct kumi_sample_options *o = s->o;
    for (int64_t i = 0; i < s->n; i++) {
        if (i == 0 && o->begin)
            o->begin(o->ctx, 0);
        hand_out(s, &s->text[i], 0);
    }
    KU_TRY(make_tokens(s, m));
    for (int64_t i = 0; i < s->n; i++) {
        struct ku_str *made = &s->text[i].made;
        hand_out(s, &s->text[i], 1);
        if (i > 0 && o->begin)
            o->begin(o->ctx, i);
        if (made->failed)
            return KUMI_ENOMEM;
        if (made->bytes)
            o->emit(o->ctx, made->text, made->bytes);
    }
    return KUMI_OK;
}

static int run(struct ku_job *job, void *arg)
{
    struct sample *s = arg;
    struct ku_infer *m;
    struct ku_compile_line line;
    s->infer.watch = ku_compile_line_start(&line);
    int status = ku_infer_create(job, &s->model, s->weights, &s->infer, &m);
    ku_compile_line_end(&line);
    KU_TRY(status);
    s->is_loaded = 1;
    status = make_texts(s, m);
    struct ku_infer_work w = ku_infer_work(m);
    if (status == KUMI_OK && s->o->speed)
        *s->o->speed = (struct kumi_sample_speed){.prompt_tokens = w.prompt_tokens,
                                                  .tokens = w.tokens,
                                                  .steps = w.steps,
                                                  .prompt_s = (double)w.prompt_ns * 1e-9,
                                                  .s = (double)w.ns * 1e-9};
    ku_infer_destroy(m);
    return status;
}

/* Frees all but the options. */
static void release(struct sample *s)
{
    for (int64_t i = 0; s->text && i < s->n; i++) {
        ku_tokens_fini(&s->text[i].tokens);
        ku_str_fini(&s->text[i].pending);
        ku_str_fini(&s->text[i].made);
    }
    ku_free(s->text);
    ku_free(s->logits);
    ku_free(s->id);
    ku_free(s->is_done);
    ku_free(s->sampling.order);
    ku_free(s->gap);
    ku_tokenizer_destroy(s->tokenizer);
    ku_free(s->weights);
    ku_free(s->checkpoint);
    ku_model_fini(&s->model);
    ku_config_fini(&s->cfg);
    *s = (struct sample){.o = s->o};
}

/* Samples from the model that is open. */
static int sample(struct sample *s)
{
    KU_TRY(ku_pretrained_read_ends(s->weights, s->tokenizer, &s->ends));
    KU_TRY(encode_prompts(s));
    KU_TRY(make_buffers(s));
    return ku_comm_threads(1, NULL, run, s); /* one rank, whatever the environment says */
}

/* Samples from a checkpoint. Once the model is loaded, no other one replaces it. */
static int attempt(void *ctx, const struct ku_ckpt *c)
{
    struct sample *s = ctx;
    release(s);
    KU_TRY(open_checkpoint(s, c));
    const int status = sample(s);
    if (status == KUMI_OK || !s->is_loaded)
        return status;
    s->error = *ku_err_get();
    return KUMI_OK;
}

static int sample_directory(struct sample *s)
{
    if (s->o->ema)
        return KU_ERR(
            KUMI_EINVAL,
            "ema: %s: a directory of weights has no averages; give a run, or leave out --ema",
            s->o->run);
    KU_TRY(open_directory(s, s->o->run));
    return sample(s);
}

int kumi_sample(const struct kumi_sample_options *options)
{
    KU_GIVEN(options, "options");
    KU_GIVEN(options->run, "options.run");
    KU_GIVEN(options->emit, "options.emit");
    if (options->prompts)
        KU_GIVEN_LIST(options->prompts, options->n ? options->n : 1, "options.prompts");
    struct sample s = {.o = options};
    KU_TRY(check_options(options));
    int status = ku_pretrained_is_weights(options->run)
                     ? sample_directory(&s)
                     : ku_pretrained_use(options->run, attempt, &s);
    if (status == KUMI_OK && s.error.status < 0)
        status = ku_err_put(&s.error);
    release(&s);
    return status;
}
