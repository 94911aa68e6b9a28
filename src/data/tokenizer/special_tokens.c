/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Special tokens, which are searched in text as a whole, from the files next to a vocabulary:
 *
 *     tokenizer_config.json     added_tokens_decoder {"50256": token, ..}; eos_token and the other
 *                               names below; add_prefix_space, add_bos_token and
 *                               add_eos_token, if there is no tokenizer.json
 *     special_tokens_map.json   eos_token and the others, if not in tokenizer_config.json
 *     added_tokens.json         {"text": id}, if there is no added_tokens_decoder
 *
 * A token is a string, or an object with content and flags. A token without an id uses the
 * vocabulary's token with that text, or else the next free id, in the order below, as in Hugging
 * Face's library. Tokens of tokenizer.json are not changed. GPT-2's files do not mark
 * "<|endoftext|>" as special; Hugging Face's library adds it in code, and so does this file for
 * every directory with vocab.json and merges.txt.
 */
#include "data/tokenizer/tokenizer_impl.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ADDED_MAX = 1 << 14, DIGITS_MAX = 8 };
static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
enum { N_NAMES = sizeof names / sizeof names[0], N_LISTS = sizeof lists / sizeof lists[0] };
enum { CONFIG, MAP, ADDED, N_FILES };
static const char *const files[] = {"tokenizer_config.json", "special_tokens_map.json",
                                    "added_tokens.json"};

struct special {
    struct ku_tokenizer *t;
    char *path[N_FILES];
    struct ku_json doc[N_FILES]; /* root NULL: the file does not exist */
    int64_t begin;               /* token that begins a text; -1: the files name none */
};

static json_t *content_of(json_t *token)
{
    return json_is_object(token) ? json_object_get(token, "content") : token;
}

/* The id of an added token, or of the vocabulary's token with that text; -1: neither exists. */
static int64_t find_id(const struct ku_tokenizer *t, const char *text, size_t bytes, int *is_added)
{
    uint32_t id, n = ku_bpe_vocab_count(t->bpe);
    const struct ku_added *a = ku_tokenizer_find_added(t, text, bytes);
    *is_added = a != NULL;
    if (a)
        return a->id;
    if (ku_bpe_find(t->bpe, text, bytes, &id))
        return id;
    for (id = 0; id < n; id++) { /* tokens that no word produces */
        uint32_t token_bytes;
        const unsigned char *token = ku_bpe_token(t->bpe, id, &token_bytes);
        if (token && token_bytes == bytes && memcmp(token, text, bytes) == 0)
            return id;
    }
    return -1;
}

/* Adds a token with the id that the file gives, or -1; returns its id, or an error. */
static int64_t add(struct special *s, int file, const char *key, json_t *token, int64_t id)
{
    struct ku_tokenizer *t = s->t;
    json_t *content = content_of(token);
    int is_added;
    if (!json_is_string(content) || json_string_length(content) == 0)
        return ku_tokenizer_refuse(s->path[file], key, token,
                                   "a string, or an object with content");
    int64_t old = find_id(t, json_string_value(content), json_string_length(content), &is_added);
    if (old >= 0 && id >= 0 && old != id)
        return KU_ERR(
            KUMI_EINPUT,
            "tokenizer: %s: %s: '%.60s': id %lld, but %lld in the vocabulary; correct one",
            s->path[file], key, json_string_value(content), (long long)id, (long long)old);
    if (is_added)
        return old;
    if (t->added[0].n + t->added[1].n >= ADDED_MAX)
        return KU_ERR(KUMI_EINPUT, "tokenizer: %s: %s: more than %d tokens are added",
                      s->path[file], key, (int)ADDED_MAX);
    id = old >= 0 ? old : id >= 0 ? id : ku_bpe_vocab_count(t->bpe);
    uint32_t n_normalized = t->added[1].n;
    KU_TRY(ku_tokenizer_add(t, s->path[file], key, token, id));
    ku_str_add(&t->special, "%lld %d %zu ", (long long)id, t->added[1].n > n_normalized,
               json_string_length(content));
    ku_str_append(&t->special, json_string_value(content), json_string_length(content));
    return id;
}

struct entry {
    const char *text;
    json_t *token; /* owned */
    int64_t id;
};

static int by_id(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static int64_t parse_id(const char *text)
{
    int64_t id = 0;
    size_t n = strlen(text);
    if (n == 0 || n > DIGITS_MAX || strspn(text, "0123456789") != n)
        return -1;
    for (; *text; text++)
        id = id * 10 + (*text - '0');
    return id;
}

/* Adds {"id": token, ..} or {"text": id, ..} in ascending order of ids. */
static int add_table(struct special *s, int file, const char *key, json_t *table)
{
    size_t n = json_object_size(table), i = 0;
    const char *name;
    json_t *value;
    struct entry *entry;
    int status = KUMI_OK;
    if (!json_is_object(table) || n > ADDED_MAX)
        return ku_tokenizer_refuse(s->path[file], key, NULL, "an object of tokens");
    entry = ku_calloc(n + 1, sizeof *entry);
    if (!entry)
        return KUMI_ENOMEM;
    json_object_foreach(table, name, value)
    {
        struct entry *e = &entry[i++];
        e->text = name;
        e->id = file == ADDED ? (json_is_integer(value) ? json_integer_value(value) : -1)
                              : parse_id(name);
        e->token = file == ADDED ? json_pack("{s:s, s:b}", "content", name, "normalized", 1)
                                 : json_incref(value);
    }
    qsort(entry, n, sizeof *entry, by_id);
    for (i = 0; i < n && status == KUMI_OK; i++)
        if (entry[i].token == NULL)
            status = KUMI_ENOMEM;
        else if (entry[i].id < 0)
            status = KU_ERR(KUMI_EINPUT, "tokenizer: %s: %s: '%.60s': no id; add one",
                            s->path[file], key, entry[i].text);
        else if ((value = entry[i].token) != NULL) {
            int64_t id = add(s, file, key, value, entry[i].id);
            status = id < 0 ? (int)id : KUMI_OK;
        }
    for (i = 0; i < n; i++)
        json_decref(entry[i].token);
    ku_free(entry);
    return status;
}

/*
 * Finds a named token, first in tokenizer_config.json; *token is NULL if there is none. Returns the
 * file.
 */
static int find_name(const struct special *s, const char *name, json_t **token)
{
    for (int file = CONFIG; file <= MAP; file++) {
        *token = json_object_get(s->doc[file].root, name);
        if (*token && !json_is_null(*token))
            return file;
    }
    *token = NULL;
    return MAP;
}

static int add_names(struct special *s)
{
    for (int i = 0; i < N_NAMES; i++) {
        json_t *token;
        int file = find_name(s, names[i], &token);
        int64_t id = token ? add(s, file, names[i], token, -1) : -1;
        if (token && id < 0)
            return (int)id;
        if (token && strcmp(names[i], "eos_token") == 0)
            s->t->end = id;
        if (token && strcmp(names[i], "bos_token") == 0)
            s->begin = id;
        if (token && strcmp(names[i], "mask_token") == 0)
            s->t->mask = id;
    }
    return KUMI_OK;
}

/* Adds a list of tokens, or an object of named ones. */
static int add_list(struct special *s, int file, const char *key, json_t *list)
{
    json_t *token;
    const char *name;
    size_t i;
    int64_t id;
    json_array_foreach(list, i, token)
    {
        if ((id = add(s, file, key, token, -1)) < 0)
            return (int)id;
    }
    json_object_foreach(list, name, token)
    {
        if ((id = add(s, file, key, token, -1)) < 0)
            return (int)id;
    }
    return KUMI_OK;
}

/* Adds GPT-2's "<|endoftext|>", which no file marks as special. */
static int add_own(struct special *s)
{
    static const char own[] = "<|endoftext|>";
    int is_added;
    int64_t id = find_id(s->t, own, sizeof own - 1, &is_added);
    if (id < 0)
        return KUMI_OK;
    json_t *token = json_string(own);
    id = token ? add(s, CONFIG, "eos_token", token, id) : KUMI_ENOMEM;
    json_decref(token);
    s->t->end = s->begin = id;
    return id < 0 ? (int)id : KUMI_OK;
}

/* Adds a token before or after every text if a key of tokenizer_config.json says so. */
static int add_around(const struct special *s, const char *key, int64_t id, struct ku_tokens *out)
{
    json_t *value = json_object_get(s->doc[CONFIG].root, key);
    if (value && !json_is_boolean(value) && !json_is_null(value))
        return ku_tokenizer_refuse(s->path[CONFIG], key, value, "true or false");
    if (!json_is_true(value))
        return KUMI_OK;
    if (id < 0)
        return KU_ERR(KUMI_EINPUT, "tokenizer: %s: %s: true, but there is no %s; name one",
                      s->path[CONFIG], key, key + strlen("add_"));
    KU_TRY(ku_tokens_reserve(out, 1));
    out->id[out->count++] = (uint32_t)id;
    return KUMI_OK;
}

static int add_all(struct special *s, int is_pair)
{
    json_t *config = s->doc[CONFIG].root, *table = json_object_get(config, "added_tokens_decoder");
    if (is_pair && json_is_true(json_object_get(config, "add_prefix_space"))) {
        s->t->prefix_stage = 0;
        ku_str_add(&s->t->special, "add_prefix_space ");
    }
    if (table)
        KU_TRY(add_table(s, CONFIG, "added_tokens_decoder", table));
    else if (s->doc[ADDED].root)
        KU_TRY(add_table(s, ADDED, "added_tokens", s->doc[ADDED].root));
    if (is_pair)
        KU_TRY(add_own(s));
    KU_TRY(add_names(s));
    for (int file = CONFIG; file <= MAP; file++)
        for (int i = 0; i < N_LISTS; i++)
            KU_TRY(add_list(s, file, lists[i], json_object_get(s->doc[file].root, lists[i])));
    if (is_pair) {
        KU_TRY(add_around(s, "add_bos_token", s->begin, &s->t->before));
        KU_TRY(add_around(s, "add_eos_token", s->t->end, &s->t->after));
    }
    return KUMI_OK;
}

static int read_files(struct special *s, const char *dir)
{
    for (int i = 0; i < N_FILES; i++) {
        struct stat st;
        s->path[i] = ku_asprintf("%s/%s", dir, files[i]);
        if (s->path[i] == NULL)
            return KUMI_ENOMEM;
        if (ku_os_stat(s->path[i], &st) < 0 && errno == ENOENT)
            continue;
        KU_TRY(ku_tokenizer_read_json(s->path[i], &s->doc[i]));
    }
    return KUMI_OK;
}

int ku_tokenizer_load_special(struct ku_tokenizer *t, const char *dir, int is_pair)
{
    struct special s = {.t = t, .begin = -1};
    int status = read_files(&s, dir);
    if (status == KUMI_OK)
        status = add_all(&s, is_pair);
    for (int i = 0; i < N_FILES; i++) {
        ku_json_fini(&s.doc[i]);
        ku_free(s.path[i]);
    }
    return status;
}
