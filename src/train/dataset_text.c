/* SPDX-License-Identifier: Apache-2.0 */
#include "train/dataset_text.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "data/text/jsonl.h"
#include "data/text/masked.h"
#include "data/text/token_files.h"
#include "data/tokenizer/tokenizer.h"

static bool ends_in(const char *name, const char *end)
{
    size_t bytes = strlen(name), n = strlen(end);
    return bytes >= n && strcmp(name + bytes - n, end) == 0;
}

/* data.kind; if it is null, decided by the file names. */
static bool is_jsonl(const struct ku_config *c)
{
    const struct ku_list *files = c->data_train.n ? &c->data_train : &c->data_val;
    if (c->data_kind)
        return strcmp(c->data_kind, "jsonl") == 0;
    for (int i = 0; i < files->n; i++)
        if (!ends_in(files->item[i], ".jsonl"))
            return 0;
    return files->n > 0;
}

const char *ku_dataset_kind(const struct ku_config *c, const struct ku_model *m)
{
    return m->facts.is_pairs ? "parallel"
           : c->data_kind    ? c->data_kind
           : is_jsonl(c)     ? "jsonl"
                             : "text";
}

bool ku_dataset_is_text(const struct ku_config *c)
{
    return c->data_kind == NULL || strcmp(c->data_kind, "text") == 0 ||
           strcmp(c->data_kind, "jsonl") == 0;
}

static bool is_word(const char *key, const char *word)
{
    return key && strcmp(key, word) == 0;
}

int ku_dataset_check_text(const struct ku_config *c, const struct ku_model *m)
{
    const int is_pairs = m->facts.is_pairs, has_docs = !is_pairs && is_jsonl(c);
    const struct {
        int is_wrong;
        const char *path, *wanted;
    } rule[] = {
        {c->data_segments && !m->facts.is_causal, "data.segments",
         "this model attends over the whole sample; use false (gpt2 and llama have segments)"},
        {has_docs && m->facts.is_masked, "data.train",
         "documents are for models that continue texts; a masked language model learns from text "
         "files"},
        {(has_docs || is_pairs) && c->data_weights.n > 0, "data.weights",
         "it is for text files; omit it"},
        {c->data_separator != KU_NULL && !has_docs && !c->data_segments, "data.separator",
         "it is for text with data.segments true, and for jsonl; leave it out"},
        {is_word(c->data_on_long, is_pairs ? "cut" : "drop"), "data.on_long",
         is_pairs ? "drop or error for sentence pairs" : "cut or error for documents"},
    };
    for (size_t i = 0; i < sizeof rule / sizeof rule[0]; i++)
        if (rule[i].is_wrong)
            return ku_config_refuse(c, rule[i].path, ku_json_at(c->root, rule[i].path),
                                    rule[i].wanted);
    return KUMI_OK;
}

/* Id of the token that ends a document. */
static int find_separator(const struct ku_config *c, int64_t *out)
{
    struct ku_tokenizer *t;
    uint32_t id = 0;
    *out = c->data_separator;
    if (*out != KU_NULL)
        return KUMI_OK;
    KU_TRY(ku_tokenizer_open(c->data_tokenizer, &t));
    int found = ku_tokenizer_end_of_text(t, &id);
    ku_tokenizer_destroy(t);
    *out = id;
    if (found)
        return KUMI_OK;
    json_t *v = json_null();
    return ku_config_refuse(c, "data.separator", v,
                            "the tokenizer names no token that ends a text; give the id of the one "
                            "that ends a document, or data.segments false");
}

static int open_jsonl(const struct ku_config *c, const struct ku_model *m, int64_t seq_len,
                      const struct ku_held_out *held, const struct ku_progress *progress,
                      struct ku_data **out)
{
    struct ku_jsonl_opts o = {.train = (const char *const *)c->data_train.item,
                              .n_train = held->is_alone ? 0 : c->data_train.n,
                              .val = (const char *const *)c->data_val.item,
                              .n_val = c->data_val.n,
                              .val_fraction = c->data_val_fraction,
                              .tokenizer = c->data_tokenizer,
                              .separator = c->data_separator == KU_NULL ? NULL : &c->data_separator,
                              .seq_len = seq_len,
                              .vocab_count = m->facts.vocab_size,
                              .pack = c->data_pack,
                              .segments = c->data_segments,
                              .on_long =
                                  is_word(c->data_on_long, "error") ? KU_LONG_ERROR : KU_LONG_CUT,
                              .progress = *progress};
    return ku_jsonl_open(&o, out);
}

static int open_text(const struct ku_config *c, const struct ku_model *m, int64_t seq_len,
                     const struct ku_held_out *held, const struct ku_progress *progress,
                     struct ku_data **out)
{
    struct ku_text_opts o = {.train = (const char *const *)c->data_train.item,
                             .n_train = held->is_alone ? 0 : c->data_train.n,
                             .val = (const char *const *)c->data_val.item,
                             .n_val = c->data_val.n,
                             .val_fraction = c->data_val_fraction,
                             .tokenizer = c->data_tokenizer,
                             .format = c->data_format,
                             .seq_len = seq_len,
                             .stride = held->stride,
                             .vocab_count = m->facts.vocab_size,
                             .weight = held->is_alone ? NULL : c->data_weights.v,
                             .segments = c->data_segments,
                             .progress = *progress};
    if (o.segments)
        KU_TRY(find_separator(c, &o.separator));
    return ku_text_open(&o, out);
}

/*
 * Add masking to text, for masked language models. Owns: text.
 */
static int open_masked(const struct ku_config *c, const struct ku_model *m, struct ku_data *text,
                       struct ku_data **out)
{
    struct ku_masked_opts o = {.probability = c->data_mlm_probability,
                               .mask_token = c->data_mask_token,
                               .vocab_count = m->facts.vocab_size,
                               .seed = (uint64_t)c->train_seed};
    if (c->data_mask_token == KU_NULL)
        o.mask_token = o.vocab_count - 1;
    if (o.mask_token < o.vocab_count)
        return ku_masked_open(text, &o, out);
    json_t *v = json_integer(o.mask_token);
    int status = ku_config_refuse(c, "data.mask_token", v, "an id below the model's vocab_size");
    json_decref(v);
    ku_data_destroy(text);
    return status;
}

int ku_dataset_open_text(const struct ku_config *c, const struct ku_model *m, int64_t seq_len,
                         const struct ku_held_out *held, const struct ku_progress *progress,
                         struct ku_data **out)
{
    static const struct ku_held_out as_training = {0, 0};
    struct ku_data *text;
    if (held == NULL)
        held = &as_training;
    KU_TRY(ku_dataset_check_text(c, m));
    if (is_jsonl(c) && held->stride > 0)
        return ku_config_refuse(c, "data.train", ku_json_at(c->root, "data.train"),
                                "a stride is for text files; evaluate documents without one");
    if (is_jsonl(c))
        return open_jsonl(c, m, seq_len, held, progress, out);
    KU_TRY(open_text(c, m, seq_len, held, progress, &text));
    if (m->facts.is_masked)
        return open_masked(c, m, text, out);
    *out = text;
    return KUMI_OK;
}

bool ku_dataset_is_tokenized(const struct ku_config *c)
{
    const struct ku_list *list[] = {&c->data_train, &c->data_val};
    if (strcmp(c->data_tokenizer, "byte") != 0)
        return 1;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < list[i]->n; k++)
            if (ends_in(list[i]->item[k], ".bin"))
                return 0;
    return !is_jsonl(c);
}

int ku_dataset_token_bytes(const struct ku_config *c, int64_t vocab_count, int32_t **bytes)
{
    struct ku_tokenizer *t;
    int status = KUMI_OK;
    *bytes = NULL;
    if (!ku_dataset_is_tokenized(c))
        return KUMI_OK;
    KU_TRY(ku_tokenizer_open(c->data_tokenizer, &t));
    int32_t *table = ku_calloc((size_t)vocab_count, sizeof *table);
    if (table == NULL)
        status = KUMI_ENOMEM;
    for (int64_t i = 0; i < vocab_count && status == KUMI_OK; i++) {
        struct ku_str text = {0};
        uint32_t id = (uint32_t)i;
        int has_none = ku_tokenizer_decode(t, &id, 1, &text);
        table[i] = has_none ? -1 : (int32_t)text.bytes;
        status = has_none == KUMI_ENOMEM ? has_none : KUMI_OK;
        ku_str_fini(&text);
    }
    ku_tokenizer_destroy(t);
    if (status < 0)
        ku_free(table);
    else
        *bytes = table;
    return status;
}
