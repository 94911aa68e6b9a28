/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_JSON_JSON_H
#define KU_BASE_JSON_JSON_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * jansson with source positions. Duplicate keys, trailing text and NUL bytes are errors; an integer
 * may be written as 5e8. Errors: KUMI_EINVAL with "<name>:<line>:<column>".
 */
struct ku_json {
    char *name, *text; /* name of the source; its text */
    size_t bytes;
    json_t *root;
    char *source;     /* the text as written, if `text` was translated from it; else NULL */
    uint32_t *origin; /* [bytes], offset in source of each byte of text */
};
KU_STATUS ku_json_parse(const char *name, const char *text, size_t bytes, struct ku_json *doc);
/*
 * The same for JSON that other programs wrote.
 *
 *   flags   KU_JSON_NUL: strings may contain "\u0000"; use json_string_length
 *           KU_JSON_LONG_INTEGERS: an integer of more than 18 digits, which 64 bits may not hold,
 *           is a real number: its first digit and its exponent
 */
enum { KU_JSON_NUL = 1, KU_JSON_LONG_INTEGERS = 2 };
KU_STATUS ku_json_parse_with(const char *name, const char *text, size_t bytes, unsigned flags,
                             struct ku_json *doc);
/*
 * ku_json_parse of a text translated from `source`; positions refer to `source`. Takes ownership of
 * source (NUL-terminated) and origin, on failure too.
 */
KU_STATUS ku_json_parse_from(const char *name, const char *text, size_t bytes, char *source,
                             uint32_t *origin, struct ku_json *doc);
/* An unreadable file is KUMI_EINVAL with errno as text (KUMI_ENOMEM for ENOMEM). */
KU_STATUS ku_json_load(const char *path, size_t max_bytes, struct ku_json *doc);
/* The same for a text that `parse` reads. */
typedef int ku_json_parse_fn(const char *name, const char *text, size_t bytes, struct ku_json *doc);
KU_STATUS ku_json_load_by(const char *path, size_t max_bytes, ku_json_parse_fn *parse,
                          struct ku_json *doc);
void ku_json_fini(struct ku_json *doc);

/*
 * Line and column (from 1) of the key at `path`, or of its value if is_value. Both are 0 if the
 * path is not in the text (a default or a --set).
 *
 *   path   "model.n_embd", "data.train[2]"; "" is the whole document
 */
void ku_json_where(const struct ku_json *doc, const char *path, int is_value, int *line,
                   int *column);
/* Line and column, in characters from 1, of a position in a text. */
void ku_json_place(const char *text, const char *at, int *line, int *column);
/* The member at a dotted path, or NULL. Borrowed. */
json_t *ku_json_at(json_t *root, const char *path);
/*
 * Sets the member at a dotted path and creates objects on the way where they are missing or null.
 * Takes the reference to value. KUMI_EINVAL if an element of the path is not an object.
 */
KU_STATUS ku_json_set(json_t *root, const char *path, json_t *value);
/*
 * json_dumps with these flags, in ku_malloc memory. NULL with the error record set on failure; NULL
 * without it if v is NULL.
 */
char *ku_json_print(const json_t *v, size_t flags);
/*
 * Reads an integer, also from 5e8. Returns 0, or -1 if v is not an integer.
 */
int ku_json_int(const json_t *v, int64_t *out);
/*
 * A string, cut before the first byte that is not UTF-8, such as of a character that a message of
 * fixed size could not hold whole. New reference; NULL: no memory.
 */
json_t *ku_json_text(const char *text);
/*
 * Prints a value and a newline into *text (freed with kumi_text_free). Takes the reference to
 * value; NULL value: KUMI_ENOMEM.
 */
KU_STATUS ku_text_json(json_t *value, char **text);

#endif
