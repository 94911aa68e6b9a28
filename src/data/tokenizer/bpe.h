/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_BPE_H
#define KU_DATA_TOKENIZER_BPE_H

#include "data/tokenizer/tokenizer.h"

/*
 * Byte pair encoding of single words: vocabulary, ranked merges, a cache of words. Tokens are byte
 * strings; how a file spells them is the loader's business.
 */
struct ku_bpe;

int ku_bpe_create(struct ku_bpe **out);
void ku_bpe_destroy(struct ku_bpe *b);

/*
 * Building. All tokens come before the first merge.
 *   findable   0: a token that decodes, but that no merge and no word can mean
 * add_token returns 1 when the id is taken, 2 when the bytes are; nothing changes then.
 */
int ku_bpe_add_token(struct ku_bpe *b, uint32_t id, const void *data, size_t bytes, int findable);
/* Ranked by the order of the calls; a pair given again takes the later rank. Returns 1, 2, 3 when
 * left, right or their product is no token. */
int ku_bpe_add_merge(struct ku_bpe *b, const void *left, size_t left_bytes, const void *right,
                     size_t right_bytes);
/* A word that is a token is taken whole, whatever the merges say. */
void ku_bpe_ignore_merges(struct ku_bpe *b);
/* Ends the building: looks up the tokens of single bytes, hashes the whole. */
int ku_bpe_seal(struct ku_bpe *b, unsigned char digest[32]);

uint32_t ku_bpe_vocab_count(const struct ku_bpe *b);
/* 1 and the id, or 0. */
int ku_bpe_find(const struct ku_bpe *b, const void *data, size_t bytes, uint32_t *id);
/* The bytes of a token, or NULL when there is none. Borrowed. */
const unsigned char *ku_bpe_token(const struct ku_bpe *b, uint32_t id, uint32_t *bytes);

/*
 * Appends the tokens of a word of 1 to KU_WORD_BYTES_MAX bytes. Returns 0; 1 + index of the first
 * byte that has no token (nothing appended); or KUMI_ENOMEM.
 */
int64_t ku_bpe_encode(struct ku_bpe *b, const unsigned char *word, size_t bytes,
                      struct ku_tokens *out);
/* Frees what a long word needed. */
void ku_bpe_trim(struct ku_bpe *b);

/* Room for `more` tokens behind the last. */
int ku_tokens_reserve(struct ku_tokens *tokens, size_t more);

#endif
