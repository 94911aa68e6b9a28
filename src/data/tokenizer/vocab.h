/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_VOCAB_H
#define KU_DATA_TOKENIZER_VOCAB_H

#include "base/err.h"
#include "base/str.h"
#include "data/data.h"
#include "data/tokenizer/tokenizer.h"

/*
 * The vocabulary of a parallel corpus: words, or the tokens of a tokenizer, and four special
 * tokens.
 *
 *   "word"       the words of the training files, separated by blanks, that occur at least
 *                min_frequency times; most frequent first, ties in byte order. <pad>, <s>, </s> and
 *                <unk> are tokens 0 to 3; any other word is <unk>
 *   NAME.vocab   the same from a file, one word per line, special tokens first (ku_vocab_print)
 *   otherwise    as ku_tokenizer_open. Special tokens are its added tokens of these names; missing
 *                ones follow its last token. <unk> is not needed; if missing, its id is <pad>'s
 *
 * Threads: one at a time, as struct ku_tokenizer.
 */
struct ku_vocab;

enum ku_vocab_special { KU_VOCAB_PAD, KU_VOCAB_BOS, KU_VOCAB_EOS, KU_VOCAB_UNK, KU_VOCAB_SPECIALS };

struct ku_vocab_opts {
    const char *tokenizer;   /* "word", NAME.vocab, or as ku_tokenizer_open; NULL: "word" */
    const char *const *file; /* [n_files], text files to count words in */
    int n_files;
    int64_t min_frequency; /* of a word; 0 means 1 */
    int64_t max_words;     /* keep only the most frequent; 0: all */
    struct ku_progress progress;
};

/*
 * Opens a vocabulary. Owns: *out, until ku_vocab_destroy. Errors: EINPUT (a file; no word left),
 * EINVAL, ENOMEM.
 */
KU_STATUS ku_vocab_open(const struct ku_vocab_opts *opts, struct ku_vocab **out);
void ku_vocab_destroy(struct ku_vocab *v);

/* One more than the largest token, special tokens included. */
int64_t ku_vocab_count(const struct ku_vocab *v);
uint32_t ku_vocab_special(const struct ku_vocab *v, enum ku_vocab_special which);
/* 64 hex digits over everything that affects tokens; borrowed. */
const char *ku_vocab_fingerprint(const struct ku_vocab *v);

/* Appends the tokens of one sentence, without special tokens around it; errors: EINPUT, ENOMEM. */
KU_STATUS ku_vocab_encode(struct ku_vocab *v, const char *text, size_t bytes,
                          struct ku_tokens *out);
/*
 * Appends the text up to the first </s>, without <pad> and <s>; unknown words are "<unk>". Errors:
 * EINVAL (no such token), ENOMEM.
 */
KU_STATUS ku_vocab_decode(const struct ku_vocab *v, const uint32_t *id, size_t count,
                          struct ku_str *out);
/* Appends the contents of a NAME.vocab file; errors: EINVAL (not a vocabulary of words), ENOMEM. */
KU_STATUS ku_vocab_print(const struct ku_vocab *v, struct ku_str *out);

#endif
