/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_JOURNAL_RECORD_H
#define KU_PS_JOURNAL_RECORD_H

#include "ps/journal.h"

/* The head of a record as ps/journal.h describes it; the host is little endian. */
struct ku_ps_head {
    uint32_t magic;
    uint16_t kind, worker;
    uint64_t number, salt, a;
    int64_t b;
    uint64_t c;
    uint32_t bytes, unsynced;
    uint64_t sum;
};
_Static_assert(sizeof(struct ku_ps_head) == KU_PS_HEAD_BYTES, "no padding");
enum { KU_PS_MAGIC = 0x314a504b, KU_PS_FORMAT = 1, KU_PS_SEGMENT_WORDS = 3 };

uint64_t ku_ps_head_sum(const struct ku_ps_head *h, const void *body);
static inline uint64_t ku_ps_padded(uint64_t bytes)
{
    return (bytes + KU_PS_HEAD_BYTES - 1) & ~(uint64_t)(KU_PS_HEAD_BYTES - 1);
}
/* DIR/00000001.journal; freed with ku_free. */
char *ku_ps_journal_file(const char *dir, uint32_t number);

#endif
