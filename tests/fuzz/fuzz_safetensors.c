/* SPDX-License-Identifier: Apache-2.0 */
/* links: ckpt tensor base */
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "ckpt/safetensors.h"
#include "fuzz.h"

/* Any bytes as a file: refused with one line, or parsed to tensors that tile the data. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ku_st st;
    uint64_t header_bytes = 0, end;
    if (bytes < 8)
        return 0;
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | data[i];
    if (ku_st_parse("fuzz", (const char *)data + 8, header_bytes, bytes, &st) < 0) {
        KU_ASSERT(ku_err_get()->text[0] != '\0' && strchr(ku_err_get()->text, '\n') == NULL);
        return 0;
    }
    end = st.data_at;
    for (int i = 0; i < st.n; i++) {
        const struct ku_st_tensor *t = &st.tensor[i];
        KU_ASSERT(t->at == end && ku_st_find(&st, t->name) == t);
        KU_ASSERT(t->bytes == 0 ||
                  (ku_st_at(&st, t->at) == t && ku_st_at(&st, t->at + t->bytes - 1) == t));
        end += t->bytes;
    }
    KU_ASSERT(end == bytes);
    ku_st_close(&st);
    return 0;
}
