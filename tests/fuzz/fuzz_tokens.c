/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include "base/err.h"
#include "base/os/os.h"
#include "data/text/source.h"
#include "fuzz.h"

/* The first byte says which data.format is given, the rest is the file. What opens can be read to
 * its end. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const formats[] = {NULL, "u16", "u32"};
    if (bytes == 0)
        return 0;
    char path[64];
    uint32_t chunk[KU_SOURCE_CHUNK];
    struct ku_source s;
    int fd = ku_fuzz_file(data + 1, bytes - 1, path, sizeof path), status = KUMI_OK;
    if (ku_source_bin(path, formats[data[0] % 3], &s) == 0) {
        KU_ASSERT(s.count > 0 && s.at + (uint64_t)s.count * (uint64_t)s.token_bytes == bytes - 1);
        for (int64_t at = 0; at < s.count && status == KUMI_OK; at += KU_SOURCE_CHUNK) {
            int n = s.count - at < KU_SOURCE_CHUNK ? (int)(s.count - at) : KU_SOURCE_CHUNK;
            status = ku_source_read(&s, at, n, 50257, chunk);
            for (int i = 0; i < n && status == KUMI_OK; i++)
                KU_ASSERT(chunk[i] < 50257);
            KU_ASSERT(status == KUMI_OK || status == KUMI_EINPUT);
        }
        ku_source_fini(&s);
    }
    ku_os_close(fd);
    return 0;
}
