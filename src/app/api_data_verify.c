/* SPDX-License-Identifier: Apache-2.0 */
#include "kumi/run.h"
#include "base/arg.h"
#include "base/err.h"
#include "base/str.h"
#include "train/configure.h"
#include "train/dataset.h"
#include "model/model.h"
#include "train/progress_line.h"
#include "train/session.h"

static void print_split(const char *name, const struct ku_data *d, enum ku_data_split split,
                        const struct ku_list *files, struct ku_str *out)
{
    ku_str_add(out, "%s: ", name);
    for (int i = 0; i < files->n; i++)
        ku_str_add(out, "%s%s", i ? ", " : "", files->item[i]);
    if (files->n == 0)
        ku_str_add(out, !d->n_samples[split] ? "none"
                        : d->item            ? "the end of train"
                                             : "a part of train");
    if (d->n_samples[split])
        ku_str_add(out, ": ");
    if (d->n_samples[split] && d->item)
        ku_str_add(out, "%lld %s, ", (long long)d->n_items[split], d->item);
    if (d->n_samples[split])
        ku_str_add(out, "%lld samples", (long long)d->n_samples[split]);
    ku_str_add(out, "\n");
}

static int verify(const struct ku_config *c, const struct ku_model *m, struct ku_str *out)
{
    struct ku_progress_line line;
    const struct ku_progress progress = ku_progress_line_start(&line);
    struct ku_data *d = NULL;
    int64_t seq_len;
    KU_TRY(ku_dataset_seq_len(c, m, &seq_len));
    int status = ku_dataset_open(c, m, seq_len, &progress, &d);
    if (status == KUMI_OK)
        status = ku_data_verify(d, &progress);
    ku_progress_line_end(&line);
    if (status == KUMI_OK) {
        if (m->facts.vocab_size)
            ku_str_add(out, "samples of %lld tokens, each below %lld; tokenizer %s\n",
                       (long long)seq_len, (long long)m->facts.vocab_size,
                       c->data_tokenizer ? c->data_tokenizer : "byte");
        print_split("train", d, KU_SPLIT_TRAIN, &c->data_train, out);
        print_split("validation", d, KU_SPLIT_VAL, &c->data_val, out);
        ku_str_add(out, "fingerprint: %s\n", d->fingerprint);
    }
    ku_data_destroy(d);
    return status;
}

static void print_pairs(const struct ku_pairs *p, enum ku_data_split split, struct ku_str *out)
{
    struct ku_parallel_counts n = ku_parallel_counts(p->data, split);
    if (p->data->n_samples[split])
        ku_str_add(out,
                   "  %lld lines: %lld tokens of source, %lld of target; skipped: %lld empty, %lld "
                   "over-long\n",
                   (long long)n.lines, (long long)n.src_tokens, (long long)n.tgt_tokens,
                   (long long)n.n_empty, (long long)n.n_long);
}

/* Sentence pairs have their own vocabularies and several batch shapes. */
static int verify_pairs(const struct kumi_settings *settings, struct ku_str *out)
{
    struct ku_progress_line line;
    const struct ku_progress progress = ku_progress_line_start(&line);
    struct ku_session s = {0};
    int status = ku_settings_configure(&s, settings, 1, NULL);
    if (status == KUMI_OK)
        status = ku_session_open_data(&s, NULL);
    if (status == KUMI_OK)
        status = ku_data_verify(s.data, &progress);
    ku_progress_line_end(&line);
    if (status == KUMI_OK) {
        ku_str_add(out, "vocabularies: %lld and %lld tokens\n",
                   (long long)ku_vocab_count(s.pairs.src), (long long)ku_vocab_count(s.pairs.tgt));
        print_split("train", s.data, KU_SPLIT_TRAIN, &s.cfg.data_train, out);
        print_pairs(&s.pairs, KU_SPLIT_TRAIN, out);
        print_split("validation", s.data, KU_SPLIT_VAL, &s.cfg.data_val, out);
        print_pairs(&s.pairs, KU_SPLIT_VAL, out);
        ku_session_print_batch(&s, out);
        ku_str_add(out, "\nfingerprint: %s\n", s.data->fingerprint);
    }
    ku_session_fini(&s);
    return status;
}

int kumi_data_verify(const struct kumi_settings *settings, char **text)
{
    KU_GIVEN(text, "text");
    struct ku_config cfg = {0};
    struct ku_model model = {0};
    struct ku_str out = {0};
    int status;
    KU_TRY(ku_settings_check(settings));
    KU_TRY_OUT(ku_config_load(settings->config, settings->set, settings->n_sets,
                              ku_model_hidden_size, &cfg));
    KU_TRY_OUT(ku_model_read(&cfg, &model));
    KU_TRY_OUT(model.facts.is_pairs ? verify_pairs(settings, &out) : verify(&cfg, &model, &out));
    status = ku_text_take(&out, text);
out:
    ku_str_fini(&out);
    ku_model_fini(&model);
    ku_config_fini(&cfg);
    return status;
}
