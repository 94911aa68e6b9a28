/* SPDX-License-Identifier: Apache-2.0 */
#include "data/tokenizer/tokenizer_impl.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "data/tokenizer/bpe_train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads tokenizer files; they write a token as text, one character per byte (ku_token_unspell). */
enum {
    FILE_BYTES_MAX = 256 << 20, /* the largest in use have about 30 MB */
    TOKENS_MAX = 1 << 24,
    ID_GAP_MAX = 1 << 20, /* ids may have gaps; bounds the memory that a small file can request */
    TOKEN_BYTES_MAX = 1 << 16,
};

/* Turns EINVAL of the JSON parser into EINPUT. */
static int as_input(int status)
{
    if (status != KUMI_EINVAL)
        return status;
    struct kumi_error e = *ku_err_get();
    return KU_ERR(KUMI_EINPUT, "%s", e.text);
}

static int read_text(const char *path, char **text, size_t *bytes)
{
    return ku_os_slurp(path, FILE_BYTES_MAX, text, bytes) == 0
               ? KUMI_OK
               : KU_ERR(ku_os_status(KUMI_EINPUT), "tokenizer: %s: %s; make it readable", path,
                        ku_os_why());
}

/* transformers writes a model_max_length of 10^30 for "none". */
int ku_tokenizer_read_json(const char *path, struct ku_json *doc)
{
    char *text;
    size_t bytes;
    KU_TRY(read_text(path, &text, &bytes));
    int status = as_input(ku_json_parse_with(path, text, bytes, KU_JSON_LONG_INTEGERS, doc));
    ku_free(text);
    return status;
}

/* vocab: {"token": id, …} */
static int load_vocab(struct ku_tokenizer *t, const char *path, json_t *vocab)
{
    size_t count = json_object_size(vocab);
    if (!json_is_object(vocab) || count == 0 || count > TOKENS_MAX)
        return KU_ERR(KUMI_EINPUT, "tokenizer: %s: vocabulary of %zu tokens; 1 to %d are supported",
                      path, count, TOKENS_MAX);
    KU_TRY(ku_bpe_create(&t->bpe));
    const char *spelled;
    json_t *value;
    unsigned char *token = ku_malloc(TOKEN_BYTES_MAX);
    if (!token)
        return KUMI_ENOMEM;
    int status = KUMI_OK;
    json_object_foreach(vocab, spelled, value)
    {
        size_t bytes = strlen(spelled);
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || (uint64_t)id >= count + ID_GAP_MAX || bytes > TOKEN_BYTES_MAX) {
            status = KU_ERR(KUMI_EINPUT,
                            "tokenizer: %s: token '%.40s': id %lld, %zu bytes; ids are whole "
                            "numbers from 0 to %zu",
                            path, spelled, (long long)id, bytes, count + ID_GAP_MAX - 1);
            break;
        }
        int findable = ku_token_unspell((const unsigned char *)spelled, bytes, token, &bytes);
        status = ku_bpe_add_token(t->bpe, (uint32_t)id, token, bytes, findable);
        if (status > 0)
            status = KU_ERR(KUMI_EINPUT,
                            "tokenizer: %s: token '%.40s': its %s %lld is given twice; remove one",
                            path, spelled, status == 1 ? "id" : "text, id", (long long)id);
        if (status < 0)
            break;
    }
    ku_free(token);
    return status;
}

/* Adds a merge given in file notation. number: its line or index, from 1. */
static int add_merge(struct ku_tokenizer *t, const char *path, size_t number, const char *left,
                     size_t left_bytes, const char *right, size_t right_bytes)
{
    static const char *const missing[] = {"", "the left side", "the right side", "the product"};
    unsigned char *bytes = ku_malloc(left_bytes + right_bytes);
    if (!bytes)
        return KUMI_ENOMEM;
    size_t n_left = 0, n_right = 0;
    int status = 1;
    if (left_bytes && ku_token_unspell((const unsigned char *)left, left_bytes, bytes, &n_left)) {
        status = 2;
        if (right_bytes &&
            ku_token_unspell((const unsigned char *)right, right_bytes, bytes + n_left, &n_right))
            status = ku_bpe_add_merge(t->bpe, bytes, n_left, n_right);
    }
    ku_free(bytes);
    if (status > 0)
        return KU_ERR(KUMI_EINPUT,
                      "tokenizer: %s: merge %zu '%.*s %.*s': %s is not in the vocabulary; give "
                      "files of the same tokenizer",
                      path, number, (int)(left_bytes < 40 ? left_bytes : 40), left,
                      (int)(right_bytes < 40 ? right_bytes : 40), right, missing[status]);
    return status;
}

/*
 * Reads vocab.bpe or merges.txt: an optional line "#version: …", then "left right" per line in
 * order of rank.
 */
static int load_merges(struct ku_tokenizer *t, const char *path)
{
    char *text;
    size_t bytes, number = 0;
    KU_TRY(read_text(path, &text, &bytes));
    int status = KUMI_OK;
    for (char *line = text, *end = text + bytes, *next; line < end && status == KUMI_OK;
         line = next) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        next = stop ? stop + 1 : end;
        stop = stop ? stop : end;
        stop -= stop > line && stop[-1] == '\r';
        number++;
        if (stop == line || (number == 1 && bytes >= 8 && memcmp(text, "#version", 8) == 0))
            continue;
        char *blank = memchr(line, ' ', (size_t)(stop - line));
        if (!blank || blank == line || blank + 1 == stop ||
            memchr(blank + 1, ' ', (size_t)(stop - blank - 1)))
            status = KU_ERR(
                KUMI_EINPUT,
                "tokenizer: %s:%zu: '%.40s'; a line needs two tokens with one space between them",
                path, number, line);
        else
            status = add_merge(t, path, number, line, (size_t)(blank - line), blank + 1,
                               (size_t)(stop - blank - 1));
    }
    ku_free(text);
    return status;
}

static int add_stage(struct ku_tokenizer *t, const char *path, const char *pattern, int drop_gaps)
{
    if (t->n_stages == KU_STAGES_MAX)
        return KU_ERR(KUMI_EINPUT,
                      "tokenizer: %s: more than %d pre-tokenizers; merge their patterns", path,
                      KU_STAGES_MAX);
    int status = pattern ? ku_words_regex(pattern, drop_gaps, &t->stage[t->n_stages])
                         : ku_words_gpt2(&t->stage[t->n_stages]);
    if (status == KUMI_EINPUT) {
        struct kumi_error e = *ku_err_get();
        return KU_ERR(KUMI_EINPUT, "tokenizer: %s: %.300s", path, e.text);
    }
    KU_TRY(status);
    t->n_stages++;
    return KUMI_OK;
}

static int by_bytes(const void *a, const void *b)
{
    const struct ku_added *x = a, *y = b;
    const int order = memcmp(x->data, y->data, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static void sort_added(struct ku_added_set *set)
{
    if (set->n > 1)
        qsort(set->added, set->n, sizeof *set->added, by_bytes);
    for (uint32_t i = 0; i < set->n; i++)
        set->start[set->added[i].data[0] + 1] = i + 1;
    for (int b = 0; b < 256; b++)
        if (set->start[b + 1] < set->start[b]) /* no token begins with b */
            set->start[b + 1] = set->start[b];
}

/* A tokenizer that adds no tokens around a text keeps the fingerprint that it has without them. */
static void hash_around(const struct ku_tokenizer *t, struct ku_sha256 *h)
{
    const struct ku_tokens *side[] = {&t->before, &t->after};
    if (t->before.count + t->after.count == 0)
        return;
    ku_sha256_update(h, "around", 6);
    for (int i = 0; i < 2; i++) {
        ku_sha256_u64(h, side[i]->count);
        for (size_t k = 0; k < side[i]->count; k++)
            ku_sha256_u64(h, side[i]->id[k]);
    }
}

/*
 * Completes loading. The fingerprint covers vocabulary, merges, `rules` (pre-tokenization), added
 * tokens, and the tokens around a text.
 */
static int seal(struct ku_tokenizer *t, const char *rules, size_t rules_bytes)
{
    unsigned char digest[32];
    struct ku_sha256 h;
    KU_TRY(ku_bpe_seal(t->bpe, digest));
    for (int i = 0; i < 2; i++)
        sort_added(&t->added[i]);
    KU_TRY(ku_sha256_init(&h));
    ku_sha256_update(&h, digest, sizeof digest);
    ku_sha256_update(&h, rules, rules_bytes);
    ku_sha256_update(&h, ku_str_get(&t->special), t->special.bytes);
    hash_around(t, &h);
    ku_sha256_final_hex(&h, t->fingerprint);
    return t->special.failed ? KUMI_ENOMEM : KUMI_OK;
}

int ku_tokenizer_load_pair(struct ku_tokenizer *t, const char *dir, const char *vocab_path,
                           const char *merges_path)
{
    struct ku_json doc = {0};
    KU_TRY(ku_tokenizer_read_json(vocab_path, &doc));
    int status = load_vocab(t, vocab_path, doc.root);
    ku_json_fini(&doc);
    KU_TRY(status);
    KU_TRY(load_merges(t, merges_path));
    KU_TRY(add_stage(t, merges_path, NULL, 0));
    KU_TRY(ku_tokenizer_load_special(t, dir, 1));
    return seal(t, "gpt2", 4);
}

int ku_tokenizer_refuse(const char *path, const char *part, json_t *value, const char *instead)
{
    char *text = value ? ku_json_print(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    int status = KU_ERR(KUMI_EINPUT, "tokenizer: %s: %s: %.80s; kumi supports %s", path, part,
                        text ? text : "missing", instead);
    ku_free(text);
    return status;
}

static const char *type_of(json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "";
}

static bool is_absent(json_t *value)
{
    return !value || json_is_null(value);
}

/* Reads a boolean with a default; returns 0 or 1, or -1 for another type. */
static int flag(json_t *object, const char *key, int absent)
{
    json_t *value = json_object_get(object, key);
    return !value ? absent : json_is_boolean(value) ? json_is_true(value) : -1;
}

static int load_byte_level(struct ku_tokenizer *t, const char *path, json_t *rule)
{
    int prefix = flag(rule, "add_prefix_space", 1), regex = flag(rule, "use_regex", 1);
    if (prefix < 0 || regex < 0)
        return ku_tokenizer_refuse(path, "pre_tokenizer", rule,
                                   "true or false for add_prefix_space and use_regex");
    if (prefix)
        t->prefix_stage = t->n_stages;
    return regex ? add_stage(t, path, NULL, 0) : KUMI_OK;
}

static int load_split(struct ku_tokenizer *t, const char *path, json_t *rule)
{
    const char *pattern =
        json_string_value(json_object_get(json_object_get(rule, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(rule, "behavior"));
    int invert = flag(rule, "invert", 0);
    int isolated = behavior && strcmp(behavior, "Isolated") == 0;
    int removed = behavior && strcmp(behavior, "Removed") == 0;
    if (!pattern || invert < 0 || !(isolated || (removed && invert)))
        return ku_tokenizer_refuse(
            path, "pre_tokenizer", rule,
            "Split with a Regex and behavior Isolated, or Removed with invert");
    return add_stage(t, path, pattern, removed);
}

/* Loads one pre-tokenizer. ByteLevel must be the last, because its output is file notation. */
static int load_rule(struct ku_tokenizer *t, const char *path, json_t *rule, int is_last)
{
    const char *type = type_of(rule);
    if (strcmp(type, "ByteLevel") == 0 && is_last)
        return load_byte_level(t, path, rule);
    if (strcmp(type, "Split") == 0 && !is_last)
        return load_split(t, path, rule);
    if (strcmp(type, "Digits") == 0 && !is_last && flag(rule, "individual_digits", 0) >= 0)
        return add_stage(t, path, flag(rule, "individual_digits", 0) ? "\\p{N}" : "\\p{N}+", 0);
    return ku_tokenizer_refuse(path, "pre_tokenizer", rule,
                               "Split and Digits, with ByteLevel last");
}

static int load_rules(struct ku_tokenizer *t, const char *path, json_t *rules)
{
    json_t *list = json_object_get(rules, "pretokenizers");
    size_t n = strcmp(type_of(rules), "Sequence") == 0 ? json_array_size(list) : 0;
    if (n == 0) /* one rule; refuses an empty sequence */
        return load_rule(t, path, rules, 1);
    for (size_t i = 0; i < n; i++)
        KU_TRY(load_rule(t, path, json_array_get(list, i), i + 1 == n));
    return KUMI_OK;
}

static int load_merge_list(struct ku_tokenizer *t, const char *path, json_t *merges)
{
    size_t n = json_array_size(merges);
    if (!json_is_array(merges) || n > TOKENS_MAX)
        return ku_tokenizer_refuse(path, "model.merges", NULL, "an array of pairs");
    for (size_t i = 0; i < n; i++) {
        json_t *pair = json_array_get(merges, i);
        const char *left = json_string_value(json_is_array(pair) ? json_array_get(pair, 0) : pair),
                   *right;
        size_t left_bytes;
        if (json_is_array(pair) && json_array_size(pair) == 2) {
            right = json_string_value(json_array_get(pair, 1));
            left_bytes = left ? strlen(left) : 0;
        } else {
            right = left ? strchr(left, ' ') : NULL;
            left_bytes = right ? (size_t)(right - left) : 0;
            right = right && !strchr(right + 1, ' ') ? right + 1 : NULL;
        }
        if (!left || !right || json_array_size(pair) > 2)
            return ku_tokenizer_refuse(path, "model.merges", pair,
                                       "pairs as \"left right\" or [\"left\", \"right\"]");
        KU_TRY(add_merge(t, path, i + 1, left, left_bytes, right, strlen(right)));
    }
    return KUMI_OK;
}

static int load_model(struct ku_tokenizer *t, const char *path, json_t *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    json_t *dropout = json_object_get(model, "dropout");
    if (!is_absent(dropout) && json_number_value(dropout) != 0.0)
        return ku_tokenizer_refuse(path, "model.dropout", dropout, "null");
    for (int i = 0; i < 2; i++) {
        json_t *affix = json_object_get(model, affixes[i]);
        if (!is_absent(affix) && json_string_length(affix) > 0)
            return ku_tokenizer_refuse(path, affixes[i], affix, "null or \"\"");
    }
    KU_TRY(load_vocab(t, path, json_object_get(model, "vocab")));
    json_object_del(model, "vocab"); /* large */
    KU_TRY(load_merge_list(t, path, json_object_get(model, "merges")));
    if (flag(model, "ignore_merges", 0) == 1)
        ku_bpe_ignore_merges(t->bpe);
    return KUMI_OK;
}

int ku_tokenizer_add(struct ku_tokenizer *t, const char *path, const char *key, json_t *entry,
                     int64_t id)
{
    json_t *content = json_is_object(entry) ? json_object_get(entry, "content") : entry;
    size_t bytes = json_string_length(content);
    int normalized = flag(entry, "normalized", json_is_object(entry));
    if (bytes == 0 || bytes > TOKEN_BYTES_MAX || id < 0 ||
        (uint64_t)id >= (uint64_t)ku_bpe_vocab_count(t->bpe) + ID_GAP_MAX)
        return ku_tokenizer_refuse(path, key, entry,
                                   "a content and an id within the vocabulary or right after it");
    if (flag(entry, "single_word", 0) || flag(entry, "lstrip", 0) || flag(entry, "rstrip", 0) ||
        normalized < 0)
        return ku_tokenizer_refuse(path, key, entry,
                                   "only false for single_word, lstrip and rstrip");
    uint32_t old_bytes;
    const char *text = json_string_value(content);
    const unsigned char *old = ku_bpe_token(t->bpe, (uint32_t)id, &old_bytes);
    if (!old)
        KU_TRY(ku_bpe_add_token(t->bpe, (uint32_t)id, text, bytes, 0));
    else if (old_bytes != bytes || memcmp(old, text, bytes) != 0)
        return ku_tokenizer_refuse(path, key, entry, "an id that is free or belongs to this token");
    struct ku_added_set *set = &t->added[normalized];
    KU_TRY(KU_GROW(&set->added, set->n, &set->cap));
    unsigned char *data = ku_malloc(bytes);
    if (!data)
        return KUMI_ENOMEM;
    memcpy(data, text, bytes);
    set->added[set->n++] = (struct ku_added){.data = data, .bytes = bytes, .id = (uint32_t)id};
    if (bytes > t->added_bytes_max)
        t->added_bytes_max = bytes;
    return KUMI_OK;
}

static int load_added(struct ku_tokenizer *t, const char *path, json_t *list)
{
    if (!is_absent(list) && !json_is_array(list))
        return ku_tokenizer_refuse(path, "added_tokens", list, "an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *entry = json_array_get(list, i), *id = json_object_get(entry, "id");
        KU_TRY(ku_tokenizer_add(t, path, "added_tokens", entry,
                                json_is_integer(id) ? json_integer_value(id) : -1));
    }
    return KUMI_OK;
}

/* Checks a part that must be absent, an empty Sequence, or (decoder) ByteLevel. */
static int check_part(const char *path, json_t *root, const char *part, const char *allowed,
                      const char *list_key)
{
    json_t *value = json_object_get(root, part), *list = json_object_get(value, list_key), *item;
    size_t i;
    bool is_list = strcmp(type_of(value), "Sequence") == 0 && json_is_array(list);
    bool fits = is_list || is_absent(value) || (allowed && strcmp(type_of(value), allowed) == 0);
    json_array_foreach(list, i, item)
    {
        fits &= !is_list || (allowed && strcmp(type_of(item), allowed) == 0);
    }
    return fits ? KUMI_OK : ku_tokenizer_refuse(path, part, value, allowed ? "ByteLevel" : "null");
}

/* Checks the model type before other parts; old BPE files have no type. */
static int check_type(const char *path, json_t *root)
{
    json_t *model = json_object_get(root, "model");
    const char *type = type_of(model);
    return *type == '\0' || strcmp(type, "BPE") == 0
               ? KUMI_OK
               : ku_tokenizer_refuse(path, "model.type", json_object_get(model, "type"), "BPE");
}

int ku_tokenizer_load_json(struct ku_tokenizer *t, const char *dir, const char *path)
{
    struct ku_json doc = {0};
    char *rules = NULL;
    int status;
    KU_TRY(ku_tokenizer_read_json(path, &doc));
    json_t *pre = json_object_get(doc.root, "pre_tokenizer"),
           *added = json_object_get(doc.root, "added_tokens");
    KU_TRY_OUT(check_type(path, doc.root));
    KU_TRY_OUT(check_part(path, doc.root, "normalizer", NULL, "normalizers"));
    KU_TRY_OUT(check_part(path, doc.root, "decoder", "ByteLevel", "decoders"));
    KU_TRY_OUT(load_rules(t, path, pre));
    KU_TRY_OUT(load_model(t, path, json_object_get(doc.root, "model")));
    KU_TRY_OUT(load_added(t, path, added));
    if (dir)
        KU_TRY_OUT(ku_tokenizer_load_special(t, dir, 0));
    KU_TRY_OUT(
        ku_tokenizer_load_post_processor(t, path, json_object_get(doc.root, "post_processor")));
    json_t *both = json_pack("[OO?]", pre, added);
    rules = both ? ku_json_print(both, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(both);
    status = rules ? seal(t, rules, strlen(rules))
                   : KU_ERR(KUMI_ENOMEM, "tokenizer: %s: out of memory; free some", path);
out:
    ku_free(rules);
    ku_json_fini(&doc);
    return status;
}
