/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_VOCAB_H
#define KU_DATA_TOKENIZER_VOCAB_H

#include "base/str.h"
#include "data/data.h"
#include "data/tokenizer/tokenizer.h"

/*
 * The vocabulary of sentences: words, or a tokenizer's tokens, and four special tokens.
 *
 *   "word"       the words of the training files, separated by blanks, that occur min_frequency
 *                times: most frequent first, equals in the order of their bytes. <pad>, <s>, </s>
 *                and <unk> are tokens 0 to 3; any other word is <unk>
 *   NAME.vocab   the same from a file, a word a line, the special tokens first (ku_vocab_print)
 *   otherwise    as ku_tokenizer_open. Special tokens are its added tokens of these names; those
 *                that it has not follow its last token. <unk> is never needed
 *
 * Threads: as struct ku_tokenizer, one at a time.
 */
struct ku_vocab;

enum ku_vocab_special { KU_VOCAB_PAD, KU_VOCAB_BOS, KU_VOCAB_EOS, KU_VOCAB_UNK, KU_VOCAB_SPECIALS };

struct ku_vocab_opts {
    const char *tokenizer;   /* "word", NAME.vocab, or as ku_tokenizer_open; NULL: "word" */
    const char *const *file; /* [n_files] what words are counted in */
    int n_files;
    int64_t min_frequency; /* of a word; 0: 1 */
    int64_t max_words;     /* the most frequent so many; 0: all */
    struct ku_progress progress;
};

/* Owns: *out, until ku_vocab_destroy. Errors: EINPUT (a file; no word is left), EINVAL, ENOMEM. */
int ku_vocab_open(const struct ku_vocab_opts *opts, struct ku_vocab **out);
void ku_vocab_destroy(struct ku_vocab *v); /* NULL is fine */

/* One more than the largest token, special ones included. */
int64_t ku_vocab_count(const struct ku_vocab *v);
uint32_t ku_vocab_special(const struct ku_vocab *v, enum ku_vocab_special which);
/* 64 hex digits over everything that decides a token. Borrowed. */
const char *ku_vocab_fingerprint(const struct ku_vocab *v);

/* Appends the tokens of one sentence, without special ones around it. Errors: EINPUT, ENOMEM. */
int ku_vocab_encode(struct ku_vocab *v, const char *text, size_t bytes, struct ku_tokens *out);
/* Appends the sentence up to the first </s>; <pad> and <s> are left out, an unknown word is
 * "<unk>". Errors: EINVAL (no such token), ENOMEM. */
int ku_vocab_decode(const struct ku_vocab *v, const uint32_t *id, size_t count, struct ku_str *out);
/* Appends NAME.vocab's text. Errors: EINVAL (no vocabulary of words), ENOMEM. */
int ku_vocab_print(const struct ku_vocab *v, struct ku_str *out);

#endif
