/* SPDX-License-Identifier: Apache-2.0 */
#include "data/pairs/bleu.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "data/tokenizer/word_count.h"
#include "data/tokenizer/words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An n-gram of word numbers or of characters; unused parts are 0. */
struct gram {
    uint32_t part[KU_CHRF_ORDER];
};
/* A sentence as a sequence of words or characters. */
struct parts {
    uint32_t *part;
    size_t n;
};

/* White space as in Python's str.isspace, which str.split uses. */
static bool is_space(uint32_t c)
{
    return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

/* The character at `at`; an invalid byte becomes a number beyond Unicode. */
static uint32_t next_char(const unsigned char *at, const unsigned char *end, size_t *bytes)
{
    size_t window = end - at < 4 ? (size_t)(end - at) : 4;
    *bytes = 1;
    return ku_utf8_valid(at, at + window) > 0 ? ku_utf8_get(at, bytes) : 0x110000U + *at;
}

/*
 * Splits a sentence into words, numbered by `words`, and into characters. Both arrays have room for
 * `bytes` elements.
 */
static int cut(const char *text, size_t bytes, struct ku_word_count *words, struct parts *word,
               struct parts *chr)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes, *first = at;
    for (size_t n; at < end; at += n) {
        uint32_t c = next_char(at, end, &n);
        if (!is_space(c)) {
            chr->part[chr->n++] = c;
            continue;
        }
        if (at > first)
            KU_TRY(ku_word_count_add(words, first, (size_t)(at - first), &word->part[word->n++]));
        first = at + n;
    }
    if (end > first)
        KU_TRY(ku_word_count_add(words, first, (size_t)(end - first), &word->part[word->n++]));
    return KUMI_OK;
}

static int compare(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct gram));
}

/* Writes the n-grams of a sentence, sorted; returns their number. */
static size_t sorted_grams(const struct parts *p, size_t order, struct gram *gram)
{
    size_t n = p->n >= order ? p->n - order + 1 : 0;
    for (size_t i = 0; i < n; i++) {
        gram[i] = (struct gram){{0}};
        memcpy(gram[i].part, p->part + i, order * sizeof *p->part);
    }
    if (n > 1)
        qsort(gram, n, sizeof *gram, compare);
    return n;
}

/* For each order: the number of n-grams of both sentences and of their multiset intersection. */
static void match(const struct parts *hyp, const struct parts *ref, int n_orders,
                  struct gram *hyp_gram, struct gram *ref_gram, int64_t *n_hyp, int64_t *n_ref,
                  int64_t *n_match)
{
    for (int order = 1; order <= n_orders; order++) {
        size_t h = sorted_grams(hyp, (size_t)order, hyp_gram), i = 0, k = 0;
        size_t r = sorted_grams(ref, (size_t)order, ref_gram);
        n_hyp[order - 1] = (int64_t)h;
        n_ref[order - 1] = (int64_t)r;
        n_match[order - 1] = 0;
        while (i < h && k < r) {
            int c = compare(&hyp_gram[i], &ref_gram[k]);
            n_match[order - 1] += c == 0;
            i += c <= 0;
            k += c >= 0;
        }
    }
}

static void count(struct ku_bleu *b, const struct parts word[2], const struct parts chr[2],
                  struct gram *gram[2])
{
    int64_t hyp[KU_CHRF_ORDER], ref[KU_CHRF_ORDER], both[KU_CHRF_ORDER];
    b->n_sentences++;
    b->hyp_len += (int64_t)word[0].n;
    b->ref_len += (int64_t)word[1].n;
    match(&word[0], &word[1], KU_BLEU_ORDER, gram[0], gram[1], hyp, ref, both);
    for (int i = 0; i < KU_BLEU_ORDER; i++) {
        b->total[i] += hyp[i];
        b->correct[i] += both[i];
    }
    match(&chr[0], &chr[1], KU_CHRF_ORDER, gram[0], gram[1], hyp, ref, both);
    for (int i = 0; i < KU_CHRF_ORDER; i++) {
        b->chr_hyp[i] += ref[i] > 0 ? hyp[i] : 0; /* only for orders that the reference has */
        b->chr_ref[i] += ref[i];
        b->chr_match[i] += both[i];
    }
}

int ku_bleu_add(struct ku_bleu *b, const char *hypothesis, size_t hypothesis_bytes,
                const char *reference, size_t reference_bytes)
{
    const char *const text[] = {hypothesis, reference};
    const size_t bytes[] = {hypothesis_bytes, reference_bytes};
    struct ku_word_count words = {0};
    struct parts word[2] = {{0}}, chr[2] = {{0}};
    struct gram *gram[2] = {NULL, NULL};
    int status = KUMI_OK;
    for (int i = 0; i < 2 && status == KUMI_OK; i++) {
        word[i].part = ku_calloc(bytes[i] + 1, sizeof *word[i].part);
        chr[i].part = ku_calloc(bytes[i] + 1, sizeof *chr[i].part);
        gram[i] = ku_calloc(bytes[i] + 1, sizeof *gram[i]);
        status = word[i].part && chr[i].part && gram[i]
                     ? cut(text[i], bytes[i], &words, &word[i], &chr[i])
                     : KUMI_ENOMEM;
    }
    if (status == KUMI_OK)
        count(b, word, chr, gram);
    for (int i = 0; i < 2; i++) {
        ku_free(word[i].part);
        ku_free(chr[i].part);
        ku_free(gram[i]);
    }
    ku_word_count_fini(&words);
    return status;
}

static double chrf(const struct ku_bleu *b)
{
    const double factor = 4.0; /* beta^2 */
    double precision = 0.0, recall = 0.0;
    int n = 0;
    for (int i = 0; i < KU_CHRF_ORDER; i++)
        if (b->chr_hyp[i] > 0 && b->chr_ref[i] > 0) {
            precision += (double)b->chr_match[i] / (double)b->chr_hyp[i];
            recall += (double)b->chr_match[i] / (double)b->chr_ref[i];
            n++;
        }
    if (n == 0 || precision + recall == 0.0)
        return 0.0;
    precision /= n;
    recall /= n;
    return 100.0 * ((1.0 + factor) * precision * recall / (factor * precision + recall));
}

struct ku_bleu_score ku_bleu_score(const struct ku_bleu *b, int effective_order)
{
    struct ku_bleu_score s = {.brevity_penalty = 1.0, .chrf = chrf(b)};
    double smooth = 1.0, logs = 0.0;
    int order = KU_BLEU_ORDER, n_orders = 0;
    int64_t n_correct = 0;
    if (b->hyp_len < b->ref_len)
        s.brevity_penalty =
            b->hyp_len > 0 ? exp(1.0 - (double)b->ref_len / (double)b->hyp_len) : 0.0;
    for (int i = 0; i < KU_BLEU_ORDER; i++)
        n_correct += b->correct[i];
    if (n_correct == 0)
        return s;
    for (; n_orders < KU_BLEU_ORDER && b->total[n_orders] > 0; n_orders++) {
        int64_t correct = b->correct[n_orders];
        smooth *= correct == 0 ? 2.0 : 1.0;
        s.precision[n_orders] =
            (correct ? 100.0 * (double)correct : 100.0 / smooth) / (double)b->total[n_orders];
        logs += log(s.precision[n_orders]);
    }
    if (effective_order)
        order = n_orders;
    /*
     * If no hypothesis is long enough for some order, its precision is 0 and so is the geometric
     * mean.
     */
    s.bleu = n_orders < order ? 0.0 : s.brevity_penalty * exp(logs / order);
    return s;
}
