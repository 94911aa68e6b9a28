/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include "base/err.h"
#include "base/os/os.h"
#include "data/tokenizer/tokenizer.h"
#include "fuzz.h"

#include <stdio.h>
#include <string.h>

/*
 * An input that begins with '{' is a tokenizer.json, a NUL and a text for it; any other is a text
 * for the small vocabulary of the fixtures, which gives every text back.
 */
static void encode(struct ku_tokenizer *t, const uint8_t *text, size_t bytes, int is_lossless)
{
    struct ku_tokens whole = {0}, pieces = {0};
    struct ku_str back = {0};
    int status = ku_tokenizer_encode(t, text, bytes, &whole), fed = 0;
    for (size_t at = 0, n; at < bytes && fed == 0; at += n) {
        n = 1 + (at * 7 + text[at]) % 13;
        n = n < bytes - at ? n : bytes - at;
        fed = ku_tokenizer_feed(t, text + at, n, &pieces);
    }
    fed = fed == 0 ? ku_tokenizer_finish(t, &pieces) : fed;
    ku_tokenizer_reset(t);
    KU_ASSERT(fed == status);
    if (status == 0) {
        KU_ASSERT(whole.count == pieces.count);
        KU_ASSERT(!whole.count || memcmp(whole.id, pieces.id, whole.count * sizeof *whole.id) == 0);
        KU_ASSERT(ku_tokenizer_decode(t, whole.id, whole.count, &back) == 0);
        KU_ASSERT(!is_lossless ||
                  (back.bytes == bytes && (!bytes || memcmp(back.text, text, bytes) == 0)));
    }
    ku_tokens_fini(&whole);
    ku_tokens_fini(&pieces);
    ku_str_fini(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ku_tokenizer *t = NULL;
    if (bytes == 0 || data[0] != '{') {
        KU_ASSERT(ku_tokenizer_open(KUMI_SOURCE_DIR "/tests/fixtures/tokenizer/small", &t) == 0);
        encode(t, data, bytes, 1);
        ku_tokenizer_destroy(t);
        return 0;
    }
    const uint8_t *nul = memchr(data, 0, bytes);
    size_t json_bytes = nul ? (size_t)(nul - data) : bytes;
    char path[64];
    int fd = ku_fuzz_file(data, json_bytes, path, sizeof path);
    if (ku_tokenizer_open(path, &t) == 0) {
        if (nul)
            encode(t, nul + 1, bytes - json_bytes - 1, 0);
        ku_tokenizer_destroy(t);
    }
    ku_os_close(fd);
    return 0;
}
