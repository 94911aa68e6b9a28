/* SPDX-License-Identifier: Apache-2.0 */
#include "data/tokenizer/vocab.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "data/tokenizer/bpe.h"
#include "data/lines.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "data/tokenizer/word_count.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const special_text[KU_VOCAB_SPECIALS] = {"<pad>", "<s>", "</s>", "<unk>"};

struct ku_vocab {
    struct ku_word_count words;     /* numbered as the tokens, special tokens first */
    struct ku_tokenizer *tokenizer; /* NULL: tokens are words */
    uint32_t special[KU_VOCAB_SPECIALS];
    int64_t count;
    char fingerprint[65];
};

/* Length of the next word in [*at, end), moving *at to it; 0 at the end. */
static size_t next_word(const char **at, const char *end)
{
    const char *stop;
    while (*at < end && ku_is_blank(**at))
        ++*at;
    for (stop = *at; stop < end && !ku_is_blank(*stop);)
        stop++;
    return (size_t)(stop - *at);
}

static int add_special_words(struct ku_word_count *words)
{
    for (int i = 0; i < KU_VOCAB_SPECIALS; i++)
        KU_TRY(ku_word_count_add(words, special_text[i], strlen(special_text[i]), NULL));
    return KUMI_OK;
}

/*
 * Counts a file's words. `words` begins with the special tokens, so a word with such a text is not
 * a new word.
 */
static int count_file(const char *path, const struct ku_progress *progress,
                      struct ku_word_count *words)
{
    struct ku_lines *lines;
    const char *text;
    char what[256];
    size_t bytes, n;
    int status;
    snprintf(what, sizeof what, "counting words of %.200s", path);
    KU_TRY(ku_lines_open(path, 0, &lines));
    while ((status = ku_lines_next(lines, &text, &bytes)) > 0) {
        for (const char *at = text; (n = next_word(&at, text + bytes)) > 0; at += n)
            KU_TRY_OUT(ku_word_count_add(words, at, n, NULL));
        if (ku_lines_number(lines) % 4096 == 0)
            KU_TRY_OUT(ku_progress_call(progress, what, ku_lines_done_bytes(lines),
                                        ku_lines_total_bytes(lines)));
    }
out:
    ku_lines_close(lines);
    return status;
}

struct ranked {
    const unsigned char *text;
    uint32_t bytes;
    int64_t count;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order ? order : x->bytes < y->bytes ? -1 : 1;
}

/* Adds the words that are frequent enough, in descending order of frequency. */
static int take_words(struct ku_vocab *v, const struct ku_word_count *counted,
                      const struct ku_vocab_opts *o)
{
    uint32_t n = 0;
    int64_t least = o->min_frequency ? o->min_frequency : 1;
    struct ranked *list = ku_calloc(counted->n, sizeof *list);
    if (!list)
        return KUMI_ENOMEM;
    for (uint32_t i = KU_VOCAB_SPECIALS; i < counted->n; i++)
        if (counted->word[i].count >= least)
            list[n++] = (struct ranked){ku_word_text(counted, i), ku_word_bytes(counted, i),
                                        counted->word[i].count};
    qsort(list, n, sizeof *list, by_rank);
    int status = add_special_words(&v->words);
    if (o->max_words && n > o->max_words)
        n = (uint32_t)o->max_words;
    for (uint32_t i = 0; i < n && status == KUMI_OK; i++)
        status = ku_word_count_add(&v->words, list[i].text, list[i].bytes, NULL);
    ku_free(list);
    if (status == KUMI_OK && n == 0)
        return KU_ERR(KUMI_EINPUT,
                      "vocabulary: %s: no word occurs %lld times; give more text or a lower "
                      "min_frequency",
                      o->file[0], (long long)least);
    return status;
}

static int learn_words(struct ku_vocab *v, const struct ku_vocab_opts *o)
{
    struct ku_word_count counted = {0};
    if (o->n_files < 1)
        return KU_ERR(KUMI_EINVAL, "vocabulary: no file to count words in; give one or more");
    if (o->min_frequency < 0 || o->max_words < 0)
        return KU_ERR(KUMI_EINVAL, "vocabulary: min_frequency %lld, max_words %lld; give 0 or more",
                      (long long)o->min_frequency, (long long)o->max_words);
    int status = add_special_words(&counted);
    for (int i = 0; i < o->n_files && status == KUMI_OK; i++)
        status = count_file(o->file[i], &o->progress, &counted);
    if (status == KUMI_OK)
        status = take_words(v, &counted, o);
    ku_word_count_fini(&counted);
    return status;
}

static int load_words(struct ku_vocab *v, const char *path)
{
    struct ku_lines *lines;
    const char *text;
    size_t bytes;
    int status;
    KU_TRY(ku_lines_open(path, 0, &lines));
    while ((status = ku_lines_next(lines, &text, &bytes)) > 0) {
        const char *at = text;
        uint32_t number = v->words.n, nth = number;
        const char *fault = NULL;
        const char *special = number < KU_VOCAB_SPECIALS ? special_text[number] : NULL;
        if (special && (bytes != strlen(special) || memcmp(text, special, bytes) != 0))
            fault = "the first lines are <pad>, <s>, </s>, <unk>";
        else if (bytes == 0 || next_word(&at, text + bytes) != bytes)
            fault = "a line is one word";
        else
            KU_TRY_OUT(ku_word_count_add(&v->words, text, bytes, &nth));
        status = KUMI_OK;
        if (fault)
            status = KU_ERR(KUMI_EINPUT, "vocabulary: %s:%u: '%.*s'; %s", path, number + 1,
                            (int)(bytes < 40 ? bytes : 40), text, fault);
        else if (nth != number)
            status = KU_ERR(KUMI_EINPUT, "vocabulary: %s:%u: '%.*s' is already in line %u", path,
                            number + 1, (int)(bytes < 40 ? bytes : 40), text, nth + 1);
        KU_TRY_OUT(status);
    }
    if (status == KUMI_OK && v->words.n < KU_VOCAB_SPECIALS)
        status = KU_ERR(KUMI_EINPUT,
                        "vocabulary: %s: %u lines; the first are <pad>, <s>, </s>, "
                        "<unk>",
                        path, v->words.n);
out:
    ku_lines_close(lines);
    return status;
}

static int open_tokenizer(struct ku_vocab *v, const char *where)
{
    KU_TRY(ku_tokenizer_open(where, &v->tokenizer));
    v->count = ku_tokenizer_vocab_count(v->tokenizer);
    for (int i = 0; i < KU_VOCAB_SPECIALS; i++) {
        const struct ku_added *a =
            ku_tokenizer_find_added(v->tokenizer, special_text[i], strlen(special_text[i]));
        v->special[i] = a                   ? a->id
                        : i != KU_VOCAB_UNK ? (uint32_t)v->count++
                                            : v->special[KU_VOCAB_PAD];
    }
    return KUMI_OK;
}

static int make_fingerprint(struct ku_vocab *v)
{
    struct ku_sha256 h;
    KU_TRY(ku_sha256_init(&h));
    if (v->tokenizer) {
        const char *from = ku_tokenizer_fingerprint(v->tokenizer);
        ku_sha256_update(&h, from, strlen(from));
    }
    for (uint32_t i = 0; i < v->words.n; i++) {
        ku_sha256_update(&h, ku_word_text(&v->words, i), ku_word_bytes(&v->words, i));
        ku_sha256_update(&h, "\n", 1);
    }
    ku_sha256_final_hex(&h, v->fingerprint);
    return KUMI_OK;
}

int ku_vocab_open(const struct ku_vocab_opts *opts, struct ku_vocab **out)
{
    const char *where = opts->tokenizer ? opts->tokenizer : "word";
    size_t n = strlen(where);
    struct ku_vocab *v = ku_calloc(1, sizeof *v);
    if (!v)
        return KUMI_ENOMEM;
    int status, is_word = strcmp(where, "word") == 0,
                is_list = n > 6 && strcmp(where + n - 6, ".vocab") == 0;
    if (is_word)
        status = learn_words(v, opts);
    else if (is_list)
        status = load_words(v, where);
    else
        status = open_tokenizer(v, where);
    if (status == KUMI_OK && !v->tokenizer) {
        v->count = v->words.n;
        for (uint32_t i = 0; i < KU_VOCAB_SPECIALS; i++)
            v->special[i] = i;
    }
    if (status == KUMI_OK)
        status = make_fingerprint(v);
    if (status < 0) {
        ku_vocab_destroy(v);
        return status;
    }
    *out = v;
    return KUMI_OK;
}

void ku_vocab_destroy(struct ku_vocab *v)
{
    if (!v)
        return;
    ku_word_count_fini(&v->words);
    ku_tokenizer_destroy(v->tokenizer);
    ku_free(v);
}

int64_t ku_vocab_count(const struct ku_vocab *v)
{
    return v->count;
}

uint32_t ku_vocab_special(const struct ku_vocab *v, enum ku_vocab_special which)
{
    return v->special[which];
}

const char *ku_vocab_fingerprint(const struct ku_vocab *v)
{
    return v->fingerprint;
}

int ku_vocab_encode(struct ku_vocab *v, const char *text, size_t bytes, struct ku_tokens *out)
{
    size_t n;
    if (v->tokenizer)
        return ku_tokenizer_encode(v->tokenizer, text, bytes, out);
    for (const char *at = text; (n = next_word(&at, text + bytes)) > 0; at += n) {
        uint32_t id = KU_VOCAB_UNK;
        if (!ku_word_count_find(&v->words, at, n, &id) || id < KU_VOCAB_SPECIALS)
            id = KU_VOCAB_UNK;
        KU_TRY(ku_tokens_reserve(out, 1));
        out->id[out->count++] = id;
    }
    return KUMI_OK;
}

int ku_vocab_decode(const struct ku_vocab *v, const uint32_t *id, size_t count, struct ku_str *out)
{
    size_t first = out->bytes;
    for (size_t i = 0; i < count && id[i] != v->special[KU_VOCAB_EOS]; i++) {
        if (id[i] == v->special[KU_VOCAB_PAD] || id[i] == v->special[KU_VOCAB_BOS])
            continue;
        if (v->tokenizer) {
            KU_TRY(ku_tokenizer_decode(v->tokenizer, &id[i], 1, out));
            continue;
        }
        if (id[i] >= v->words.n)
            return KU_ERR(KUMI_EINVAL, "token %u: not in the vocabulary of %u words", id[i],
                          v->words.n);
        if (out->bytes > first)
            ku_str_append(out, " ", 1);
        ku_str_append(out, ku_word_text(&v->words, id[i]), ku_word_bytes(&v->words, id[i]));
    }
    return out->failed ? KUMI_ENOMEM : KUMI_OK;
}

int ku_vocab_print(const struct ku_vocab *v, struct ku_str *out)
{
    if (v->tokenizer)
        return KU_ERR(KUMI_EINVAL,
                      "vocabulary: it belongs to a tokenizer; save its tokenizer.json instead");
    for (uint32_t i = 0; i < v->words.n; i++) {
        ku_str_append(out, ku_word_text(&v->words, i), ku_word_bytes(&v->words, i));
        ku_str_append(out, "\n", 1);
    }
    return out->failed ? KUMI_ENOMEM : KUMI_OK;
}
