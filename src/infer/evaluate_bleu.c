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

struct files {
    const char *source, *reference;
    bool is_own; /* the run's validation split */
    char *home;  /* the run's directory, if the options name a checkpoint in it; or NULL */
};

/* Finds the files: those given, or the run's validation split. */
static int find_files(const struct kumi_bleu_options *o, struct ku_config *c, struct files *f)
{
    struct ku_ckpt ckpt;
    f->source = o->source;
    f->reference = o->reference;
    if (!f->source != !f->reference)
        return KU_ERR(KUMI_EINVAL, "eval: give both files, source and reference, or none");
    KU_TRY(ku_pretrained_find(o->run, &ckpt));
    int status = ku_pretrained_config(&ckpt, NULL, 0, c);
    if (status == KUMI_OK)
        status = ku_pretrained_home(&ckpt, &f->home);
    ku_ckpt_close(&ckpt);
    KU_TRY(status);
    KU_TRY(check_run(o->run, c));
    if (f->source)
        return KUMI_OK;
    if (c->data_val.n != 1 || c->data_val_target.n != 1)
        return KU_ERR(KUMI_EINVAL,
                      "eval: %s: the run does not have exactly one file of validation pairs "
                      "(data.val, data.val_target); name source and reference",
                      o->run);
    f->source = c->data_val.item[0];
    f->reference = c->data_val_target.item[0];
    f->is_own = true;
    return KUMI_OK;
}

/*
 * Leaves out the pairs of the validation split that training leaves out, which its val_loss does
 * not have either. A warning of the corpus has their number.
 */
static int drop_pairs(const struct kumi_bleu_options *o, const struct ku_config *c,
                      const struct files *f, struct lines *src, struct lines *ref)
{
    static const char *const own[2];
    struct ku_vocab_pair vocab = {0};
    struct ku_data *kept = NULL;
    KU_TRY(ku_vocab_pair_open(c, (const char *const[]){o->run, f->home}, own, &vocab));
    int status = ku_parallel_open_val(c, &vocab, &kept);
    const int64_t n = status == KUMI_OK ? kept->n_samples[KU_SPLIT_TRAIN] : 0;
    for (int64_t i = 0; i < n && status == KUMI_OK; i++) {
        const int64_t line = ku_parallel_line(kept, KU_SPLIT_TRAIN, i) - 1;
        if (line >= src->n)
            status = KU_ERR(KUMI_EINPUT,
                            "eval: %s: changed while it was read; start the evaluation again",
                            f->source);
        else {
            src->line[i] = src->line[line];
            ref->line[i] = ref->line[line];
        }
    }
    if (status == KUMI_OK)
        src->n = ref->n = n;
    ku_data_destroy(kept);
    ku_vocab_pair_fini(&vocab);
    return status;
}

static int measure(const struct kumi_bleu_options *o, const struct ku_config *c,
                   const struct files *f, struct kumi_bleu_result *result)
{
    struct lines src = {0}, ref = {0};
    struct scoring s = {.reference = &ref};
    struct kumi_translate_options t = {.run = o->run,
                                       .beam = o->beam,
                                       .alpha = o->alpha,
                                       .ema = o->ema,
                                       .emit = score,
                                       .ctx = &s,
                                       .speed = &result->speed};
    int status = read_lines(f->source, &src);
    if (status == KUMI_OK)
        status = read_lines(f->reference, &ref);
    if (status == KUMI_OK && src.n != ref.n)
        status = KU_ERR(KUMI_EINPUT, "eval: %s has %lld lines, %s %lld; they must match", f->source,
                        (long long)src.n, f->reference, (long long)ref.n);
    if (status == KUMI_OK && f->is_own)
        status = drop_pairs(o, c, f, &src, &ref);
    t.source = src.line;
    t.n = src.n;
    if (status == KUMI_OK)
        status = kumi_translate(&t);
    if (status == KUMI_OK)
        status = s.status;
    if (status == KUMI_OK) {
        struct ku_bleu_score score_of = ku_bleu_score(&s.counts, 0);
        result->bleu = score_of.bleu;
        result->chrf = score_of.chrf;
        result->brevity_penalty = score_of.brevity_penalty;
        memcpy(result->precision, score_of.precision, sizeof result->precision);
        result->sentences = s.counts.n_sentences;
    }
    lines_fini(&src);
    lines_fini(&ref);
    return status;
}

int kumi_eval_bleu(const struct kumi_bleu_options *options, struct kumi_bleu_result *result)
{
    KU_GIVEN(options, "options");
    KU_GIVEN(options->run, "options.run");
    KU_GIVEN(result, "result");
    struct ku_config c = {0};
    struct files files = {0};
    memset(result, 0, sizeof *result);
    int status = find_files(options, &c, &files);
    if (status == KUMI_OK)
        status = measure(options, &c, &files, result);
    ku_free(files.home);
    ku_config_fini(&c);
    return status;
}
