/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The post-processor of tokenizer.json: special tokens before and after a whole text.
 *
 *     {"type": "TemplateProcessing",
 *      "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
 *      "special_tokens": {"<s>": {"ids": [1], ..}}}         ->   1 text
 *     {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]}
 *                                                           ->   0 text 2; BertProcessing too
 *
 * "pair", for two texts at once, is not used. ByteLevel changes offsets, not tokens; it stands
 * alone, or in a Sequence with a template.
 */
#include "data/tokenizer/tokenizer_impl.h"

#include "base/err.h"

#include <string.h>

enum { AROUND_MAX = 64 }; /* tokens on a side of a text; templates in use have one */

static bool is_type(json_t *rule, const char *type)
{
    const char *is = json_string_value(json_object_get(rule, "type"));
    return is && strcmp(is, type) == 0;
}

static const char *id_of(json_t *piece, const char *kind)
{
    return json_string_value(json_object_get(json_object_get(piece, kind), "id"));
}

/* Appends the ids of a special token of a template. */
static int add_special(const struct ku_tokenizer *t, const char *path, json_t *rule, json_t *piece,
                       struct ku_tokens *out)
{
    const char *name = id_of(piece, "SpecialToken");
    json_t *tokens = json_object_get(rule, "special_tokens"),
           *ids = name ? json_object_get(json_object_get(tokens, name), "ids") : NULL;
    const size_t n = json_array_size(ids);
    if (n == 0 || n > AROUND_MAX - out->count)
        return ku_tokenizer_refuse(path, "post_processor.single", piece,
                                   "the text A and special_tokens with ids");
    KU_TRY(ku_tokens_reserve(out, n));
    for (size_t i = 0; i < n; i++) {
        json_t *id = json_array_get(ids, i);
        const json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value > UINT32_MAX || !ku_tokenizer_has(t, (uint32_t)value))
            return ku_tokenizer_refuse(path, "post_processor.special_tokens", id,
                                       "ids of the vocabulary and of added_tokens");
        out->id[out->count++] = (uint32_t)value;
    }
    return KUMI_OK;
}

static int load_template(struct ku_tokenizer *t, const char *path, json_t *rule)
{
    json_t *single = json_object_get(rule, "single"), *piece;
    int n_texts = 0;
    size_t i;
    json_array_foreach(single, i, piece)
    {
        const char *text = id_of(piece, "Sequence");
        if (text && strcmp(text, "A") == 0)
            n_texts++;
        else
            KU_TRY(add_special(t, path, rule, piece, n_texts ? &t->after : &t->before));
    }
    return n_texts == 1 ? KUMI_OK
                        : ku_tokenizer_refuse(path, "post_processor.single", single,
                                              "one text A, with special tokens around it");
}

/* Appends the id of a pair ["<s>", 0]. */
static int add_pair(const struct ku_tokenizer *t, const char *path, json_t *rule, const char *key,
                    struct ku_tokens *out)
{
    json_t *pair = json_object_get(rule, key), *id = json_array_get(pair, 1);
    const json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (value < 0 || value > UINT32_MAX || !ku_tokenizer_has(t, (uint32_t)value))
        return ku_tokenizer_refuse(path, "post_processor", rule,
                                   "cls and sep, each a token with its id");
    KU_TRY(ku_tokens_reserve(out, 1));
    out->id[out->count++] = (uint32_t)value;
    return KUMI_OK;
}

static int load_cls_and_sep(struct ku_tokenizer *t, const char *path, json_t *rule)
{
    KU_TRY(add_pair(t, path, rule, "cls", &t->before));
    return add_pair(t, path, rule, "sep", &t->after);
}

/* n_templates: how many were loaded before; Hugging Face's library cannot apply a second one. */
static int load_rule(struct ku_tokenizer *t, const char *path, json_t *rule, int *n_templates)
{
    if (is_type(rule, "ByteLevel"))
        return KUMI_OK;
    if (is_type(rule, "TemplateProcessing") && (*n_templates)++ == 0)
        return load_template(t, path, rule);
    if ((is_type(rule, "RobertaProcessing") || is_type(rule, "BertProcessing")) &&
        (*n_templates)++ == 0)
        return load_cls_and_sep(t, path, rule);
    return ku_tokenizer_refuse(path, "post_processor", rule,
                               "ByteLevel, one TemplateProcessing, RobertaProcessing or "
                               "BertProcessing, or a Sequence of these");
}

int ku_tokenizer_load_post_processor(struct ku_tokenizer *t, const char *path, json_t *rule)
{
    json_t *list = json_object_get(rule, "processors"), *item;
    int n_templates = 0;
    size_t i;
    if (rule == NULL || json_is_null(rule))
        return KUMI_OK;
    if (!is_type(rule, "Sequence") || !json_is_array(list))
        return load_rule(t, path, rule, &n_templates);
    json_array_foreach(list, i, item)
    {
        KU_TRY(load_rule(t, path, item, &n_templates));
    }
    return KUMI_OK;
}
