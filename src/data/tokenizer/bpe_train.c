/* SPDX-License-Identifier: Apache-2.0 */
#include "data/tokenizer/bpe_train.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/reserve.h"
#include "base/utf8.h"
#include "data/tokenizer/bpe.h"
#include "data/lines.h"
#include "data/tokenizer/words.h"

#include <stdio.h>
#include <string.h>

/*
 * Words are sequences of tokens, at first of bytes. Each iteration merges the most frequent pair of
 * neighbours (weighted by the words' counts) into a token. A merge updates the counts of the pairs
 * it changes. A heap holds an entry per pair with the words where the pair may occur; an entry
 * whose count is out of date is pushed back with the current count when it reaches the top.
 *
 * The result follows Hugging Face's BpeTrainer (tokenizers), which differs from Sennrich et al. in
 * these points: among pairs of equal count the one with the smaller (left, right) comes first,
 * where bytes are numbered in the order of their characters in files; and a merged pair keeps its
 * count. So if a pair occurs again later (its token can be made in two ways), its count includes
 * the old occurrences, and only the new words are merged.
 */
enum { PROGRESS_MERGES = 64 };
static const uint32_t NONE = UINT32_MAX;

struct pair {
    uint32_t left, right;
    int64_t count;
    uint32_t fresh;     /* words added by the current merge */
    uint32_t last_word; /* the last word added */
    size_t fill;        /* index in place[] for the next word */
};
struct entry {
    int64_t count;
    uint32_t pair, n_words;
    size_t at; /* of its words in place[] */
};
/* A word where a pair is new. */
struct record {
    uint32_t pair, word;
};
struct word {
    size_t at; /* in symbol */
    uint32_t n;
    int64_t count;
};
struct trainer {
    struct word *word;
    uint32_t n_words;
    uint32_t *symbol;
    struct pair *pair;
    uint32_t n_pairs, cap_pairs;
    uint32_t *slot; /* hash table over pairs, open addressing: number + 1, 0: empty */
    uint32_t slot_mask;
    struct entry *heap;
    uint32_t n_heap, cap_heap;
    struct record *record;
    uint32_t n_records, cap_records;
    uint32_t *touched; /* pairs with fresh words */
    uint32_t n_touched, cap_touched;
    uint32_t *place; /* words of all entries */
    size_t n_places, cap_places;
};

/*
 * Counts the words of a part of a line.
 *
 *   is_end   0: the last word may continue after the part, and is left
 *   taken    receives the bytes of the counted words
 */
static int count_part(struct ku_words *rule, const char *text, size_t bytes, int is_end,
                      struct ku_word_count *words, size_t *taken)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes, *stop;
    int status = 1;
    for (int keep; at < end; at = stop) {
        status = ku_words_next(rule, at, end, is_end, &stop, &keep);
        if (status <= 0)
            break;
        KU_TRY(ku_word_count_add(words, at, (size_t)(stop - at), NULL));
    }
    *taken = bytes - (size_t)(end - at);
    return status;
}

int ku_bpe_count_words(const char *path, const struct ku_progress *progress,
                       struct ku_word_count *words)
{
    struct ku_lines *lines = NULL;
    struct ku_words *rule = NULL;
    const char *text;
    char what[256];
    size_t bytes, taken;
    uint64_t told = 0;
    int status, is_end;
    snprintf(what, sizeof what, "counting words of %.200s", path);
    KU_TRY_OUT(ku_words_gpt2(&rule));
    KU_TRY_OUT(ku_lines_open(path, 1, &lines));
    while ((status = ku_lines_part(lines, &text, &bytes, &is_end)) > 0) {
        KU_TRY_OUT(count_part(rule, text, bytes, is_end, words, &taken));
        ku_lines_take(lines, taken);
        uint64_t done = ku_lines_done_bytes(lines), total = ku_lines_total_bytes(lines);
        if (done - told >= 1 << 20 || done == total) {
            KU_TRY_OUT(ku_progress_call(progress, what, done, total));
            told = done;
        }
    }
out:
    ku_lines_close(lines);
    ku_words_destroy(rule);
    return status;
}

static uint32_t *slot_of(const struct trainer *t, uint32_t left, uint32_t right)
{
    /* Fibonacci hashing of both ids: the factor is 2^64 / golden ratio, made odd. */
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    for (uint32_t i = (uint32_t)(h >> 32) & t->slot_mask;; i = (i + 1) & t->slot_mask) {
        const struct pair *p = &t->pair[t->slot[i] - (t->slot[i] != 0)];
        if (t->slot[i] == 0 || (p->left == left && p->right == right))
            return &t->slot[i];
    }
}

static int grow_slots(struct trainer *t)
{
    uint32_t slots = t->slot ? t->slot_mask + 1 : 0;
    if (2 * ((uint64_t)t->n_pairs + 1) <= slots)
        return KUMI_OK;
    if (slots > UINT32_MAX / 4)
        return KU_ERR(KUMI_ENOMEM, "bpe: more than %u pairs of tokens; give less text", t->n_pairs);
    slots = slots ? 2 * slots : 4096;
    uint32_t *slot = ku_calloc(slots, sizeof *slot);
    if (!slot)
        return KUMI_ENOMEM;
    ku_free(t->slot);
    t->slot = slot;
    t->slot_mask = slots - 1;
    for (uint32_t i = 0; i < t->n_pairs; i++)
        *slot_of(t, t->pair[i].left, t->pair[i].right) = i + 1;
    return KUMI_OK;
}

/*
 * Adds `more` to a pair's count; if more > 0, also records the word. Words are processed one at a
 * time, so each word is recorded once per pair.
 */
static int change(struct trainer *t, uint32_t left, uint32_t right, uint32_t word, int64_t more)
{
    KU_TRY(grow_slots(t));
    KU_TRY(KU_GROW(&t->pair, t->n_pairs, &t->cap_pairs));
    uint32_t *slot = slot_of(t, left, right);
    if (*slot == 0) {
        t->pair[t->n_pairs] = (struct pair){.left = left, .right = right, .last_word = NONE};
        *slot = ++t->n_pairs;
    }
    struct pair *p = &t->pair[*slot - 1];
    p->count += more;
    if (more < 0 || p->last_word == word)
        return KUMI_OK;
    if (p->fresh == 0) {
        KU_TRY(KU_GROW(&t->touched, t->n_touched, &t->cap_touched));
        t->touched[t->n_touched++] = *slot - 1;
    }
    KU_TRY(KU_GROW(&t->record, t->n_records, &t->cap_records));
    t->record[t->n_records++] = (struct record){*slot - 1, word};
    p->fresh++;
    p->last_word = word;
    return KUMI_OK;
}

static bool is_before(const struct trainer *t, const struct entry *a, const struct entry *b)
{
    const struct pair *x = &t->pair[a->pair], *y = &t->pair[b->pair];
    if (a->count != b->count)
        return a->count > b->count;
    if (x->left != y->left)
        return x->left < y->left;
    return x->right != y->right ? x->right < y->right : a->at < b->at;
}

static int heap_push(struct trainer *t, struct entry e)
{
    KU_TRY(KU_GROW(&t->heap, t->n_heap, &t->cap_heap));
    uint32_t i = t->n_heap++;
    for (; i > 0 && is_before(t, &e, &t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = e;
    return KUMI_OK;
}

/* Sifts down the top entry, which may have changed. */
static void heap_sink(struct trainer *t)
{
    struct entry e = t->heap[0];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < t->n_heap; i = child) {
        child += child + 1 < t->n_heap && is_before(t, &t->heap[child + 1], &t->heap[child]);
        if (!is_before(t, &t->heap[child], &e))
            break;
        t->heap[i] = t->heap[child];
    }
    t->heap[i] = e;
}

static struct entry heap_pop(struct trainer *t)
{
    struct entry e = t->heap[0];
    t->heap[0] = t->heap[--t->n_heap];
    if (t->n_heap)
        heap_sink(t);
    return e;
}

/* Makes heap entries for pairs that have fresh words and a positive count. */
static int push_fresh(struct trainer *t)
{
    KU_TRY(KU_RESERVE(&t->place, t->n_places, t->n_records, &t->cap_places));
    for (uint32_t i = 0; i < t->n_touched; i++) {
        struct pair *p = &t->pair[t->touched[i]];
        p->fill = t->n_places;
        if (p->count > 0) {
            struct entry e = {p->count, t->touched[i], p->fresh, t->n_places};
            t->n_places += p->fresh;
            KU_TRY(heap_push(t, e));
        }
        p->fresh = 0;
        p->last_word = NONE;
    }
    for (uint32_t i = 0; i < t->n_records; i++) {
        struct pair *p = &t->pair[t->record[i].pair];
        if (p->count > 0)
            t->place[p->fill++] = t->record[i].word;
    }
    t->n_records = t->n_touched = 0;
    return KUMI_OK;
}

static int merge_in_word(struct trainer *t, uint32_t number, struct ku_bpe_merge m, uint32_t id)
{
    struct word *w = &t->word[number];
    uint32_t *s = t->symbol + w->at, n = 0;
    for (uint32_t i = 0; i < w->n; i++) { /* s[0, n) is output, s[i, w->n) is input */
        if (s[i] != m.left || i + 1 == w->n || s[i + 1] != m.right) {
            s[n++] = s[i];
            continue;
        }
        if (n > 0) {
            KU_TRY(change(t, s[n - 1], m.left, number, -w->count));
            KU_TRY(change(t, s[n - 1], id, number, w->count));
        }
        if (i + 2 < w->n) {
            KU_TRY(change(t, m.right, s[i + 2], number, -w->count));
            KU_TRY(change(t, id, s[i + 2], number, w->count));
        }
        s[n++] = id;
        i++;
    }
    w->n = n;
    return KUMI_OK;
}

/* The token of a merge: the existing token with these bytes, or a new one. */
static int add_product(struct ku_bpe_trained *out, struct ku_bpe_merge m, uint32_t *id)
{
    uint32_t left_bytes, right_bytes;
    const unsigned char *left = ku_bpe_token(out->vocab, m.left, &left_bytes),
                        *right = ku_bpe_token(out->vocab, m.right, &right_bytes);
    unsigned char *bytes = ku_malloc((size_t)left_bytes + right_bytes);
    if (!bytes)
        return KUMI_ENOMEM;
    memcpy(bytes, left, left_bytes);
    memcpy(bytes + left_bytes, right, right_bytes);
    int status = KUMI_OK;
    if (!ku_bpe_find(out->vocab, bytes, (size_t)left_bytes + right_bytes, id)) {
        *id = ku_bpe_vocab_count(out->vocab);
        status = ku_bpe_add_token(out->vocab, *id, bytes, (size_t)left_bytes + right_bytes, 1);
    }
    ku_free(bytes);
    return status;
}

/* Removes repeated merges; the last one counts, as in a table keyed by pair. */
static int drop_repeated(struct trainer *t, struct ku_bpe_trained *out)
{
    uint32_t n = out->n_merges, *rank = ku_calloc((size_t)t->n_pairs + 1, sizeof *rank);
    if (!rank)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        rank[*slot_of(t, out->merge[i].left, out->merge[i].right)] = i;
    out->n_merges = 0;
    for (uint32_t i = 0; i < n; i++)
        if (rank[*slot_of(t, out->merge[i].left, out->merge[i].right)] == i)
            out->merge[out->n_merges++] = out->merge[i];
    ku_free(rank);
    return KUMI_OK;
}

static int merge_all(struct trainer *t, const struct ku_bpe_train_opts *o,
                     struct ku_bpe_trained *out)
{
    uint32_t vocab_count = (uint32_t)o->vocab_count, id = 0;
    while (ku_bpe_vocab_count(out->vocab) < vocab_count && t->n_heap > 0) {
        struct entry *top = &t->heap[0];
        const struct pair *p = &t->pair[top->pair];
        if (top->count != p->count) {
            top->count = p->count;
            heap_sink(t);
            continue;
        }
        if (top->count < o->min_frequency)
            break;
        struct entry e = heap_pop(t);
        struct ku_bpe_merge m = {p->left, p->right};
        KU_TRY(add_product(out, m, &id));
        KU_TRY(KU_GROW(&out->merge, out->n_merges, &out->cap_merges));
        out->merge[out->n_merges++] = m;
        for (uint32_t i = 0; i < e.n_words; i++)
            KU_TRY(merge_in_word(t, t->place[e.at + i], m, id));
        KU_TRY(push_fresh(t));
        if (out->n_merges % PROGRESS_MERGES == 0)
            KU_TRY(ku_progress_call(&o->progress, "learning merges", ku_bpe_vocab_count(out->vocab),
                                    vocab_count));
    }
    return drop_repeated(t, out);
}

/* Adds a token per byte, in the order of the characters that represent bytes in files. */
static int add_bytes(struct ku_bpe_trained *out, uint32_t token[256])
{
    uint32_t n = 0;
    for (uint32_t c = 0; n < 256; c++)
        for (unsigned b = 0; b < 256; b++)
            if (ku_token_spell(b) == c) {
                unsigned char byte = (unsigned char)b;
                token[b] = out->n_special + n++;
                KU_TRY(ku_bpe_add_token(out->vocab, token[b], &byte, 1, 1));
            }
    return KUMI_OK;
}

static int add_special(struct ku_bpe_trained *out, const char *text)
{
    unsigned char raw[KU_BPE_SPECIAL_BYTES_MAX];
    const unsigned char *at = (const unsigned char *)text;
    size_t bytes = strlen(text), n = 0;
    const char *fault = bytes == 0                              ? "empty"
                        : bytes > KU_BPE_SPECIAL_BYTES_MAX      ? "it is longer than 1024 bytes"
                        : ku_utf8_valid(at, at + bytes) < bytes ? "not valid UTF-8"
                                                                : NULL;
    int spells = !fault && ku_token_unspell(at, bytes, raw, &n), added = 0;
    if (spells && n == 1)
        fault = "it is the notation of a byte in vocabulary files";
    if (!fault)
        added = ku_bpe_add_token(out->vocab, out->n_special, raw, n, spells);
    for (uint32_t i = 0; !fault && !added && !spells && i < out->n_special; i++) {
        uint32_t old_bytes;
        const unsigned char *old = ku_bpe_token(out->vocab, i, &old_bytes);
        added = old_bytes == bytes && memcmp(old, text, bytes) == 0 ? 2 : 0;
    }
    if (added < 0)
        return added;
    if (fault || added > 0)
        return KU_ERR(KUMI_EINVAL, "tokenizer: special token '%.40s': %s; change it", text,
                      fault ? fault : "it is given twice");
    out->n_special++;
    return KUMI_OK;
}

static int start_vocab(const struct ku_bpe_train_opts *o, struct ku_bpe_trained *out,
                       uint32_t token[256])
{
    int64_t least = 256 + (int64_t)o->n_special;
    if (o->n_special < 0 || o->n_special > KU_BPE_SPECIAL_MAX)
        return KU_ERR(KUMI_EINVAL, "tokenizer: %d special tokens; give at most %d", o->n_special,
                      KU_BPE_SPECIAL_MAX);
    if (o->vocab_count < least || o->vocab_count > KU_BPE_VOCAB_MAX)
        return KU_ERR(KUMI_EINVAL,
                      "tokenizer: a vocabulary of %lld tokens; give %lld (256 bytes and %d special "
                      "tokens) to %d",
                      (long long)o->vocab_count, (long long)least, o->n_special, KU_BPE_VOCAB_MAX);
    if (o->min_frequency < 1)
        return KU_ERR(KUMI_EINVAL, "tokenizer: a minimum frequency of %lld; give 1 or more",
                      (long long)o->min_frequency);
    KU_TRY(ku_bpe_create(&out->vocab));
    for (int i = 0; i < o->n_special; i++)
        KU_TRY(add_special(out, o->special[i]));
    return add_bytes(out, token);
}

static int start_words(struct trainer *t, const struct ku_word_count *words,
                       const uint32_t token[256])
{
    size_t at = 0;
    t->word = ku_calloc(words->n, sizeof *t->word);
    t->symbol = ku_calloc(words->blob_bytes, sizeof *t->symbol);
    if (!t->word || !t->symbol)
        return KUMI_ENOMEM;
    t->n_words = words->n;
    for (uint32_t i = 0; i < words->n; i++) {
        const unsigned char *text = ku_word_text(words, i);
        const uint32_t n = ku_word_bytes(words, i);
        const int64_t count = words->word[i].count;
        uint32_t *s = t->symbol + at;
        t->word[i] = (struct word){.at = at, .n = n, .count = count};
        for (uint32_t k = 0; k < n; k++)
            s[k] = token[text[k]];
        for (uint32_t k = 0; k + 1 < n; k++)
            KU_TRY(change(t, s[k], s[k + 1], i, count));
        at += n;
    }
    return push_fresh(t);
}

void ku_bpe_trained_fini(struct ku_bpe_trained *t)
{
    ku_bpe_destroy(t->vocab);
    ku_free(t->merge);
    *t = (struct ku_bpe_trained){0};
}

int ku_bpe_train(const struct ku_word_count *words, const struct ku_bpe_train_opts *opts,
                 struct ku_bpe_trained *out)
{
    struct trainer t = {0};
    struct ku_bpe_trained made = {0};
    uint32_t token[256];
    int status = start_vocab(opts, &made, token);
    if (status == KUMI_OK)
        status = start_words(&t, words, token);
    if (status == KUMI_OK)
        status = merge_all(&t, opts, &made);
    ku_free(t.word);
    ku_free(t.symbol);
    ku_free(t.pair);
    ku_free(t.slot);
    ku_free(t.heap);
    ku_free(t.record);
    ku_free(t.touched);
    ku_free(t.place);
    if (status < 0) {
        ku_bpe_trained_fini(&made);
        return status;
    }
    *out = made;
    return KUMI_OK;
}
