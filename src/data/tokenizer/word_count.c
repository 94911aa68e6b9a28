/* SPDX-License-Identifier: Apache-2.0 */
#include "data/tokenizer/word_count.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/reserve.h"

#include <string.h>

enum { SLOTS_MIN = 1024 };

void ku_word_count_fini(struct ku_word_count *c)
{
    ku_free(c->word);
    ku_free(c->blob);
    ku_free(c->slot);
    *c = (struct ku_word_count){0};
}

/* The slot of these bytes: the occupied one, or the empty one where they belong. */
static uint32_t *slot_of(const struct ku_word_count *c, const void *data, size_t bytes)
{
    uint32_t i = (uint32_t)ku_hash64(data, bytes) & c->slot_mask;
    for (;; i = (i + 1) & c->slot_mask) {
        if (c->slot[i] == 0)
            return &c->slot[i];
        uint32_t number = c->slot[i] - 1;
        if (ku_word_bytes(c, number) == bytes &&
            (bytes == 0 || memcmp(ku_word_text(c, number), data, bytes) == 0))
            return &c->slot[i];
    }
}

/* Keeps the slots at most half full. */
static int grow(struct ku_word_count *c)
{
    uint32_t slots = c->slot ? c->slot_mask + 1 : 0;
    if (2 * ((uint64_t)c->n + 1) <= slots)
        return KUMI_OK;
    if (slots > UINT32_MAX / 4)
        return KU_ERR(KUMI_ENOMEM, "words: more than %u distinct words; give less text", c->n);
    slots = slots ? 2 * slots : SLOTS_MIN;
    uint32_t *slot = ku_calloc(slots, sizeof *slot);
    if (!slot)
        return KUMI_ENOMEM;
    ku_free(c->slot);
    c->slot = slot;
    c->slot_mask = slots - 1;
    for (uint32_t i = 0; i < c->n; i++)
        *slot_of(c, ku_word_text(c, i), ku_word_bytes(c, i)) = i + 1;
    return KUMI_OK;
}

static int add_new(struct ku_word_count *c, const void *data, size_t bytes)
{
    KU_TRY(KU_GROW(&c->word, c->n, &c->cap));
    KU_TRY(KU_RESERVE(&c->blob, c->blob_bytes, bytes, &c->cap_blob));
    if (bytes)
        memcpy(c->blob + c->blob_bytes, data, bytes);
    c->word[c->n] = (struct ku_word){.at = c->blob_bytes};
    c->blob_bytes += bytes;
    return KUMI_OK;
}

int ku_word_count_add(struct ku_word_count *c, const void *data, size_t bytes, uint32_t *number)
{
    KU_ASSERT(bytes <= UINT32_MAX);
    KU_TRY(grow(c));
    uint32_t *slot = slot_of(c, data, bytes);
    if (*slot == 0) {
        KU_TRY(add_new(c, data, bytes));
        *slot = ++c->n;
    }
    c->word[*slot - 1].count++;
    c->total++;
    if (number)
        *number = *slot - 1;
    return KUMI_OK;
}

int ku_word_count_find(const struct ku_word_count *c, const void *data, size_t bytes,
                       uint32_t *number)
{
    uint32_t slot = c->slot ? *slot_of(c, data, bytes) : 0;
    if (slot)
        *number = slot - 1;
    return slot != 0;
}
