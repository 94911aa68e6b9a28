/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_BPE_H
#define KU_DATA_TOKENIZER_BPE_H

#include "base/err.h"
#include "data/tokenizer/tokenizer.h"

/*
 * Byte pair encoding of single words: vocabulary, ranked merges, and a cache of words. Tokens are
 * byte strings; tokenizer_load.c converts the notation of a file.
 */
struct ku_bpe;

KU_STATUS ku_bpe_create(struct ku_bpe **out);
void ku_bpe_destroy(struct ku_bpe *b);

/*
 * Add a token. Add all tokens before the first merge.
 *
 *   findable   0: the token can be decoded, but no merge and no word produces it
 *
 * Returns 1 if the id is taken, 2 if the bytes are taken; nothing changes then. Errors: ENOMEM.
 */
KU_STATUS ku_bpe_add_token(struct ku_bpe *b, uint32_t id, const void *data, size_t bytes,
                           int findable);
/*
 * Adds the merge of two tokens, `pair` cut after left_bytes, ranked by the order of calls; a
 * repeated pair takes the later rank. Returns 1, 2 or 3 if left, right or the whole is not a token.
 * Errors: ENOMEM.
 */
KU_STATUS ku_bpe_add_merge(struct ku_bpe *b, const unsigned char *pair, size_t left_bytes,
                           size_t right_bytes);
/* A word that is itself a token becomes that token, regardless of merges. */
void ku_bpe_ignore_merges(struct ku_bpe *b);
/* Ends construction: finds the tokens of single bytes and hashes everything. */
KU_STATUS ku_bpe_seal(struct ku_bpe *b, unsigned char digest[32]);

uint32_t ku_bpe_vocab_count(const struct ku_bpe *b);
/* Finds the token with these bytes; returns 1 and the id, or 0. */
int ku_bpe_find(const struct ku_bpe *b, const void *data, size_t bytes, uint32_t *id);
/* The bytes of a token, borrowed; NULL if the id is unused. */
const unsigned char *ku_bpe_token(const struct ku_bpe *b, uint32_t id, uint32_t *bytes);

/*
 * Append the tokens of a word of 1 to KU_WORD_BYTES_MAX bytes. Returns 0; 1 + index of the first
 * byte that has no token (nothing is appended); or ENOMEM.
 */
int64_t ku_bpe_encode(struct ku_bpe *b, const unsigned char *word, size_t bytes,
                      struct ku_tokens *out);
/* Frees the buffers of long words. */
void ku_bpe_trim(struct ku_bpe *b);

/* Makes room for `more` tokens after the last one. */
KU_STATUS ku_tokens_reserve(struct ku_tokens *tokens, size_t more);

#endif
