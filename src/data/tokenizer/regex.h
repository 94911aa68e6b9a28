/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_REGEX_H
#define KU_DATA_TOKENIZER_REGEX_H

#include <stddef.h>

/* Regular expressions of tokenizers over PCRE2: the only file that knows it. */
struct ku_regex;

/*
 * Compiles a pattern in the syntax of tokenizer.json files (Oniguruma's), rewritten where PCRE2
 * means something else by it: \s is the property White_Space (PCRE2's \s adds U+180E), \v the
 * vertical tab. What has no equal is refused, as ku_words_regex says.
 */
int ku_regex_create(const char *pattern, struct ku_regex **out);
void ku_regex_destroy(struct ku_regex *r);

struct ku_match {
    size_t start, stop; /* from `at` */
    int group;          /* the last group that took part, 0 if none */
};
/*
 * Searches valid UTF-8. Returns 1; 0 for no match, or, unless is_last, when text behind end could
 * make or lengthen one; or an error.
 */
int ku_regex_match(struct ku_regex *r, const unsigned char *at, const unsigned char *end,
                   int is_last, struct ku_match *m);

#endif
