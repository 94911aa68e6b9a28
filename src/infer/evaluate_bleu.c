/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Corpus BLEU of a trained translation model: translates the source file and scores against the
 * reference file. Of the run's own validation split, the pairs are those of its val_loss.
 */
#include <stdbool.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "batch/parallel_source.h"
#include "data/pairs/bleu.h"
#include "data/pairs/parallel_corpus.h"
#include "data/lines.h"
#include "kumi/run.h"
#include "model/pretrained.h"

/* The lines of a file, each terminated by a zero byte. */
struct lines {
    struct ku_str text;
    const char **line;
    int64_t n;
};

static int read_lines(const char *path, struct lines *out)
{
    struct ku_lines *file;
    const char *text;
    size_t bytes;
    KU_TRY(ku_lines_open(path, 0, &file));
    int status;
    while ((status = ku_lines_next(file, &text, &bytes)) > 0 && !memchr(text, 0, bytes)) {
        ku_str_append(&out->text, text, bytes);
        ku_str_append(&out->text, "", 1);
        out->n++;
    }
    ku_lines_close(file);
    if (status > 0)
        return KU_ERR(KUMI_EINPUT, "data: %s:%lld: NUL byte; give lines of text", path,
                      (long long)out->n + 1);
    KU_TRY(status);
    out->line = ku_calloc((size_t)out->n + 1, sizeof *out->line);
    if (out->line == NULL || out->text.failed)
        return KUMI_ENOMEM;
    const char *at = ku_str_get(&out->text);
    for (int64_t i = 0; i < out->n; i++, at += strlen(at) + 1)
        out->line[i] = at;
    return KUMI_OK;
}

static void lines_fini(struct lines *l)
{
    ku_free(l->line);
    ku_str_fini(&l->text);
}

struct scoring {
    struct ku_bleu counts;
    const struct lines *reference;
    int status;
};

static void score(void *ctx, int64_t sentence, int64_t rank, const char *text)
{
    struct scoring *s = ctx;
    const char *wanted = s->reference->line[sentence];
    if (rank == 0 && s->status == KUMI_OK)
        s->status = ku_bleu_add(&s->counts, text, strlen(text), wanted, strlen(wanted));
}

/* Rejects runs without a parallel corpus before any file is opened. */
static int check_run(const char *run, const struct ku_config *c)
{
    struct ku_model m;
    KU_TRY(ku_model_read(c, &m));
    int status = m.properties.is_pairs
                     ? KUMI_OK
                     : KU_ERR(KUMI_EINVAL,
                              "eval: %s: a model of type %s cannot translate; --bleu "
                              "is for runs of sentence pairs",
                              run, ku_model_type(&m));
    ku_model_fini(&m);
    return status;
}

/* Sentences to translate, and their references */
struct pairs {
    const struct kumi_bleu_options *o;
    struct ku_config config;
    char *home; /* the run's directory, if the options name a checkpoint in it; or NULL */
    const char *source, *reference;
    bool is_own; /* the run's validation split */
    struct lines src, ref;
};

/* Frees all but the options. */
static void release(struct pairs *p)
{
    lines_fini(&p->src);
    lines_fini(&p->ref);
    ku_free(p->home);
    ku_config_fini(&p->config);
    *p = (struct pairs){.o = p->o};
}

/* Finds the files: those given, or the run's validation split. */
static int find_files(struct pairs *p)
{
    const struct ku_config *c = &p->config;
    p->source = p->o->source;
    p->reference = p->o->reference;
    KU_TRY(check_run(p->o->run, c));
    if (p->source)
        return KUMI_OK;
    if (c->data_val.n != 1 || c->data_val_target.n != 1)
        return KU_ERR(KUMI_EINVAL,
                      "eval: %s: the run does not have exactly one file of validation pairs "
                      "(data.val, data.val_target); name source and reference",
                      p->o->run);
    p->source = c->data_val.item[0];
    p->reference = c->data_val_target.item[0];
    p->is_own = true;
    return KUMI_OK;
}

/*
 * Leaves out the pairs of the validation split that training leaves out, which its val_loss does
 * not have either. A warning of the corpus has their number.
 */
static int drop_pairs(struct pairs *p)
{
    static const char *const own[2];
    struct ku_vocab_pair vocab = {0};
    struct ku_data *kept = NULL;
    KU_TRY(ku_vocab_pair_open(&p->config, (const char *const[]){p->o->run, p->home}, own, &vocab));
    int status = ku_parallel_open_val(&p->config, &vocab, &kept);
    const int64_t n = status == KUMI_OK ? kept->n_samples[KU_SPLIT_TRAIN] : 0;
    for (int64_t i = 0; i < n && status == KUMI_OK; i++) {
        const int64_t line = ku_parallel_line(kept, KU_SPLIT_TRAIN, i) - 1;
        if (line >= p->src.n)
            status = KU_ERR(KUMI_EINPUT,
                            "eval: %s: changed while it was read; start the evaluation again",
                            p->source);
        else {
            p->src.line[i] = p->src.line[line];
            p->ref.line[i] = p->ref.line[line];
        }
    }
    if (status == KUMI_OK)
        p->src.n = p->ref.n = n;
    ku_data_destroy(kept);
    ku_vocab_pair_fini(&vocab);
    return status;
}

/* Reads the pairs of a checkpoint's run, with the tokenizer in the checkpoint. */
static int read_pairs(void *ctx, const struct ku_ckpt *c)
{
    struct pairs *p = ctx;
    release(p);
    KU_TRY(ku_pretrained_config(c, NULL, 0, &p->config));
    KU_TRY(ku_pretrained_home(c, &p->home));
    KU_TRY(find_files(p));
    KU_TRY(read_lines(p->source, &p->src));
    KU_TRY(read_lines(p->reference, &p->ref));
    if (p->src.n != p->ref.n)
        return KU_ERR(KUMI_EINPUT, "eval: %s has %lld lines, %s %lld; they must match", p->source,
                      (long long)p->src.n, p->reference, (long long)p->ref.n);
    return p->is_own ? drop_pairs(p) : KUMI_OK;
}

static int measure(const struct pairs *p, struct kumi_bleu_result *result)
{
    struct scoring s = {.reference = &p->ref};
    const struct kumi_translate_options t = {.run = p->o->run,
                                             .source = p->src.line,
                                             .n = p->src.n,
                                             .beam = p->o->beam,
                                             .alpha = p->o->alpha,
                                             .ema = p->o->ema,
                                             .emit = score,
                                             .ctx = &s,
                                             .speed = &result->speed};
    KU_TRY(kumi_translate(&t));
    KU_TRY(s.status);
    const struct ku_bleu_score score_of = ku_bleu_score(&s.counts, 0);
    result->bleu = score_of.bleu;
    result->chrf = score_of.chrf;
    result->brevity_penalty = score_of.brevity_penalty;
    memcpy(result->precision, score_of.precision, sizeof result->precision);
    result->sentences = s.counts.n_sentences;
    return KUMI_OK;
}

int kumi_eval_bleu(const struct kumi_bleu_options *options, struct kumi_bleu_result *result)
{
    KU_GIVEN(options, "options");
    KU_GIVEN(options->run, "options.run");
    KU_GIVEN(result, "result");
    struct pairs p = {.o = options};
    memset(result, 0, sizeof *result);
    if (!options->source != !options->reference)
        return KU_ERR(KUMI_EINVAL, "eval: give both files, source and reference, or none");
    int status = ku_pretrained_use(options->run, read_pairs, &p);
    if (status == KUMI_OK)
        status = measure(&p, result);
    release(&p);
    return status;
}
