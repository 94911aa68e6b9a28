/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_WORDS_H
#define KU_DATA_TOKENIZER_WORDS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Cuts text into words, by GPT-2's rule (written by hand) or by a regular expression (PCRE2). The
 * text is valid UTF-8.
 */
struct ku_words;

int ku_words_gpt2(struct ku_words **out);
/*
 * Words are the matches of `pattern`, in the syntax that tokenizer.json files use (Oniguruma's),
 * and, unless drop_gaps, what lies between two matches.
 *
 * Errors: EINPUT, for a syntax error, for what would not mean the same in PCRE2 and for what looks
 * at text before the word (\w, \b, ^, lookbehind, ...); the line names pattern and place, the
 * caller puts the file in front. ENOMEM.
 */
int ku_words_regex(const char *pattern, int drop_gaps, struct ku_words **out);
void ku_words_destroy(struct ku_words *s);

/*
 * The first word of [at, end), at < end.
 *
 *   is_last   0: the text goes on behind end
 *   stop      out: the end of the word; *keep = 0 if it is a dropped gap
 *
 * Returns 1; 0 when the word may depend on text behind end; or an error (EINPUT from PCRE2's
 * limits, ENOMEM).
 */
int ku_words_next(struct ku_words *s, const unsigned char *at, const unsigned char *end,
                  int is_last, const unsigned char **stop, int *keep);

#endif
