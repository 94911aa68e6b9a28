/* SPDX-License-Identifier: Apache-2.0 */
/* links: ps */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "fuzz.h"
#include "memory_folder.h"
#include "ps/journal_record.h"

enum { MAX_BYTES = 1 << 16 };

static int visit(void *ctx, const struct ku_ps_record *r)
{
    uint64_t *sum = ctx;
    KU_ASSERT(r->bytes <= KU_PS_MAX_BODY_BYTES && r->at % KU_PS_HEAD_BYTES == 0);
    *sum = ku_hash64_mix(*sum, ku_hash64(r->body, r->bytes));
    if (r->kind == KU_PS_UPDATE)
        for (size_t i = 0; i < r->bytes / 8; i++)
            *sum += (uint64_t)ku_ps_record_word(r, i);
    return KUMI_OK;
}

/* A journal of one file, with right checksums if the first byte is odd: read, or refused with one
 * line. What was read is read again from the file cut at its end. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char dir[64], path[96];
    struct ku_ps_end end, again;
    uint64_t sum = 0, same = 0;
    if (bytes == 0 || bytes > MAX_BYTES)
        return 0;
    unsigned char *file = ku_malloc(bytes);
    KU_ASSERT(file != NULL);
    memcpy(file, data, bytes);
    for (size_t at = 0; data[0] % 2 && at + KU_PS_HEAD_BYTES <= bytes; at += KU_PS_HEAD_BYTES) {
        struct ku_ps_head h;
        memcpy(&h, file + at, sizeof h);
        if (h.magic != KU_PS_MAGIC || h.bytes > bytes - at - sizeof h)
            continue;
        h.sum = ku_ps_head_sum(&h, file + at + sizeof h);
        memcpy(file + at, &h, sizeof h);
    }
    snprintf(dir, sizeof dir, "%s/test-kumi-fuzz-journal-%d", memory_folder(), (int)getpid());
    snprintf(path, sizeof path, "%s/00000001.journal", dir);
    KU_ASSERT(ku_os_mkdirs(dir) == 0 && ku_os_replace(path, file, bytes) == 0);
    const int status = ku_ps_journal_read(dir, visit, &sum, &end);
    KU_ASSERT(status == KUMI_OK || (status == KUMI_EINPUT && ku_err_get()->text[0] != '\0' &&
                                    strchr(ku_err_get()->text, '\n') == NULL));
    if (status == KUMI_OK) {
        KU_ASSERT(end.bytes + end.torn_bytes == bytes);
        KU_ASSERT(ku_os_replace(path, file, end.bytes) == 0);
        KU_ASSERT(ku_ps_journal_read(dir, visit, &same, &again) == KUMI_OK && same == sum);
        KU_ASSERT(again.next_number == end.next_number && again.torn_bytes == 0);
    }
    KU_ASSERT(ku_os_rmtree(dir) == 0);
    ku_free(file);
    return 0;
}
