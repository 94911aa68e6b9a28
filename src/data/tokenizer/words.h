/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_WORDS_H
#define KU_DATA_TOKENIZER_WORDS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Splits valid UTF-8 into words, by GPT-2's pattern (implemented by hand) or by a regular
 * expression (PCRE2).
 */
struct ku_words;

KU_STATUS ku_words_gpt2(struct ku_words **out);
/*
 * Words are the matches of `pattern`, in the syntax of tokenizer.json files (Oniguruma's), and,
 * unless drop_gaps, the text between matches.
 *
 * Errors: EINPUT, for a syntax error, for constructs with another meaning in PCRE2, and for those
 * that look at text before the word (\w, \b, ^, lookbehind, ...). The message names pattern and
 * position; the caller adds the file. ENOMEM.
 */
KU_STATUS ku_words_regex(const char *pattern, int drop_gaps, struct ku_words **out);
void ku_words_destroy(struct ku_words *s);

/*
 * Find the first word of [at, end), at < end.
 *
 *   is_last   0: more text follows end
 *   stop      receives the end of the word
 *   keep      receives 0 if the word is a dropped gap, else 1
 *
 * Returns 1; 0 if the word may depend on text after end; or an error (EINPUT from PCRE2's limits,
 * ENOMEM).
 */
KU_STATUS ku_words_next(struct ku_words *s, const unsigned char *at, const unsigned char *end,
                        int is_last, const unsigned char **stop, int *keep);

#endif
