/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_TOKENIZER_H
#define KU_DATA_TOKENIZER_TOKENIZER_H

#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Text to tokens and back. Two kinds behind one interface: "byte" (a token is a byte) and
 * byte-level BPE, read from a directory with OpenAI's encoder.json + vocab.bpe, Hugging Face's
 * vocab.json + merges.txt or tokenizer.json (which wins where it lies beside the others), or from a
 * *.json file of the last kind. Special tokens of a directory are those of tokenizer_config.json,
 * special_tokens_map.json and added_tokens.json, and GPT-2's "<|endoftext|>".
 *
 * What is exact: GPT-2's pattern with Unicode properties, White_Space as \s. Letters and numbers
 * are those of the PCRE2 that kumi is linked with (Debian 12: Unicode 14). Bytes that are no UTF-8
 * stand apart: a run of them is one word, the text on either side is cut as though it ended there;
 * so decode(encode(x)) = x for all x, except that a tokenizer.json with add_prefix_space gives the
 * blank that it puts in front. Special and added tokens are found in the text as Hugging Face finds
 * them. Nothing is put around a text (no post-processor).
 *
 * Threads: a tokenizer holds a window and a cache of words, so one thread at a time; each thread
 * opens its own.
 */
struct ku_tokenizer;

/* Growing list of tokens. All zero is empty; fini frees. */
struct ku_tokens {
    uint32_t *id;
    size_t count, cap;
};
void ku_tokens_fini(struct ku_tokens *tokens);

/*
 * Opens a tokenizer.
 *
 *   where   "byte", a directory, or a tokenizer.json
 *
 * Owns: *out, until ku_tokenizer_destroy.
 * Errors: EINPUT (missing, malformed, or a kind that kumi has not: the line names it), ENOMEM.
 */
int ku_tokenizer_open(const char *where, struct ku_tokenizer **out);
void ku_tokenizer_destroy(struct ku_tokenizer *t); /* NULL is fine */

int ku_tokenizer_is_byte(const struct ku_tokenizer *t);
/* One more than the largest token. */
int64_t ku_tokenizer_vocab_count(const struct ku_tokenizer *t);
/* The token that a text spells: an added one, or one of the vocabulary. 1 and the id, or 0. */
int ku_tokenizer_find(const struct ku_tokenizer *t, const char *text, uint32_t *id);
/* The token that ends a text: the eos_token of the directory's files, else "<|endoftext|>",
 * "<|end_of_text|>" or "</s>", the first that there is. 1 and the id, or 0. */
int ku_tokenizer_end_of_text(const struct ku_tokenizer *t, uint32_t *id);
/* "byte", or 64 hex digits over everything that decides a token: vocabulary, merges, patterns,
 * added tokens. Borrowed. */
const char *ku_tokenizer_fingerprint(const struct ku_tokenizer *t);

/*
 * Appends the tokens of one whole text.
 *
 * Errors: EINPUT (a byte without a token; a word above KU_WORD_BYTES_MAX), ENOMEM; tokens then
 * holds a part.
 */
int ku_tokenizer_encode(struct ku_tokenizer *t, const void *text, size_t bytes,
                        struct ku_tokens *out);
/*
 * The same in pieces of any length: feed, feed, …, finish gives what encode gives of the whole.
 * Memory is bounded by the longest word. After an error, or to give a text up, call reset.
 */
int ku_tokenizer_feed(struct ku_tokenizer *t, const void *text, size_t bytes,
                      struct ku_tokens *out);
int ku_tokenizer_finish(struct ku_tokenizer *t, struct ku_tokens *out);
void ku_tokenizer_reset(struct ku_tokenizer *t);

/* Appends the bytes of count tokens. Errors: EINVAL (no such token: nothing appended), ENOMEM. */
int ku_tokenizer_decode(const struct ku_tokenizer *t, const uint32_t *id, size_t count,
                        struct ku_str *out);

/* A word is merged as a whole (20 to 44 bytes of memory per byte), so its length has a limit. */
enum { KU_WORD_BYTES_MAX = 16 << 20 };

#endif
