/* SPDX-License-Identifier: Apache-2.0 */
#include "kumi/run.h"

#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/bpe_train.h"
#include "base/progress_line.h"

enum { VOCAB_DEFAULT = 30000, FREQUENCY_DEFAULT = 2 }; /* defaults of ByteLevelBPETokenizer.train */

/*
 * Path of the output file. A name that ends in .json is the file; any other name is a folder, which
 * is created if necessary.
 */
static int out_path(const char *out, char **path)
{
    size_t n = out ? strlen(out) : 0;
    if (n >= 5 && strcmp(out + n - 5, ".json") == 0) {
        *path = ku_strdup(out);
        return *path ? KUMI_OK : KUMI_ENOMEM;
    }
    if (n > 0 && ku_os_mkdirs(out) < 0)
        return KU_ERR(KUMI_ESTORAGE, "tokenizer: %s: %s; give a *.json or a folder", out,
                      ku_os_why());
    *path = n > 0 ? ku_asprintf("%s/tokenizer.json", out) : ku_strdup("tokenizer.json");
    return *path ? KUMI_OK : KUMI_ENOMEM;
}

static int report(const struct kumi_tokenizer_options *o, const struct ku_word_count *words,
                  const struct ku_bpe_trained *t, const char *path, char **text)
{
    struct ku_str s = {0};
    int64_t n_tokens = ku_bpe_vocab_count(t->vocab);
    if (o->as_json)
        return ku_text_json(
            json_pack("{sssIsIsIsIsI}", "path", path, "vocab_size", (json_int_t)n_tokens, "merges",
                      (json_int_t)t->n_merges, "special_tokens", (json_int_t)t->n_special, "words",
                      (json_int_t)words->total, "distinct_words", (json_int_t)words->n),
            text);
    ku_str_add(&s, "%s: %lld tokens, %u merges; %lld words, %u distinct\n", path,
               (long long)n_tokens, t->n_merges, (long long)words->total, words->n);
    if (n_tokens < o->vocab_size)
        ku_str_add(&s, "fewer tokens than %lld: no remaining pair occurs %lld times\n",
                   (long long)o->vocab_size, (long long)o->min_frequency);
    int status = ku_text_take(&s, text);
    ku_str_fini(&s);
    return status;
}

static int train(const struct kumi_tokenizer_options *o, const struct ku_progress *progress,
                 char **text)
{
    struct ku_word_count words = {0};
    struct ku_bpe_trained trained = {0};
    struct ku_str json = {0};
    char *path = NULL;
    int status;
    struct ku_bpe_train_opts opts = {.vocab_count = o->vocab_size,
                                     .min_frequency = o->min_frequency,
                                     .special = o->special,
                                     .n_special = o->n_special,
                                     .progress = *progress};
    KU_TRY_OUT(ku_bpe_train(&words, &opts, &trained)); /* checks the options first */
    ku_bpe_trained_fini(&trained);
    for (int i = 0; i < o->n_files; i++)
        KU_TRY_OUT(ku_bpe_count_words(o->file[i], progress, &words));
    KU_TRY_OUT(ku_bpe_train(&words, &opts, &trained));
    KU_TRY_OUT(ku_bpe_trained_json(&trained, &json));
    KU_TRY_OUT(out_path(o->out, &path));
    if (ku_os_replace(path, json.text, json.bytes) < 0) {
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "tokenizer: %s: %s; give another place", path,
                        ku_os_why());
        goto out;
    }
    status = report(o, &words, &trained, path, text);
out:
    ku_free(path);
    ku_str_fini(&json);
    ku_bpe_trained_fini(&trained);
    ku_word_count_fini(&words);
    return status;
}

int kumi_tokenizer_train(const struct kumi_tokenizer_options *options, char **text)
{
    KU_GIVEN(options, "options");
    KU_GIVEN(text, "text");
    KU_GIVEN_LIST(options->file, options->n_files, "options.file");
    KU_GIVEN_LIST(options->special, options->n_special, "options.special");
    struct kumi_tokenizer_options o = *options;
    struct ku_progress_line line;
    if (o.n_files < 1)
        return KU_ERR(KUMI_EINVAL, "tokenizer: no text to learn from; give one file or more");
    o.vocab_size = o.vocab_size ? o.vocab_size : VOCAB_DEFAULT;
    o.min_frequency = o.min_frequency ? o.min_frequency : FREQUENCY_DEFAULT;
    struct ku_progress progress = ku_progress_line_start(&line);
    int status = train(&o, &progress, text);
    ku_progress_line_end(&line);
    return status;
}
