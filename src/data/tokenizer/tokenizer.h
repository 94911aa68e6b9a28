/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_TOKENIZER_H
#define KU_DATA_TOKENIZER_TOKENIZER_H

#include "base/err.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Converts text to tokens and back. There are two kinds of tokenizer:
 *
 *     "byte"           a token is a byte
 *     byte-level BPE   a directory with OpenAI's encoder.json + vocab.bpe, or Hugging Face's
 *                      vocab.json + merges.txt or tokenizer.json (preferred), or a *.json file
 *
 *     text -> special tokens -> words (regex) -> merges of bytes -> ids
 *
 * A directory's special tokens come from tokenizer_config.json, special_tokens_map.json and
 * added_tokens.json, plus GPT-2's "<|endoftext|>". They are found in text as in Hugging Face's
 * library. The tokens that a tokenizer adds around a whole text are those of the template `single`
 * in tokenizer.json's post-processor; beside vocab.json, add_bos_token and add_eos_token in
 * tokenizer_config.json decide, as in transformers.
 *
 * GPT-2's pattern is implemented exactly, with Unicode properties and White_Space as \s; letters
 * and numbers are those of the linked PCRE2 (Debian 12: Unicode 14). A run of invalid UTF-8 is one
 * word, and the text on either side is split as if it ended there. decode(encode(x)) = x for all x,
 * with two exceptions in tokenizer.json: add_prefix_space adds a blank, and a Split with behavior
 * Removed drops text between words.
 *
 * Threads: one at a time per tokenizer, which holds a text window and a word cache. Each thread
 * opens its own.
 */
struct ku_tokenizer;

/* A growing list of tokens; zero-initialize it. */
struct ku_tokens {
    uint32_t *id;
    size_t count, cap;
};
void ku_tokens_fini(struct ku_tokens *tokens);

/*
 * Open a tokenizer.
 *
 *   where   "byte", a directory, or a tokenizer.json
 *
 * Owns: *out, until ku_tokenizer_destroy.
 * Errors: EINPUT (missing, malformed, or an unsupported kind, which the message names), ENOMEM.
 */
KU_STATUS ku_tokenizer_open(const char *where, struct ku_tokenizer **out);
void ku_tokenizer_destroy(struct ku_tokenizer *t);

/* One more than the largest token. */
int64_t ku_tokenizer_vocab_count(const struct ku_tokenizer *t);
/* Whether there is a token with this id: those of a vocabulary may have gaps. */
bool ku_tokenizer_has(const struct ku_tokenizer *t, uint32_t id);
/* Finds the token with this text, added or in the vocabulary; returns 1 and the id, or 0. */
int ku_tokenizer_find(const struct ku_tokenizer *t, const char *text, uint32_t *id);
/*
 * Finds the end-of-text token: the eos_token of the directory's files, else the first that exists
 * of "<|endoftext|>", "<|end_of_text|>", "</s>". Returns 1 and the id, or 0.
 */
int ku_tokenizer_end_of_text(const struct ku_tokenizer *t, uint32_t *id);
/*
 * Finds the mask token of masked language models: the mask_token of the directory's files, else the
 * added token "[MASK]" or "<mask>". Returns 1 and the id, or 0.
 */
int ku_tokenizer_mask_token(const struct ku_tokenizer *t, uint32_t *id);
/*
 * "byte", or 64 hex digits over everything that affects tokens: vocabulary, merges, patterns, added
 * tokens, tokens around a text. Borrowed.
 */
const char *ku_tokenizer_fingerprint(const struct ku_tokenizer *t);

/*
 * Append the tokens of one whole text, without tokens around it.
 *
 * Errors: EINPUT (a byte without a token; a word above KU_WORD_BYTES_MAX), ENOMEM; `out` then holds
 * part of the tokens.
 */
KU_STATUS ku_tokenizer_encode(struct ku_tokenizer *t, const void *text, size_t bytes,
                              struct ku_tokens *out);
/*
 * The same with the tokens that the tokenizer adds around a text, as transformers encodes prompts
 * and documents.
 */
KU_STATUS ku_tokenizer_encode_with_special(struct ku_tokenizer *t, const void *text, size_t bytes,
                                           struct ku_tokens *out);
/* Whether ku_tokenizer_encode_with_special ends every text with this token. */
bool ku_tokenizer_adds_last(const struct ku_tokenizer *t, uint32_t id);
/*
 * Encode in pieces of any length: feed, feed, …, finish gives the tokens of ku_tokenizer_encode.
 * Memory is bounded by the longest word. After an error, or to discard a text, call reset.
 */
KU_STATUS ku_tokenizer_feed(struct ku_tokenizer *t, const void *text, size_t bytes,
                            struct ku_tokens *out);
KU_STATUS ku_tokenizer_finish(struct ku_tokenizer *t, struct ku_tokens *out);
void ku_tokenizer_reset(struct ku_tokenizer *t);

/* Appends the bytes of the tokens; errors: EINVAL (unknown token: nothing appended), ENOMEM. */
KU_STATUS ku_tokenizer_decode(const struct ku_tokenizer *t, const uint32_t *id, size_t count,
                              struct ku_str *out);

/* Limit of a word, which is merged as a whole and takes 20 to 44 bytes of memory per byte. */
enum { KU_WORD_BYTES_MAX = 16 << 20 };

#endif
