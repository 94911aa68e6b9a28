/* SPDX-License-Identifier: Apache-2.0 */
/* What the tokenizer tests share: fixtures made by tools/fixtures/make_tokenizer.py. */
#ifndef KU_TEST_TOKENIZER_COMMON_H
#define KU_TEST_TOKENIZER_COMMON_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "data/tokenizer/tokenizer.h"

#define FIXTURES KUMI_SOURCE_DIR "/tests/fixtures/tokenizer"

struct fixture {
    unsigned char *text;
    size_t bytes;
    uint32_t *id;
    size_t count;
};

static inline unsigned hex_digit(char c)
{
    return c <= '9' ? (unsigned)(c - '0') : (unsigned)(c - 'a' + 10);
}

/* A line "HEX IDS…". Digit by digit: sscanf, and strtok and strtoul under AddressSanitizer's
 * strict_string_checks, look for the end of the text at each call. */
static inline struct fixture fixture_parse(const char *line)
{
    struct fixture f = {0};
    const size_t n_hex = strcspn(line, " ");
    const char *p = line + n_hex;
    f.bytes = *line == '-' ? 0 : n_hex / 2;
    f.text = malloc(f.bytes + 1);
    f.id = malloc((strlen(p) + 1) * sizeof *f.id);
    for (size_t i = 0; i < f.bytes; i++)
        f.text[i] = (unsigned char)(hex_digit(line[2 * i]) << 4 | hex_digit(line[2 * i + 1]));
    while (*p == ' ')
        for (f.id[f.count++] = 0, p++; *p >= '0' && *p <= '9'; p++)
            f.id[f.count - 1] = f.id[f.count - 1] * 10 + (uint32_t)(*p - '0');
    assert_int_equal(*p, 0);
    return f;
}

/* The next line of *text, which is cut off there; NULL: no more. Empty lines are left out. */
static inline char *next_line(char **text)
{
    char *line = *text, *end;
    while (*line == '\n')
        line++;
    for (end = line; *end && *end != '\n'; end++)
        ;
    *text = *end ? end + 1 : end;
    *end = 0;
    return end > line ? line : NULL;
}

static void fixture_free(struct fixture *f)
{
    free(f->text);
    free(f->id);
}

static void assert_tokens(const struct ku_tokens *got, const struct fixture *f, const char *name,
                          const char *how)
{
    size_t same = 0;
    while (same < got->count && same < f->count && got->id[same] == f->id[same])
        same++;
    if (same == got->count && same == f->count)
        return;
    fail_msg("%s, %s: text of %zu bytes '%.*s': token %zu of %zu is %ld, not %ld of %zu", name, how,
             f->bytes, (int)f->bytes, (const char *)f->text, same, got->count,
             same < got->count ? (long)got->id[same] : -1L,
             same < f->count ? (long)f->id[same] : -1L, f->count);
}

/* One text: whole, and fed in pieces of 1 to 7 bytes. is_lossless: and back. */
static void check_fixture(struct ku_tokenizer *t, const struct fixture *f, const char *name,
                          int is_lossless)
{
    struct ku_tokens got = {0};
    struct ku_str back = {0};
    assert_int_equal(ku_tokenizer_encode(t, f->text, f->bytes, &got), 0);
    assert_tokens(&got, f, name, "whole");
    assert_int_equal(ku_tokenizer_decode(t, got.id, got.count, &back), 0);
    if (is_lossless) {
        assert_int_equal(back.bytes, f->bytes);
        if (f->bytes)
            assert_memory_equal(back.text, f->text, f->bytes);
    }
    got.count = 0;
    for (size_t at = 0, n; at < f->bytes; at += n) {
        n = 1 + (at * 5 + f->bytes) % 7;
        n = n < f->bytes - at ? n : f->bytes - at;
        assert_int_equal(ku_tokenizer_feed(t, f->text + at, n, &got), 0);
    }
    assert_int_equal(ku_tokenizer_finish(t, &got), 0);
    assert_tokens(&got, f, name, "in pieces");
    ku_tokens_fini(&got);
    ku_str_fini(&back);
}

#endif
