/* SPDX-License-Identifier: Apache-2.0 */
/* links: remote */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "fuzz.h"
#include "remote/compress.h"
#include "tensor/blocks.h"

/*
 * A compressed record of any bytes decodes within its chunk if it is valid. As a gradient, the
 * bytes compress to a valid record, which with the residual gives them again.
 *
 *     byte 0 form, bytes 1 and 2 elements of the chunk, byte 3 topk, then the record or gradient
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    enum { HEAD = 4 };
    static float g[KU_BLOCK_COUNT], before[KU_BLOCK_COUNT], after[KU_BLOCK_COUNT];
    if (bytes < HEAD)
        return 0;
    const struct ku_remote_entry x = {.form = (enum ku_remote_form)(1 + data[0] % 3),
                                      .topk = data[3] % 2 ? data[3] : (data[3] + 1) / 256.0};
    const int64_t n = 1 + (data[1] | data[2] << 8) % KU_BLOCK_COUNT;
    const size_t all = ku_remote_record_bytes(&x, n), got = bytes - HEAD;
    unsigned char *record = ku_calloc(all, 1);
    float *out = ku_calloc((size_t)n, sizeof *out); /* of its own: a sanitizer sees its end */
    KU_ASSERT(record != NULL && out != NULL);
    memcpy(record, data + HEAD, got < all ? got : all);
    if (ku_compress_is_valid(&x, n, record))
        ku_compress_decode(&x, n, record, out);
    memset(g, 0, sizeof g);
    memcpy(g, data + HEAD, got < sizeof g ? got : sizeof g);
    const struct ku_compress_draw draw = {.seed = data[0]};
    ku_compress_chunk(&x, &draw, n, g, before, record, after);
    KU_ASSERT(ku_compress_is_valid(&x, n, record));
    ku_compress_decode(&x, n, record, out);
    for (int64_t i = 0; i < n; i++)
        KU_ASSERT(after[i] == g[i] - out[i] || after[i] == before[i]);
    ku_free(out);
    ku_free(record);
    return 0;
}
