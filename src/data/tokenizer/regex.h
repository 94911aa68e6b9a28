/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_REGEX_H
#define KU_DATA_TOKENIZER_REGEX_H

#include <stddef.h>

#include "base/err.h"

/* Regular expressions of tokenizers; only regex.c uses PCRE2. */
struct ku_regex;

/*
 * Compile a pattern in the syntax of tokenizer.json files (Oniguruma's). Escapes that PCRE2
 * interprets differently are rewritten: \s becomes the property White_Space (PCRE2's \s adds
 * U+180E), \v the vertical tab. Constructs without an equivalent are rejected, see ku_words_regex.
 *
 * Errors: EINPUT, ENOMEM.
 */
KU_STATUS ku_regex_create(const char *pattern, struct ku_regex **out);
void ku_regex_destroy(struct ku_regex *r);

struct ku_match {
    size_t start, stop; /* from `at` */
    int group;          /* number of the last group that matched, 0 if none */
};
/*
 * Search valid UTF-8 in [at, end).
 *
 *   is_last   0: more text may follow end
 *
 * Returns 1; 0 for no match, or, unless is_last, if text after end could create or extend a match;
 * or an error.
 */
KU_STATUS ku_regex_match(struct ku_regex *r, const unsigned char *at, const unsigned char *end,
                         int is_last, struct ku_match *m);

#endif
