/* SPDX-License-Identifier: Apache-2.0 */
#include "data/tokenizer/words.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "data/tokenizer/regex.h"

#include <string.h>

/*
 * GPT-2's pattern is
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * A word is a contraction; or a run of letters, of numbers or of other characters, each with at
 * most one blank before it; or a run of white space, without its last character if a word follows:
 *
 *     "It's 42  miles"   ->   It | 's |  42 |   |  miles
 *
 * It is implemented by hand over four character classes: ASCII from a table, other characters from
 * pages of 4,096 code points that PCRE2 fills on first use.
 */
enum class { OTHER, LETTER, NUMBER, SPACE };

enum { PAGE_BITS = 12, PAGE_CHARS = 1 << PAGE_BITS, N_PAGES = 0x110000 >> PAGE_BITS };

struct ku_words {
    struct ku_regex *regex; /* the pattern; for GPT-2's, the character classes */
    int is_gpt2, drop_gaps;
    unsigned char ascii[128];
    unsigned char *page[N_PAGES]; /* enum class of each character; NULL: not filled yet */
};

static size_t utf8_put(unsigned char *at, uint32_t c)
{
    static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    const size_t more = (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
    for (size_t i = more; i > 0; i--, c >>= 6)
        at[i] = (unsigned char)(0x80 | (c & 63));
    at[0] = (unsigned char)(lead[more] | c);
    return more + 1;
}

/*
 * Writes out the page's characters, lets PCRE2 find the runs of each class, and stores the classes.
 */
static int page_fill(struct ku_words *s, uint32_t number)
{
    unsigned char *page = ku_calloc(PAGE_CHARS, 1), *text = ku_malloc(PAGE_CHARS * 4);
    int status = page && text ? KUMI_OK : KUMI_ENOMEM;
    size_t bytes = 0, n;
    if (status == KUMI_OK)
        for (uint32_t c = number << PAGE_BITS; c < (number + 1) << PAGE_BITS; c++)
            if (c < 0xD800 || c > 0xDFFF)
                bytes += utf8_put(text + bytes, c);
    for (size_t at = 0; status == KUMI_OK && at < bytes;) {
        struct ku_match m;
        status = ku_regex_match(s->regex, text + at, text + bytes, 1, &m);
        if (status <= 0)
            break;
        for (size_t i = at + m.start; i < at + m.stop; i += n)
            page[ku_utf8_get(text + i, &n) & (PAGE_CHARS - 1)] = (unsigned char)m.group;
        at += m.stop;
        status = KUMI_OK;
    }
    ku_free(text);
    if (status < 0) {
        ku_free(page);
        return status;
    }
    s->page[number] = page;
    return KUMI_OK;
}

/* The class of the character at `at`, and its length; or an error. */
static inline int class_of(struct ku_words *s, const unsigned char *at, size_t *bytes)
{
    if (*at < 0x80) {
        *bytes = 1;
        return s->ascii[*at];
    }
    uint32_t c = ku_utf8_get(at, bytes);
    if (!s->page[c >> PAGE_BITS])
        KU_TRY(page_fill(s, c >> PAGE_BITS));
    return s->page[c >> PAGE_BITS][c & (PAGE_CHARS - 1)];
}

/* Length of the contraction at an apostrophe; 0: none; -1: the text ends too early to decide. */
static int contraction(const unsigned char *at, const unsigned char *end)
{
    static const char *const tail[] = {"s", "t", "m", "d", "re", "ve", "ll"};
    const size_t left = (size_t)(end - at - 1);
    for (size_t i = 0; i < sizeof tail / sizeof *tail; i++) {
        const size_t n = strlen(tail[i]);
        if (memcmp(at + 1, tail[i], n < left ? n : left) == 0)
            return left < n ? -1 : (int)n + 1;
    }
    return 0;
}

static int next_gpt2(struct ku_words *s, const unsigned char *at, const unsigned char *end,
                     int is_last, const unsigned char **stop)
{
    const unsigned char *p = at, *last = at;
    size_t bytes = 0;
    if (*p == '\'') {
        int n = contraction(p, end);
        if (n < 0 && !is_last)
            return 0;
        if (n > 0) {
            *stop = p + n;
            return 1;
        }
    }
    int first = class_of(s, p, &bytes);
    if (*p == ' ' && p + 1 < end) { /* the blank belongs to the run after it */
        size_t next_bytes;
        int next = class_of(s, p + 1, &next_bytes);
        if (next != SPACE)
            first = next;
    }
    int c = first;
    for (p += bytes; p < end; p += bytes) {
        c = class_of(s, p, &bytes);
        if (c != first)
            break;
        last = p;
    }
    if (c < 0 || first < 0)
        return c < 0 ? c : first;
    if (p == end && !is_last)
        return 0;
    /*
     * White space before a word leaves its last character to the word, unless it is a single
     * character.
     */
    *stop = first == SPACE && p < end && last > at ? last : p;
    return 1;
}

static int next_regex(struct ku_words *s, const unsigned char *at, const unsigned char *end,
                      int is_last, const unsigned char **stop, int *keep)
{
    struct ku_match m;
    int found = ku_regex_match(s->regex, at, end, is_last, &m);
    if (found < 0)
        return found;
    if (!found && !is_last)
        return 0;
    if (found && m.start == 0) {
        *stop = at + m.stop;
        return 1;
    }
    *stop = found ? at + m.start : end;
    *keep = !s->drop_gaps;
    return 1;
}

int ku_words_next(struct ku_words *s, const unsigned char *at, const unsigned char *end,
                  int is_last, const unsigned char **stop, int *keep)
{
    *keep = 1;
    return s->is_gpt2 ? next_gpt2(s, at, end, is_last, stop)
                      : next_regex(s, at, end, is_last, stop, keep);
}

int ku_words_regex(const char *pattern, int drop_gaps, struct ku_words **out)
{
    struct ku_words *s = ku_calloc(1, sizeof *s);
    if (!s)
        return KUMI_ENOMEM;
    s->drop_gaps = drop_gaps;
    int status = ku_regex_create(pattern, &s->regex);
    if (status < 0)
        ku_words_destroy(s);
    else
        *out = s;
    return status;
}

int ku_words_gpt2(struct ku_words **out)
{
    /* group numbers equal enum class */
    KU_TRY(ku_words_regex("(\\p{L}+)|(\\p{N}+)|(\\s+)", 0, out));
    struct ku_words *s = *out;
    s->is_gpt2 = 1;
    int status = page_fill(s, 0);
    if (status < 0) {
        ku_words_destroy(s);
        *out = NULL;
        return status;
    }
    memcpy(s->ascii, s->page[0], sizeof s->ascii);
    return KUMI_OK;
}

void ku_words_destroy(struct ku_words *s)
{
    if (!s)
        return;
    for (int i = 0; i < N_PAGES; i++)
        ku_free(s->page[i]);
    ku_regex_destroy(s->regex);
    ku_free(s);
}
