/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "data/image/tar.h"
#include "fuzz.h"

#include <string.h>

/* Any bytes as a shard: refused with one line, or samples that lie within it, one behind the
 * other's header. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    struct ku_tar_index x = {0};
    int fd = ku_fuzz_file(data, bytes, path, sizeof path);
    struct ku_file f = {path, fd, bytes};
    int status = ku_tar_walk(&f, NULL, &x);
    KU_ASSERT(status == KUMI_OK || status == KUMI_EINPUT);
    KU_ASSERT(status == KUMI_OK ? x.n > 0 : strchr(ku_err_get()->text, '\n') == NULL);
    for (uint32_t i = 0; i < x.n && status == KUMI_OK; i++) {
        const struct ku_tar_entry *e = &x.entry[i];
        KU_ASSERT(e->at >= 512 && e->at % 512 == 0 && e->bytes > 0 && e->label >= 0);
        KU_ASSERT(e->at <= bytes && e->bytes <= bytes - e->at);
        KU_ASSERT(i == 0 || e->at > x.entry[i - 1].at);
    }
    ku_free(x.entry);
    ku_os_close(fd);
    return 0;
}
