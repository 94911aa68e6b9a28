/* SPDX-License-Identifier: Apache-2.0 */
/* links: remote */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "fuzz.h"
#include "remote/sparse.h"

enum { MAX_BYTES = 1 << 16 };

/* A body of any bytes is refused with one line or expands to its extent. As data, the bytes come
 * back. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    size_t extent;
    if (bytes == 0 || bytes > MAX_BYTES)
        return 0;
    if (ku_sparse_check(data, bytes, &extent) == KUMI_OK) {
        unsigned char *to = ku_malloc(extent);
        KU_ASSERT(to != NULL && extent <= KU_SPARSE_MAX_EXTENT_BYTES);
        ku_sparse_expand(data, to);
        ku_sparse_merge(data, to);
        ku_free(to);
    } else {
        KU_ASSERT(ku_err_get()->text[0] != '\0' && strchr(ku_err_get()->text, '\n') == NULL);
    }
    unsigned char *body = ku_malloc(KU_SPARSE_MAX_BYTES);
    KU_ASSERT(body != NULL);
    const size_t n = ku_sparse_encode(data, bytes, body, &extent);
    if (n) {
        unsigned char *to = ku_malloc(extent);
        size_t is;
        KU_ASSERT(to != NULL && ku_sparse_check(body, n, &is) == KUMI_OK && is == extent);
        ku_sparse_expand(body, to);
        KU_ASSERT(memcmp(to, data, extent) == 0);
        ku_free(to);
    }
    ku_free(body);
    return 0;
}
