/* SPDX-License-Identifier: Apache-2.0 */
#include "batch/text_source.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "batch/fixed_shape.h"
#include "data/image/image.h"
#include "data/input_file.h"
#include "data/text/jsonl.h"
#include "data/text/masked.h"
#include "data/text/token_files.h"
#include "data/tokenizer/tokenizer.h"

static struct ku_fixed_source *of(struct ku_batch_source *s)
{
    return (struct ku_fixed_source *)(void *)s;
}

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

const char *ku_text_kind(const struct ku_config *c)
{
    return c->data_kind ? c->data_kind : is_jsonl(c) ? "jsonl" : "text";
}

bool ku_text_is_kind(const struct ku_config *c)
{
    return c->data_kind == NULL || strcmp(c->data_kind, "text") == 0 ||
           strcmp(c->data_kind, "jsonl") == 0;
}

static bool is_word(const char *key, const char *word)
{
    return key && strcmp(key, word) == 0;
}

int ku_text_check(const struct ku_config *c, const struct ku_model *m)
{
    const int has_docs = is_jsonl(c);
    const bool is_image = c->data_kind && ku_image_is_kind(c->data_kind);
    const struct ku_config_rule rule[] = {
        {m->properties.image[0] && !is_image, "data.kind",
         "this model reads images; give cifar10, cifar100, folder, tar, idx or npy"},
        {is_word(c->data_kind, "parallel"), "data.kind",
         "it is for translation models; give text or jsonl"},
        {c->data_segments && !m->properties.is_causal, "data.segments",
         "this model attends over the whole sample; use false (gpt2 and llama have segments)"},
        {has_docs && m->properties.is_masked, "data.train",
         "documents are for causal language models; a masked language model learns from text "
         "files"},
        {has_docs && c->data_weights.n > 0, "data.weights", "it is for text files; omit it"},
        {c->data_separator != KU_NULL && !has_docs && !c->data_segments, "data.separator",
         "it is for text with data.segments true, and for jsonl; leave it out"},
        {is_word(c->data_on_long, "drop"), "data.on_long", "cut or error for documents"},
    };
    return ku_config_check_rules(c, rule, sizeof rule / sizeof rule[0]);
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
    return ku_config_refuse(
        c, "data.separator", v,
        "the tokenizer has no end-of-text token; give its id, or set data.segments to false");
}

static int open_jsonl(struct ku_batch_source *s)
{
    const struct ku_config *c = s->cfg;
    const struct ku_held_out *held = &of(s)->held;
    struct ku_jsonl_opts o = {.train = (const char *const *)c->data_train.item,
                              .n_train = held->is_alone ? 0 : c->data_train.n,
                              .val = (const char *const *)c->data_val.item,
                              .n_val = c->data_val.n,
                              .val_fraction = c->data_val_fraction,
                              .tokenizer = c->data_tokenizer,
                              .separator = c->data_separator == KU_NULL ? NULL : &c->data_separator,
                              .seq_len = s->seq_len,
                              .vocab_count = s->model->properties.vocab_size,
                              .pack = c->data_pack,
                              .segments = c->data_segments,
                              .on_long =
                                  is_word(c->data_on_long, "error") ? KU_LONG_ERROR : KU_LONG_CUT,
                              .progress = s->progress};
    if (held->stride > 0)
        return ku_config_refuse(c, "data.train", ku_json_at(c->root, "data.train"),
                                "a stride is for text files; evaluate documents without one");
    return ku_jsonl_open(&o, &s->data);
}

static int open_text(struct ku_batch_source *s, struct ku_data **out)
{
    const struct ku_config *c = s->cfg;
    const struct ku_held_out *held = &of(s)->held;
    struct ku_text_opts o = {.train = (const char *const *)c->data_train.item,
                             .n_train = held->is_alone ? 0 : c->data_train.n,
                             .val = (const char *const *)c->data_val.item,
                             .n_val = c->data_val.n,
                             .val_fraction = c->data_val_fraction,
                             .tokenizer = c->data_tokenizer,
                             .format = c->data_format,
                             .seq_len = s->seq_len,
                             .stride = held->stride,
                             .vocab_count = s->model->properties.vocab_size,
                             .weight = held->is_alone ? NULL : c->data_weights.v,
                             .segments = c->data_segments,
                             .progress = s->progress};
    if (o.segments)
        KU_TRY(find_separator(c, &o.separator));
    return ku_text_open(&o, out);
}

/* Id of the mask token if the configuration has none. */
static int find_mask_token(const struct ku_config *c, int64_t vocab_count, int64_t *out)
{
    const char *fault = "the tokenizer of the token files is not known; give the id of its mask "
                        "token";
    struct ku_tokenizer *t;
    uint32_t id = 0;
    if (ku_text_is_tokenized(c)) {
        KU_TRY(ku_tokenizer_open(c->data_tokenizer, &t));
        const int found = ku_tokenizer_mask_token(t, &id);
        const bool is_free = !ku_tokenizer_has(t, (uint32_t)(vocab_count - 1));
        ku_tokenizer_destroy(t);
        *out = found ? id : vocab_count - 1;
        if (found || is_free)
            return KUMI_OK;
        fault = "the tokenizer has no mask token, and the model's last id is one of its tokens; "
                "give the id of another token, or raise model.vocab_size";
    }
    json_t *v = json_null();
    return ku_config_refuse(c, "data.mask_token", v, fault);
}

void ku_text_keep_mask_token(struct ku_config *c, const struct ku_model *m, const json_t *numerics)
{
    const json_t *id = json_object_get(numerics, "data.mask_token");
    if (m->properties.is_masked && c->data_mask_token == KU_NULL)
        c->data_mask_token =
            json_is_integer(id) ? json_integer_value(id) : m->properties.vocab_size - 1;
}

int64_t ku_text_mask_token(const struct ku_batch_source *s)
{
    return ku_masked_token(s->data);
}

/*
 * Add masking to text, for masked language models. Owns: text.
 */
static int open_masked(struct ku_batch_source *s, struct ku_data *text)
{
    const struct ku_config *c = s->cfg;
    struct ku_masked_opts o = {.probability = c->data_mlm_probability,
                               .mask_token = c->data_mask_token,
                               .vocab_count = s->model->properties.vocab_size,
                               .seed = (uint64_t)c->train_seed};
    int status = KUMI_OK;
    if (c->data_mask_token == KU_NULL)
        status = find_mask_token(c, o.vocab_count, &o.mask_token);
    if (status == KUMI_OK && o.mask_token >= o.vocab_count)
        status = ku_config_refuse_int(c, "data.mask_token", o.mask_token,
                                      "an id below the model's vocab_size");
    if (status == KUMI_OK)
        return ku_masked_open(text, &o, &s->data);
    ku_data_destroy(text);
    return status;
}

int ku_text_open_data(struct ku_batch_source *s)
{
    struct ku_data *text;
    KU_TRY(ku_text_check(s->cfg, s->model));
    if (is_jsonl(s->cfg))
        return open_jsonl(s);
    KU_TRY(open_text(s, &text));
    if (s->model->properties.is_masked)
        return open_masked(s, text);
    s->data = text;
    return KUMI_OK;
}

void ku_text_hold_out(struct ku_batch_source *s, const struct ku_held_out *held)
{
    KU_ASSERT(s->ops == &ku_text_batches && s->data == NULL);
    of(s)->held = *held;
    of(s)->is_held_out = true;
}

bool ku_text_is_tokenized(const struct ku_config *c)
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

/* Sets *form from the first match of a glob, and ends the matching. */
static int take_form(void *form, const char *name)
{
    const int status = ku_jsonl_form_of(name, form);
    return status < 0 ? status : 1;
}

int ku_text_find_ids(const struct ku_config *c, const char **file)
{
    const char *first = c->data_train.n > 0 ? c->data_train.item[0] : "";
    enum ku_jsonl_form form = KU_JSONL_UNKNOWN;
    *file = NULL;
    if (strcmp(c->data_tokenizer, "byte") != 0)
        return KUMI_OK;
    if (is_jsonl(c) && ku_input_glob(first, take_form, &form) == KUMI_ENOMEM)
        return KUMI_ENOMEM;
    if (is_jsonl(c) ? form == KU_JSONL_IDS : ends_in(first, ".bin"))
        *file = first;
    return KUMI_OK;
}

int ku_text_token_bytes(const struct ku_config *c, int64_t vocab_count, int32_t **bytes)
{
    struct ku_tokenizer *t;
    int status = KUMI_OK;
    *bytes = NULL;
    if (!ku_text_is_tokenized(c))
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
