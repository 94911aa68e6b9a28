/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Translates Hjson to JSON token by token, then calls the JSON parser. Comments and trailing commas
 * become blanks, keys get quotes, everything else is copied. origin[i] holds the offset in the
 * source of output byte i, so that JSON errors are reported at their position in the source:
 *
 *     source  { rate: 5, # fast \n }
 *     output  { "rate": 5   \n }
 *     origin  0 1 2 2 3 4 5 6 ..
 *
 * Hjson features that are not supported are detected here, with a specific message.
 */
#include "base/json/hjson.h"

#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

struct reader {
    const char *name, *text, *p, *end;
    struct ku_str out;
    uint32_t *origin; /* [out.bytes] */
    uint32_t cap;
    char open[KU_HJSON_MAX_DEPTH]; /* '{' or '[' of each open level */
    int depth;
    size_t comma;             /* 1 + offset in out of a comma that nothing follows yet; 0: none */
    int wants_key, has_value; /* has_value: a value ended, so , ] or } must follow */
};

static int refuse(const struct reader *r, const char *at, const char *what)
{
    int line, column;
    ku_json_place(r->text, at, &line, &column);
    return KU_ERR(KUMI_EINVAL, "json: %s:%d:%d: %s", r->name, line, column, what);
}

static int put(struct reader *r, const char *data, size_t bytes, const char *from, int moves)
{
    KU_TRY(ku_grow((void **)&r->origin, sizeof *r->origin, (uint32_t)r->out.bytes, (uint32_t)bytes,
                   &r->cap));
    for (size_t i = 0; i < bytes; i++)
        r->origin[r->out.bytes + i] = (uint32_t)(from - r->text + (moves ? (long)i : 0));
    ku_str_append(&r->out, data, bytes);
    return r->out.failed ? KUMI_ENOMEM : KUMI_OK;
}

/* Copies the source from p up to `to` and advances p. */
static int copy(struct reader *r, const char *to)
{
    const char *from = r->p;
    r->p = to;
    return put(r, from, (size_t)(to - from), from, 1);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool starts(const struct reader *r, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(r->end - r->p) >= n && memcmp(r->p, word, n) == 0;
}

static bool is_comment(const struct reader *r)
{
    return *r->p == '#' || starts(r, "//") || starts(r, "/*");
}

/*
 * Copies blanks. A comment becomes one blank, which separates the tokens around it.
 */
static int skip_blanks(struct reader *r)
{
    while (r->p < r->end && (is_blank(*r->p) || is_comment(r))) {
        const char *from = r->p;
        if (is_blank(*from)) {
            KU_TRY(copy(r, from + 1));
            continue;
        }
        const int is_long = starts(r, "/*");
        for (r->p += is_long ? 2 : 1; r->p < r->end; r->p++)
            if (is_long ? starts(r, "*/") : *r->p == '\n')
                break;
        if (is_long && r->p == r->end)
            return refuse(r, from, "this comment has no end; close it with */");
        r->p += is_long ? 2 : 0;
        KU_TRY(put(r, " ", 1, from, 0));
    }
    return KUMI_OK;
}

static int copy_string(struct reader *r)
{
    const char *q = r->p + 1;
    while (q < r->end && *q != '"' && *q != '\n')
        q += *q == '\\' && q + 1 < r->end ? 2 : 1;
    return q < r->end && *q == '"'
               ? copy(r, q + 1)
               : refuse(r, r->p, "this string has no closing quote on its line");
}

static const char *end_of_word(const struct reader *r)
{
    struct reader at = *r;
    while (at.p < at.end && !is_blank(*at.p) && strchr("{}[],:\"'", *at.p) == NULL &&
           !is_comment(&at))
        at.p++;
    return at.p;
}

static int copy_key(struct reader *r)
{
    const char *from = r->p, *to = end_of_word(r);
    if (*from == '"')
        return copy_string(r);
    if (*from == '\'')
        return refuse(r, from, "hjson's single-quoted strings are not supported; use \"\"");
    if (to == from || memchr(from, '\\', (size_t)(to - from)))
        return refuse(r, from, "a key is missing here; write it in quotes");
    KU_TRY(put(r, "\"", 1, from, 0));
    KU_TRY(copy(r, to));
    return put(r, "\"", 1, to - 1, 0);
}

static int copy_word(struct reader *r)
{
    const char *from = r->p, *to = end_of_word(r);
    const size_t n = (size_t)(to - from);
    if (*from == '\'')
        return refuse(r, from,
                      n == 0 && starts(r, "'''")
                          ? "hjson's multi-line strings are not supported; use \"\" and \\n"
                          : "hjson's single-quoted strings are not supported; use \"\"");
    if (*from == '-' || (*from >= '0' && *from <= '9') ||
        (n == 4 && memcmp(from, "true", 4) == 0) || (n == 5 && memcmp(from, "false", 5) == 0) ||
        (n == 4 && memcmp(from, "null", 4) == 0))
        return copy(r, to);
    return refuse(r, from,
                  n ? "hjson's unquoted strings are not supported; use \"\""
                    : "a value is missing here");
}

static int open_level(struct reader *r)
{
    if (r->depth == KU_HJSON_MAX_DEPTH)
        return refuse(r, r->p, "nested deeper than 64 levels");
    r->open[r->depth++] = *r->p;
    r->wants_key = *r->p == '{';
    r->comma = 0;
    return copy(r, r->p + 1);
}

static int close_level(struct reader *r)
{
    if (r->open[r->depth - 1] != (*r->p == '}' ? '{' : '['))
        return refuse(r, r->p, "a closing bracket of the wrong kind");
    if (r->comma)
        r->out.text[r->comma - 1] = ' ';
    r->comma = 0;
    r->wants_key = 0;
    r->has_value = 1;
    r->depth--;
    return copy(r, r->p + 1);
}

/* Reads one token inside the outermost brackets. */
static int read_token(struct reader *r)
{
    const int is_object = r->open[r->depth - 1] == '{';
    const char c = *r->p;
    if (c == '}' || c == ']')
        return close_level(r);
    if (c == ',') {
        if (!r->has_value)
            return refuse(r, r->p, "a comma without a value before it");
        r->has_value = 0;
        r->wants_key = is_object;
        KU_TRY(copy(r, r->p + 1));
        r->comma = r->out.bytes;
        return KUMI_OK;
    }
    if (r->has_value)
        return refuse(r, r->p,
                      "a comma is missing before this; hjson's omitted commas are not supported");
    r->comma = 0;
    if (r->wants_key) {
        r->wants_key = 0;
        KU_TRY(copy_key(r));
        KU_TRY(skip_blanks(r));
        return r->p < r->end && *r->p == ':' ? copy(r, r->p + 1)
                                             : refuse(r, r->p, "a colon is missing after the key");
    }
    if (c == '{' || c == '[')
        return open_level(r);
    r->has_value = 1;
    return c == '"' ? copy_string(r) : copy_word(r);
}

static int read_all(struct reader *r)
{
    KU_TRY(skip_blanks(r));
    if (r->p == r->end || (*r->p != '{' && *r->p != '['))
        return refuse(r, r->p,
                      "an opening { is missing; hjson's omitted outer braces are not supported");
    KU_TRY(open_level(r));
    while (r->depth > 0) {
        KU_TRY(skip_blanks(r));
        if (r->p == r->end)
            return refuse(r, r->p, "the text ends before its last bracket is closed");
        KU_TRY(read_token(r));
    }
    KU_TRY(skip_blanks(r));
    return r->p == r->end ? KUMI_OK : refuse(r, r->p, "nothing may follow the last bracket");
}

int ku_hjson_parse(const char *name, const char *text, size_t bytes, struct ku_json *doc)
{
    memset(doc, 0, sizeof *doc);
    if (bytes > KU_HJSON_MAX_BYTES)
        return KU_ERR(KUMI_EINVAL, "json: %s: %zu bytes; at most %d", name, bytes,
                      (int)KU_HJSON_MAX_BYTES);
    char *source = ku_malloc(bytes + 1);
    if (source == NULL)
        return KUMI_ENOMEM;
    memcpy(source, text, bytes);
    source[bytes] = '\0';
    struct reader r = {.name = name, .text = source, .p = source, .end = source + bytes};
    int status = memchr(source, '\0', bytes) ? refuse(&r, memchr(source, '\0', bytes), "a NUL byte")
                                             : read_all(&r);
    if (status == KUMI_OK)
        status = ku_json_parse_from(name, r.out.text, r.out.bytes, source, r.origin, doc);
    else {
        ku_free(source);
        ku_free(r.origin);
    }
    ku_str_fini(&r.out);
    return status;
}

int ku_hjson_load(const char *path, struct ku_json *doc)
{
    return ku_json_load_by(path, KU_HJSON_MAX_BYTES, ku_hjson_parse, doc);
}
