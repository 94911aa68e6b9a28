/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Translates sentences with a trained model: encodes them, sorts them by length, runs beam search
 * in batches, and emits the results in input order.
 */
#include <stdlib.h>
#include <string.h>

#include "base/arg.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "comm/world.h"
#include "data/lines.h"
#include "kumi/run.h"
#include "infer/beam.h"
#include "infer/inference.h"
#include "batch/parallel_source.h"
#include "model/pretrained.h"
#include "infer/translator.h"
#include "sim/kernel_choice.h"

enum { DEFAULT_BATCH = 16, MAX_BEAM = 64, MAX_ROWS = 4096, EXTRA_TOKENS = 16 };

struct sentence {
    struct ku_tokens source;
    int64_t line;
    char **text; /* [n_best], NULL: no such result */
};

struct translate {
    const struct kumi_translate_options *o;
    int64_t beam, n_best, batch, src_max, tgt_max;
    struct ku_config cfg;
    struct ku_model model;
    struct ku_vocab_pair vocab;
    char *weights, *checkpoint;
    struct ku_translator_opts how;
    struct sentence *sentence; /* [o->n], sorted by length */
    char **text;               /* [o->n][n_best] */
    int64_t tokens, ns;
};

static int check_options(struct translate *t)
{
    const struct kumi_translate_options *o = t->o;
    t->beam = o->beam ? o->beam : 1;
    t->n_best = o->n_best ? o->n_best : 1;
    t->batch = o->batch ? o->batch : DEFAULT_BATCH;
    if (t->beam < 1 || t->beam > MAX_BEAM)
        return KU_ERR(KUMI_EINVAL, "translate: beam: %lld; give 1 to %d", (long long)t->beam,
                      (int)MAX_BEAM);
    if (t->n_best < 1 || t->n_best > t->beam)
        return KU_ERR(KUMI_EINVAL, "translate: n-best: %lld; give 1 to the beam, %lld",
                      (long long)t->n_best, (long long)t->beam);
    if (t->batch < 1 || t->batch > MAX_ROWS / t->beam)
        return KU_ERR(KUMI_EINVAL, "translate: batch: %lld; give 1 to %lld", (long long)t->batch,
                      (long long)(MAX_ROWS / t->beam));
    return o->alpha >= 0 && o->alpha <= 100
               ? KUMI_OK
               : KU_ERR(KUMI_EINVAL, "translate: alpha: %g; give 0 to 100", o->alpha);
}

/* Checks that a tokenizer given instead of the run's has no more tokens than the model. */
static int check_vocab(const struct ku_vocab *v, const char *what, int64_t model_count)
{
    int64_t count = ku_vocab_count(v);
    return count <= model_count ? KUMI_OK
                                : KU_ERR(KUMI_EINVAL,
                                         "translate: %s: has %lld tokens, the model's vocabulary "
                                         "%lld; give the tokenizer that it was trained with",
                                         what, (long long)count, (long long)model_count);
}

/* home: the run's directory, if t->o->run is a checkpoint in it, or NULL */
static int use_config(struct translate *t, const struct ku_config *c, const char *home)
{
    KU_TRY(ku_model_read(c, &t->model));
    if (!t->model.properties.is_pairs)
        return KU_ERR(
            KUMI_EINVAL,
            "translate: %s: a model of type %s cannot translate; give a run of sentence pairs",
            t->o->run, ku_model_type(&t->model));
    const char *const tokenizer[] = {t->o->tokenizer, t->o->target_tokenizer};
    KU_TRY(ku_vocab_pair_open(c, (const char *const[]){t->o->run, home}, tokenizer, &t->vocab));
    KU_TRY(check_vocab(t->vocab.src, "--tokenizer", t->model.properties.src_vocab_size));
    KU_TRY(check_vocab(t->vocab.tgt, "--target-tokenizer", t->model.properties.vocab_size));
    t->how.n_tokens = ku_vocab_count(t->vocab.tgt);
    KU_TRY(ku_dtype_parse(c->precision_compute, &t->how.compute));
    t->how.keep_f32 = (const char *const *)c->precision_keep_f32.item;
    t->how.modules = &c->precision_modules.rules;
    t->how.device = ku_device_find(c->parallel_device);
    KU_TRY(ku_inference_threads("translate", t->o->threads, &t->how.device_opts.n_threads));
    KU_TRY(ku_isa_resolve(c->parallel_isa, t->how.compute, &t->how.device_opts.isa));
    int64_t most = t->model.properties.max_positions;
    t->src_max = c->data_max_source_len < most ? c->data_max_source_len : most;
    t->tgt_max = c->data_max_target_len + 1 < most ? c->data_max_target_len + 1 : most;
    return KUMI_OK;
}

static int open_checkpoint(struct translate *t, const struct ku_ckpt *c)
{
    char *home = NULL;
    KU_TRY(ku_pretrained_config(c, NULL, 0, &t->cfg));
    KU_TRY(ku_pretrained_home(c, &home));
    const int status = use_config(t, &t->cfg, home);
    ku_free(home);
    KU_TRY(status);
    t->weights = ku_asprintf("%s/model", c->path);
    t->checkpoint = ku_strdup(c->path);
    t->how.averages = t->o->ema ? t->checkpoint : NULL;
    return t->weights && t->checkpoint ? KUMI_OK : KUMI_ENOMEM;
}

/*
 * Opens a directory in Hugging Face's format: the model's own lengths, f32, and tokenizers of the
 * options or beside the model.
 */
static int open_directory(struct translate *t)
{
    const struct kumi_translate_options *o = t->o;
    const char *where = o->tokenizer ? o->tokenizer : o->run;
    if (o->ema)
        return KU_ERR(
            KUMI_EINVAL,
            "ema: %s: a directory of weights has no averages; give a run, or leave out --ema",
            o->run);
    if (o->tokenizer == NULL && !ku_companions_has_tokenizer(o->run))
        return KU_ERR(KUMI_EINPUT,
                      "translate: %s: no tokenizer beside the model; name it, or the run's "
                      "source.vocab and target.vocab, with --tokenizer and --target-tokenizer",
                      o->run);
    KU_TRY(ku_config_start("translate", &t->cfg));
    KU_TRY(ku_config_set_text(&t->cfg, "model.path", o->run));
    KU_TRY(ku_config_set_text(&t->cfg, "data.train", ""));
    KU_TRY(ku_config_set_text(&t->cfg, "data.tokenizer", where));
    if (o->target_tokenizer)
        KU_TRY(ku_config_set_text(&t->cfg, "data.target_tokenizer", o->target_tokenizer));
    KU_TRY(ku_config_finish(&t->cfg));
    KU_TRY(use_config(t, &t->cfg, NULL));
    t->src_max = t->tgt_max = t->model.properties.max_positions;
    t->weights = ku_strdup(o->run);
    return t->weights ? KUMI_OK : KUMI_ENOMEM;
}

static int by_length(const void *a, const void *b)
{
    const struct sentence *x = a, *y = b;
    if (x->source.count != y->source.count)
        return x->source.count < y->source.count ? -1 : 1;
    return (x->line > y->line) - (x->line < y->line);
}

static int encode(struct translate *t)
{
    t->sentence = ku_calloc((size_t)t->o->n + 1, sizeof *t->sentence);
    t->text = ku_calloc((size_t)(t->o->n * t->n_best) + 1, sizeof *t->text);
    if (t->sentence == NULL || t->text == NULL)
        return KUMI_ENOMEM;
    for (int64_t i = 0; i < t->o->n; i++) {
        struct sentence *s = &t->sentence[i];
        s->line = i;
        s->text = t->text + i * t->n_best;
        /* as in training: "\r" and blanks at the end are tokens of a byte tokenizer */
        const size_t bytes = ku_line_trim(t->o->source[i], strlen(t->o->source[i]));
        KU_TRY(ku_line_check("sentences", i + 1, t->o->source[i], bytes));
        if (bytes > 0)
            KU_TRY(ku_vocab_encode(t->vocab.src, t->o->source[i], bytes, &s->source));
        if ((int64_t)s->source.count > t->src_max)
            return KU_ERR(KUMI_EINPUT,
                          "translate: line %lld: %zu tokens; at most %lld (data.max_source_len) "
                          "are allowed: shorten it",
                          (long long)i + 1, s->source.count, (long long)t->src_max);
    }
    qsort(t->sentence, (size_t)t->o->n, sizeof *t->sentence, by_length);
    return KUMI_OK;
}

static int decode(struct translate *t, const struct ku_beam_text *x, char **out)
{
    struct ku_str text = {0};
    int status = ku_vocab_decode(t->vocab.tgt, x->token, (size_t)x->n, &text);
    if (status == KUMI_OK) {
        *out = ku_strdup(ku_str_get(&text));
        status = *out ? KUMI_OK : KUMI_ENOMEM;
    }
    t->tokens += x->n;
    ku_str_fini(&text);
    return status;
}

/*
 * Translates sentences [first, first + n); a batch that is not full is padded with empty sentences.
 */
static int run_batch(struct translate *t, struct ku_translator *m, int64_t first, int64_t n,
                     struct ku_translator_text *source, int64_t *max_tokens)
{
    const uint32_t nothing = ku_vocab_special(t->vocab.src, KU_VOCAB_EOS);
    struct ku_beam_results r = {0};
    const struct ku_beam_model model = {ku_translator_step, ku_translator_select, m};
    const struct ku_beam_opts o = {.n_sentences = t->batch,
                                   .vocab_size = t->model.properties.vocab_size,
                                   .beam_size = t->beam,
                                   .n_best = t->n_best,
                                   .alpha = t->o->alpha,
                                   .max_tokens = max_tokens,
                                   .first = ku_vocab_special(t->vocab.tgt, KU_VOCAB_BOS),
                                   .end = ku_vocab_special(t->vocab.tgt, KU_VOCAB_EOS)};
    for (int64_t i = 0; i < t->batch; i++) {
        const struct ku_tokens *x = i < n ? &t->sentence[first + i].source : NULL;
        int is_empty = x == NULL || x->count == 0;
        int64_t most = is_empty ? 1 : 2 * (int64_t)x->count + EXTRA_TOKENS;
        max_tokens[i] = most < t->tgt_max ? most : t->tgt_max;
        for (int64_t b = 0; b < t->beam; b++)
            source[i * t->beam + b] = is_empty
                                          ? (struct ku_translator_text){&nothing, 1}
                                          : (struct ku_translator_text){x->id, (int64_t)x->count};
    }
    KU_TRY(ku_translator_read(m, source));
    int status = ku_beam_search(&o, &model, &r);
    for (int64_t i = 0; i < n && status == KUMI_OK; i++)
        for (int64_t k = 0; k < t->n_best && status == KUMI_OK; k++) {
            const struct ku_beam_text *x = &r.text[i * t->n_best + k];
            if (t->sentence[first + i].source.count > 0 && x->n > 0)
                status = decode(t, x, &t->sentence[first + i].text[k]);
        }
    ku_beam_fini(&r);
    return status;
}

static int run(struct ku_job *job, void *arg)
{
    struct translate *t = arg;
    struct ku_translator *m = NULL;
    struct ku_translator_text *source = NULL;
    int64_t *max_tokens = ku_calloc((size_t)t->batch, sizeof *max_tokens);
    t->how.n_rows = t->batch * t->beam;
    t->how.src_max = t->src_max;
    t->how.tgt_max = t->tgt_max;
    source = ku_calloc((size_t)t->how.n_rows, sizeof *source);
    int status = source && max_tokens ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = ku_translator_create(job, &t->model, t->weights, &t->how, &m);
    int64_t begin = ku_clock_ns();
    for (int64_t first = 0; first < t->o->n && status == KUMI_OK; first += t->batch) {
        int64_t n = t->o->n - first < t->batch ? t->o->n - first : t->batch;
        status = run_batch(t, m, first, n, source, max_tokens);
    }
    t->ns = ku_clock_ns() - begin;
    ku_translator_destroy(m);
    ku_free(source);
    ku_free(max_tokens);
    return status;
}

static void hand_out(struct translate *t)
{
    for (int64_t i = 0; i < t->o->n; i++)
        for (int64_t k = 0; k < t->n_best; k++) {
            const char *text = t->text[i * t->n_best + k];
            t->o->emit(t->o->ctx, i, k, text ? text : "");
        }
    if (t->o->speed)
        *t->o->speed = (struct kumi_translate_speed){t->o->n, t->tokens, (double)t->ns * 1e-9};
}

/* Frees what was made of a model; the options and what they say stay. */
static void release(struct translate *t)
{
    for (int64_t i = 0; i < t->o->n && t->sentence; i++)
        ku_tokens_fini(&t->sentence[i].source);
    for (int64_t i = 0; i < t->o->n * t->n_best && t->text; i++)
        ku_free(t->text[i]);
    ku_free(t->text);
    ku_free(t->sentence);
    ku_free(t->weights);
    ku_free(t->checkpoint);
    ku_vocab_pair_fini(&t->vocab);
    ku_model_fini(&t->model);
    ku_config_fini(&t->cfg);
    *t = (struct translate){.o = t->o, .beam = t->beam, .n_best = t->n_best, .batch = t->batch};
}

/* Translates with the model that is open. */
static int translate(struct translate *t)
{
    KU_TRY(encode(t));
    return t->o->n > 0 ? ku_comm_threads(1, NULL, run, t) /* whatever the environment says */
                       : KUMI_OK;
}

static int attempt(void *ctx, const struct ku_ckpt *c)
{
    struct translate *t = ctx;
    release(t);
    KU_TRY(open_checkpoint(t, c));
    return translate(t);
}

static int translate_directory(struct translate *t)
{
    KU_TRY(open_directory(t));
    return translate(t);
}

int kumi_translate(const struct kumi_translate_options *options)
{
    KU_GIVEN(options, "options");
    KU_GIVEN(options->run, "options.run");
    KU_GIVEN_LIST(options->source, options->n, "options.source");
    KU_GIVEN(options->emit, "options.emit");
    struct translate t = {.o = options};
    KU_TRY(check_options(&t));
    const int status = ku_pretrained_is_weights(options->run)
                           ? translate_directory(&t)
                           : ku_pretrained_use(options->run, attempt, &t);
    if (status == KUMI_OK)
        hand_out(&t);
    release(&t);
    return status;
}
