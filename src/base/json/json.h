/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_JSON_JSON_H
#define KU_BASE_JSON_JSON_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/*
 * jansson with positions. Duplicate keys, trailing text and NUL bytes are errors; integers may be
 * written 5e8. Errors: KUMI_EINVAL with "<name>:<line>:<column>".
 */
struct ku_json {
    char *name, *text; /* where it came from; the source text */
    size_t bytes;
    json_t *root;
    char *source;     /* the text as written, where `text` was made from it; else NULL */
    uint32_t *origin; /* [bytes], offset in source of each byte of text */
};
int ku_json_parse(const char *name, const char *text, size_t bytes, struct ku_json *doc);
/* The same of a text that was made from another one, which positions are of. Takes source
 * (NUL-terminated) and origin over, also on failure. */
int ku_json_parse_from(const char *name, const char *text, size_t bytes, char *source,
                       uint32_t *origin, struct ku_json *doc);
int ku_json_load(const char *path, size_t max_bytes,
                 struct ku_json *doc); /* unreadable: KUMI_EINVAL with errno in words */
void ku_json_fini(struct ku_json *doc);

/*
 * Line and column (from 1) of the key at `path` ("model.n_embd", "data.train[2]", "" = the
 * document); of its value when is_value. 0 and 0 when the path is not in the text (a default, or a
 * --set).
 */
void ku_json_where(const struct ku_json *doc, const char *path, int is_value, int *line,
                   int *column);
/* Line and column, in characters from 1, of a place in a text. */
void ku_json_place(const char *text, const char *at, int *line, int *column);
/* The member at a dotted path, or NULL. Borrowed. */
json_t *ku_json_at(json_t *root, const char *path);
/* Sets the member at a dotted path, making objects on the way. Steals value. KUMI_EINVAL if a step
 * is no object. */
int ku_json_set(json_t *root, const char *path, json_t *value);
/* json_dumps with these flags, as ku_malloc memory; NULL with the record set. NULL for no value. */
char *ku_json_print(const json_t *v, size_t flags);
/* An integer, also from 5e8. 0, or -1 when v is none. */
int ku_json_int(const json_t *v, int64_t *out);
/* Prints a value, whose reference it takes, and a newline. *text is for kumi_text_free. NULL value:
 * KUMI_ENOMEM. */
int ku_text_json(json_t *value, char **text);

#endif
