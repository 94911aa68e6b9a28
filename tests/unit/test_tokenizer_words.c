/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/math/random.h"
#include "base/utf8.h"
#include "data/tokenizer/words.h"

static const char gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static size_t put_char(unsigned char *at, uint32_t c)
{
    if (c < 0x80)
        return at[0] = (unsigned char)c, 1;
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    at[0] = (unsigned char)((0xFF00 >> (more + 1) & 0xFF) | c >> 6 * more);
    for (int i = 1; i <= more; i++)
        at[i] = (unsigned char)(0x80 | (c >> 6 * (more - i) & 63));
    return (size_t)more + 1;
}

static void assert_same_words(struct ku_words *a, struct ku_words *b, const unsigned char *text,
                              size_t bytes, int is_last)
{
    const unsigned char *at = text, *end = text + bytes;
    while (at < end) {
        const unsigned char *x = NULL, *y = NULL;
        int keep, found = ku_words_next(a, at, end, is_last, &x, &keep);
        assert_int_equal(ku_words_next(b, at, end, is_last, &y, &keep), found);
        if (!found)
            return;
        if (x != y)
            fail_msg("at %zd of %zu: word of %zd or %zd bytes: '%.*s'", at - text, bytes, x - at,
                     y - at, 30, (const char *)at);
        at = x;
    }
}

/* The rule written by hand against the pattern: every character, alone and in company. */
static void hand_and_pattern_agree_on_all_characters(void **state)
{
    struct ku_words *hand, *pattern;
    enum { PER_TEXT = 4096 };
    static unsigned char text[PER_TEXT * 32];
    (void)state;
    assert_int_equal(ku_words_gpt2(&hand), 0);
    assert_int_equal(ku_words_regex(gpt2, 0, &pattern), 0);
    for (uint32_t first = 0; first < 0x110000; first += PER_TEXT) {
        size_t n = 0;
        for (uint32_t c = first; c < first + PER_TEXT; c++) {
            if (c >= 0xD800 && c <= 0xDFFF)
                continue;
            memcpy(text + n, "a 1!", 4);
            n += 1 + c % 4;
            n += put_char(text + n, c);
            n += c % 3 ? put_char(text + n, c) : 0;
        }
        assert_same_words(hand, pattern, text, n, 1);
    }
    ku_words_destroy(hand);
    ku_words_destroy(pattern);
}

/* The same for random texts of troublesome characters, ending or going on. */
static void hand_and_pattern_agree_on_random_texts(void **state)
{
    static const uint32_t some[] = {
        ' ', ' ', '\n', '\'', '\'', 's',    't',    'r',    'e',  'v',   'l',   'd',    'm',
        'S', '1', '.',  0x85, 0xA0, 0x180E, 0x200B, 0x3000, 0xE9, 0x301, 0x664, 0x6F22, 0x1F600};
    struct ku_words *hand, *pattern;
    unsigned char text[32 * 4];
    (void)state;
    assert_int_equal(ku_words_gpt2(&hand), 0);
    assert_int_equal(ku_words_regex(gpt2, 0, &pattern), 0);
    for (uint32_t i = 0; i < 20000; i++) {
        size_t n = 0;
        for (uint32_t k = 0; k < 1 + i % 31; k++)
            n += put_char(text + n, some[ku_random_u32(7, 0, i, k) % (sizeof some / sizeof *some)]);
        assert_same_words(hand, pattern, text, n, i % 2 == 0);
    }
    ku_words_destroy(hand);
    ku_words_destroy(pattern);
}

/* Never a word that later text would change, and never a wait that it would not. */
static void waits_where_text_may_go_on(void **state)
{
    static const struct {
        const char *text;
        int waits;
    } rows[] = {{"ab", 1}, {"ab ", 0}, {"'", 1},  {"'l", 1},  {"'ll", 0}, {"'x", 0},
                {"'s", 0}, {" ", 1},   {"  ", 1}, {"  a", 0}, {" a", 1},  {" a1", 0},
                {"\n", 1}, {"\na", 0}, {"!!", 1}, {"!! ", 0}};
    struct ku_words *words[2];
    (void)state;
    assert_int_equal(ku_words_gpt2(&words[0]), 0);
    assert_int_equal(ku_words_regex(gpt2, 0, &words[1]), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < 2; k++) {
            const unsigned char *at = (const unsigned char *)rows[i].text, *stop;
            int keep;
            if (ku_words_next(words[k], at, at + strlen(rows[i].text), 0, &stop, &keep) !=
                !rows[i].waits)
                fail_msg("'%s' (%s)", rows[i].text, k ? "pattern" : "by hand");
        }
    ku_words_destroy(words[0]);
    ku_words_destroy(words[1]);
}

static void knows_valid_utf8(void **state)
{
    static const struct {
        const char *text;
        size_t valid;
        int is_partial; /* of what follows the valid part */
    } rows[] = {{"", 0, 0},
                {"abc", 3, 0},
                {"abcdefghijk\x80", 11, 0},
                {"\xC3\xA9", 2, 0},
                {"\xC3", 0, 1},
                {"\xC1\x80", 0, 0},
                {"\xC0\x80", 0, 0},
                {"\xE0\x9F\xBF", 0, 0},
                {"\xE0\xA0\x80", 3, 0},
                {"\xE0\xA0", 0, 1},
                {"\xE0", 0, 1},
                {"\xED\x9F\xBF", 3, 0},
                {"\xED\xA0\x80", 0, 0},
                {"\xEF\xBF\xBF", 3, 0},
                {"\xF0\x8F\xBF\xBF", 0, 0},
                {"\xF0\x90\x80\x80", 4, 0},
                {"\xF0\x90\x80", 0, 1},
                {"\xF4\x8F\xBF\xBF", 4, 0},
                {"\xF4\x90\x80\x80", 0, 0},
                {"\xF5\x80\x80\x80", 0, 0},
                {"\xFF", 0, 0},
                {"a\xE2\x82 b", 1, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const unsigned char *at = (const unsigned char *)rows[i].text,
                            *end = at + strlen(rows[i].text);
        if (ku_utf8_valid(at, end) != rows[i].valid ||
            ku_utf8_is_partial(at + rows[i].valid, end) != rows[i].is_partial)
            fail_msg("row %zu", i);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(hand_and_pattern_agree_on_all_characters),
        cmocka_unit_test(hand_and_pattern_agree_on_random_texts),
        cmocka_unit_test(waits_where_text_may_go_on), cmocka_unit_test(knows_valid_utf8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
