/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"
#include "data/tokenizer/tokenizer_impl.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/os/os.h"

#include <stdio.h>
#include <string.h>

/*
 * Encoding. Fed text goes into a buffer, the window. Text at its start that later text cannot
 * affect is removed and encoded:
 *
 *     text      up to the next added token                       (segments)
 *     segment   runs of valid UTF-8 | runs of invalid bytes      (runs; an invalid run is a word)
 *     run       stage 0 -> stage 1 -> … each splits its input    (words)
 *     word      the vocabulary's merges                          (tokens)
 *
 * Text whose tokens may depend on what follows stays in the window until more is fed or the text
 * ends.
 */
enum { FEED_BYTES = 256 << 10 };

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

void ku_tokenizer_reset(struct ku_tokenizer *t)
{
    t->window_bytes = 0;
    t->window_at = 0;
    t->is_start = 1;
    if (t->cap_window > 4 * FEED_BYTES) {
        ku_free(t->window);
        t->window = NULL;
        t->cap_window = 0;
    }
    if (t->bpe)
        ku_bpe_trim(t->bpe);
}

/* Makes room for `bytes` of text in the window, and for one blank before it. */
static int window_reserve(struct ku_tokenizer *t, size_t bytes)
{
    if (t->window && bytes <= t->cap_window)
        return KUMI_OK;
    size_t cap = bytes < 2 * FEED_BYTES ? 2 * FEED_BYTES : bytes + bytes / 2;
    unsigned char *window = ku_realloc(t->window, cap + 1, 1);
    if (!window)
        return KUMI_ENOMEM;
    t->window = window;
    t->cap_window = cap;
    return KUMI_OK;
}

static int too_long(const struct ku_tokenizer *t)
{
    return KU_ERR(KUMI_EINPUT,
                  "text: word at byte %llu: more than %d bytes; split it by spaces or newlines",
                  (unsigned long long)t->window_at, KU_WORD_BYTES_MAX);
}

static int encode_word(struct ku_tokenizer *t, const unsigned char *at, const unsigned char *stop,
                       struct ku_tokens *out)
{
    if (stop - at > KU_WORD_BYTES_MAX)
        return too_long(t);
    int64_t bad = ku_bpe_encode(t->bpe, at, (size_t)(stop - at), out);
    if (bad > 0)
        return KU_ERR(
            KUMI_EINPUT,
            "text: word at byte %llu: no token for byte 0x%02x; use a tokenizer with all 256 bytes",
            (unsigned long long)t->window_at, at[bad - 1]);
    return (int)bad;
}

/* Passes a whole word through the stages from `number` on. */
static int descend(struct ku_tokenizer *t, int number, const unsigned char *at,
                   const unsigned char *end, struct ku_tokens *out)
{
    if (number == t->prefix_stage && number > 0 && *at != ' ') { /* at most once per word */
        size_t bytes = (size_t)(end - at);
        if (bytes >= t->cap_scratch) {
            ku_free(t->scratch);
            t->cap_scratch = 0;
            t->scratch = ku_malloc(2 * bytes + 64);
            if (!t->scratch)
                return KUMI_ENOMEM;
            t->cap_scratch = 2 * bytes + 64;
        }
        t->scratch[0] = ' ';
        memcpy(t->scratch + 1, at, bytes);
        at = t->scratch;
        end = at + bytes + 1;
    }
    if (number == t->n_stages)
        return encode_word(t, at, end, out);
    while (at < end) {
        const unsigned char *stop;
        int keep;
        KU_TRY(ku_words_next(t->stage[number], at, end, 1, &stop, &keep));
        if (keep)
            KU_TRY(descend(t, number + 1, at, stop, out));
        at = stop;
    }
    return KUMI_OK;
}

/*
 * Splits a run of valid UTF-8 into words and encodes them. *done is the end of the encoded part; it
 * is before `end` if the rest needs more text.
 */
static int encode_run(struct ku_tokenizer *t, const unsigned char *at, const unsigned char *end,
                      int is_last, struct ku_tokens *out, const unsigned char **done)
{
    *done = at;
    if (t->is_start && t->prefix_stage == 0 && *at != ' ')
        t->window[--at - t->window] = ' ';
    while (at < end) {
        const unsigned char *stop = end;
        int keep = 1, found = t->n_stages == 0
                                  ? is_last
                                  : ku_words_next(t->stage[0], at, end, is_last, &stop, &keep);
        if (found <= 0)
            return found;
        if (keep)
            KU_TRY(descend(t, t->n_stages > 0 ? 1 : 0, at, stop, out));
        t->window_at += (uint64_t)(stop - *done);
        *done = at = stop;
        t->is_start = 0;
    }
    return KUMI_OK;
}

/* The same for a segment. */
static int encode_segment(struct ku_tokenizer *t, const unsigned char *at, const unsigned char *end,
                          int is_last, struct ku_tokens *out, const unsigned char **done)
{
    for (*done = at; at < end;) {
        size_t valid = ku_utf8_valid(at, end);
        if (valid > 0) {
            const unsigned char *stop = at + valid;
            KU_TRY(encode_run(t, at, stop, is_last || stop < end, out, done));
            if (*done < stop)
                return KUMI_OK;
            at = stop;
            continue;
        }
        const unsigned char *stop = at;
        while (stop < end && ku_utf8_valid(stop, stop + min_size(4, (size_t)(end - stop))) == 0)
            stop++;
        if (stop == end && !is_last)
            return KUMI_OK;
        KU_TRY(encode_word(t, at, stop, out));
        t->window_at += (uint64_t)(stop - at);
        t->is_start = 0;
        *done = at = stop;
    }
    return KUMI_OK;
}

/* The first of [low, high) whose byte n is at least `byte`; they are in ascending order of it. */
static const struct ku_added *added_bound(const struct ku_added *low, const struct ku_added *high,
                                          size_t n, int byte)
{
    while (low < high) {
        const struct ku_added *middle = low + (high - low) / 2;
        if (middle->data[n] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/*
 * The longest added token that [at, end) begins with, or NULL. Tokens that share their first n
 * bytes are neighbours, the one of n bytes first, so each byte of the text narrows an interval:
 *
 *     text    <a|>x
 *     n = 1   <   <a>   <a|   <a|>   <b>
 *     n = 2       <a>   <a|   <a|>
 *     n = 3             <a|   <a|>            <a| matches
 *     n = 4                   <a|>            <a|> matches, no longer token is left
 */
static const struct ku_added *added_longest(const struct ku_added_set *set, const unsigned char *at,
                                            const unsigned char *end)
{
    const struct ku_added *low = set->added + set->start[*at],
                          *high = set->added + set->start[*at + 1], *longest = NULL;
    for (size_t n = 1; low < high; n++) {
        if (low->bytes == n)
            longest = low;
        while (low < high && low->bytes == n)
            low++;
        if (at + n == end)
            break;
        low = added_bound(low, high, n, at[n]);
        high = added_bound(low, high, n, at[n] + 1);
    }
    return longest;
}

/*
 * Finds the first added token that starts in [at, limit) and ends by `end`; NULL if there is none.
 * *found is its start.
 */
static const struct ku_added *added_find(const struct ku_added_set *set, const unsigned char *at,
                                         const unsigned char *limit, const unsigned char *end,
                                         const unsigned char **found)
{
    if (set->n == 0)
        return NULL;
    for (; at < limit; at++) {
        if (set->start[*at] == set->start[*at + 1])
            continue;
        const struct ku_added *added = added_longest(set, at, end);
        if (added) {
            *found = at;
            return added;
        }
    }
    return NULL;
}

/* Position of an added token in the window. */
struct place {
    const struct ku_added *added; /* NULL: none, and at is the limit */
    const unsigned char *at;
};

/*
 * The next added token of both sets, from `at`. Tokens of the second set count only before the next
 * one of the first set, which is searched once and cached in *first.
 */
static struct place added_next(const struct ku_tokenizer *t, const unsigned char *at,
                               const unsigned char *limit, const unsigned char *end,
                               struct place *first)
{
    if (!first->at || first->at < at) {
        first->at = limit;
        first->added = added_find(&t->added[0], at, limit, end, &first->at);
    }
    struct place second;
    second.added =
        added_find(&t->added[1], at, first->at, first->added ? first->at : end, &second.at);
    return second.added ? second : *first;
}

/*
 * End of the part of the window that may be encoded while more text may follow: no added token and
 * no character extends across it.
 */
static const unsigned char *window_limit(const struct ku_tokenizer *t, const unsigned char *at,
                                         const unsigned char *end)
{
    size_t back = t->added_bytes_max - 1;
    const unsigned char *limit = (size_t)(end - at) > back ? end - back : at;
    for (int n = 1; n <= 3 && limit - at >= n; n++)
        if (ku_utf8_is_partial(limit - n, limit))
            return limit - n;
    return limit;
}

/* Encodes the decided part of the window and moves the rest to its start. */
static int drain(struct ku_tokenizer *t, int is_last, struct ku_tokens *out)
{
    const unsigned char *at = t->window + 1, *end = at + t->window_bytes, *done = at;
    const unsigned char *limit = is_last ? end : window_limit(t, at, end);
    struct place first = {0};
    while (at < limit) {
        struct place next = added_next(t, at, limit, end, &first);
        KU_TRY(encode_segment(t, at, next.at, is_last || next.added, out, &done));
        at = done;
        if (done < next.at || !next.added)
            break;
        KU_TRY(ku_tokens_reserve(out, 1));
        out->id[out->count++] = next.added->id;
        at += next.added->bytes;
        t->window_at += next.added->bytes;
        t->is_start = 1;
    }
    t->window_bytes = (size_t)(end - at);
    memmove(t->window + 1, at, t->window_bytes);
    return KUMI_OK;
}

static int feed_bytes(const unsigned char *text, size_t bytes, struct ku_tokens *out)
{
    KU_TRY(ku_tokens_reserve(out, bytes));
    for (size_t i = 0; i < bytes; i++)
        out->id[out->count + i] = text[i];
    out->count += bytes;
    return KUMI_OK;
}

int ku_tokenizer_feed(struct ku_tokenizer *t, const void *text, size_t bytes, struct ku_tokens *out)
{
    const unsigned char *p = text;
    if (!t->bpe)
        return feed_bytes(p, bytes, out);
    while (bytes > 0) {
        size_t n = min_size(bytes, FEED_BYTES);
        KU_TRY(window_reserve(t, t->window_bytes + n));
        memcpy(t->window + 1 + t->window_bytes, p, n);
        t->window_bytes += n;
        p += n;
        bytes -= n;
        KU_TRY(drain(t, 0, out));
        if (t->window_bytes > KU_WORD_BYTES_MAX + t->added_bytes_max + 4) /* see window_limit */
            return too_long(t);
    }
    return KUMI_OK;
}

int ku_tokenizer_finish(struct ku_tokenizer *t, struct ku_tokens *out)
{
    if (t->bpe && t->window_bytes > 0)
        KU_TRY(drain(t, 1, out));
    ku_tokenizer_reset(t);
    return KUMI_OK;
}

int ku_tokenizer_encode(struct ku_tokenizer *t, const void *text, size_t bytes,
                        struct ku_tokens *out)
{
    ku_tokenizer_reset(t);
    KU_TRY(ku_tokenizer_feed(t, text, bytes, out));
    return ku_tokenizer_finish(t, out);
}

static int add_around(const struct ku_tokens *around, struct ku_tokens *out)
{
    KU_TRY(ku_tokens_reserve(out, around->count));
    for (size_t i = 0; i < around->count; i++)
        out->id[out->count++] = around->id[i];
    return KUMI_OK;
}

int ku_tokenizer_encode_with_special(struct ku_tokenizer *t, const void *text, size_t bytes,
                                     struct ku_tokens *out)
{
    KU_TRY(add_around(&t->before, out));
    KU_TRY(ku_tokenizer_encode(t, text, bytes, out));
    return add_around(&t->after, out);
}

bool ku_tokenizer_adds_last(const struct ku_tokenizer *t, uint32_t id)
{
    return t->after.count > 0 && t->after.id[t->after.count - 1] == id;
}

bool ku_tokenizer_has(const struct ku_tokenizer *t, uint32_t id)
{
    uint32_t bytes;
    return t->bpe ? ku_bpe_token(t->bpe, id, &bytes) != NULL : id <= 255;
}

int ku_tokenizer_decode(const struct ku_tokenizer *t, const uint32_t *id, size_t count,
                        struct ku_str *out)
{
    uint32_t bytes;
    int64_t vocab_count = ku_tokenizer_vocab_count(t);
    for (size_t i = 0; i < count; i++)
        if (!ku_tokenizer_has(t, id[i]))
            return KU_ERR(KUMI_EINVAL,
                          "token id %u at position %zu: not in the vocabulary of %lld; give ids of "
                          "this tokenizer",
                          id[i], i + 1, (long long)vocab_count);
    for (size_t i = 0; i < count; i++) {
        unsigned char byte = (unsigned char)id[i];
        const unsigned char *data = t->bpe ? ku_bpe_token(t->bpe, id[i], &bytes) : &byte;
        ku_str_append(out, data, t->bpe ? bytes : 1);
    }
    return out->failed ? KUMI_ENOMEM : KUMI_OK;
}

int64_t ku_tokenizer_vocab_count(const struct ku_tokenizer *t)
{
    return t->bpe ? ku_bpe_vocab_count(t->bpe) : 256;
}

const struct ku_added *ku_tokenizer_find_added(const struct ku_tokenizer *t, const char *text,
                                               size_t bytes)
{
    for (int set = 0; set < 2; set++)
        for (uint32_t i = 0; i < t->added[set].n; i++) {
            const struct ku_added *a = &t->added[set].added[i];
            if (a->bytes == bytes && memcmp(a->data, text, bytes) == 0)
                return a;
        }
    return NULL;
}

int ku_tokenizer_find(const struct ku_tokenizer *t, const char *text, uint32_t *id)
{
    const struct ku_added *a = ku_tokenizer_find_added(t, text, strlen(text));
    if (a)
        *id = a->id;
    return a || (t->bpe && ku_bpe_find(t->bpe, text, strlen(text), id));
}

int ku_tokenizer_end_of_text(const struct ku_tokenizer *t, uint32_t *id)
{
    static const char *const known[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    if (t->end >= 0) {
        *id = (uint32_t)t->end;
        return 1;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (ku_tokenizer_find(t, known[i], id))
            return 1;
    return 0;
}

int ku_tokenizer_mask_token(const struct ku_tokenizer *t, uint32_t *id)
{
    static const char *const known[] = {"[MASK]", "<mask>"};
    const struct ku_added *a = NULL;
    if (t->mask >= 0) {
        *id = (uint32_t)t->mask;
        return 1;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0] && a == NULL; i++)
        a = ku_tokenizer_find_added(t, known[i], strlen(known[i]));
    if (a)
        *id = a->id;
    return a != NULL;
}

const char *ku_tokenizer_fingerprint(const struct ku_tokenizer *t)
{
    return t->fingerprint;
}

/* path = directory / name; returns 1 if that file exists. */
static int join(const char *directory, const char *name, char *path, size_t bytes)
{
    struct stat st;
    int n = snprintf(path, bytes, "%s/%s", directory, name);
    return n > 0 && (size_t)n < bytes && ku_os_stat(path, &st) == 0;
}

/* Detects the files of a tokenizer and loads them. */
static int load(struct ku_tokenizer *t, const char *where)
{
    static const char *const pair[][2] = {{"encoder.json", "vocab.bpe"},
                                          {"vocab.json", "merges.txt"}};
    char a[4096], b[4096];
    struct stat st;
    if (ku_os_stat(where, &st) < 0)
        return KU_ERR(KUMI_EINPUT,
                      "tokenizer: %s: %s; give \"byte\", a directory or a tokenizer.json", where,
                      ku_os_why());
    if (!S_ISDIR(st.st_mode))
        return ku_tokenizer_load_json(t, NULL, where);
    if (join(where, "tokenizer.json", a, sizeof a))
        return ku_tokenizer_load_json(t, where, a);
    for (int i = 0; i < 2; i++) {
        int has_vocab = join(where, pair[i][0], a, sizeof a),
            has_merges = join(where, pair[i][1], b, sizeof b);
        if (has_vocab && has_merges)
            return ku_tokenizer_load_pair(t, where, a, b);
        if (has_vocab || has_merges)
            return KU_ERR(KUMI_EINPUT, "tokenizer: %s: %s without %s; add it", where,
                          pair[i][!has_vocab], pair[i][has_vocab]);
    }
    return KU_ERR(KUMI_EINPUT,
                  "tokenizer: %s: no tokenizer.json, encoder.json + vocab.bpe or vocab.json + "
                  "merges.txt; add them",
                  where);
}

int ku_tokenizer_open(const char *where, struct ku_tokenizer **out)
{
    struct ku_tokenizer *t = ku_calloc(1, sizeof *t);
    if (!t)
        return KUMI_ENOMEM;
    t->is_start = 1;
    t->prefix_stage = -1;
    t->added_bytes_max = 1;
    t->end = t->mask = -1;
    int status = KUMI_OK;
    if (strcmp(where, "byte") == 0)
        memcpy(t->fingerprint, "byte", sizeof "byte");
    else
        status = load(t, where);
    if (status < 0) {
        ku_tokenizer_destroy(t);
        return status;
    }
    *out = t;
    return KUMI_OK;
}

void ku_tokenizer_destroy(struct ku_tokenizer *t)
{
    if (!t)
        return;
    ku_bpe_destroy(t->bpe);
    for (int i = 0; i < t->n_stages; i++)
        ku_words_destroy(t->stage[i]);
    for (int i = 0; i < 2; i++) {
        for (uint32_t j = 0; j < t->added[i].n; j++)
            ku_free(t->added[i].added[j].data);
        ku_free(t->added[i].added);
    }
    ku_str_fini(&t->special);
    ku_tokens_fini(&t->before);
    ku_tokens_fini(&t->after);
    ku_free(t->window);
    ku_free(t->scratch);
    ku_free(t);
}
