/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_WORD_COUNT_H
#define KU_DATA_TOKENIZER_WORD_COUNT_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Distinct words and their counts, numbered in order of first occurrence; zero-initialize it. */
struct ku_word {
    size_t at; /* in blob, up to the next word */
    int64_t count;
};
struct ku_word_count {
    struct ku_word *word;
    uint32_t n, cap;
    unsigned char *blob;
    size_t blob_bytes, cap_blob;
    uint32_t *slot; /* hash table, open addressing: number + 1 of a word, 0: empty */
    uint32_t slot_mask;
    int64_t total; /* sum of all counts */
};

void ku_word_count_fini(struct ku_word_count *c);
/* Counts a word once; bytes < 2^32. *number receives its number; may be NULL; errors: ENOMEM. */
KU_STATUS ku_word_count_add(struct ku_word_count *c, const void *data, size_t bytes,
                            uint32_t *number);
/* Finds a counted word; returns 1 and its number, or 0. */
int ku_word_count_find(const struct ku_word_count *c, const void *data, size_t bytes,
                       uint32_t *number);
static inline const unsigned char *ku_word_text(const struct ku_word_count *c, uint32_t number)
{
    return c->blob + c->word[number].at;
}
static inline uint32_t ku_word_bytes(const struct ku_word_count *c, uint32_t number)
{
    size_t end = number + 1 < c->n ? c->word[number + 1].at : c->blob_bytes;
    return (uint32_t)(end - c->word[number].at);
}

#endif
