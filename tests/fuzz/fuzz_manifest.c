/* SPDX-License-Identifier: Apache-2.0 */
/* links: ckpt tensor base */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/os/os.h"
#include "ckpt/snapshot/snapshot.h"
#include "fuzz.h"
#include "memory_folder.h"

enum { FILE_BYTES = 8, MAX_BYTES = 1 << 20 /* one piece of checksum */ };

static void put(const char *dir, const char *name, const void *data, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    KU_ASSERT(ku_os_replace(path, data, bytes) == 0);
}

/* The manifest of a snapshot whose files have 8 bytes each, with the right checksum: refused with
 * one line, or a snapshot whose companions and files are read (and found damaged). */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ku_ckpt c;
    char dir[64], path[128], sums[64];
    if (bytes == 0 || bytes > MAX_BYTES)
        return 0;
    snprintf(dir, sizeof dir, "%s/test-kumi-fuzz-manifest-%d", memory_folder(), (int)getpid());
    for (int i = 0; i < KU_CKPT_N_FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, ku_ckpt_file_name(i));
        *strrchr(path, '/') = '\0';
        KU_ASSERT(ku_os_mkdirs(path) == 0);
        put(dir, ku_ckpt_file_name(i), "01234567", FILE_BYTES);
    }
    int n = snprintf(sums, sizeof sums, "%016x %08zx %016" PRIx64 "\n", 0, bytes,
                     ku_hash64(data, bytes));
    put(dir, "manifest.json", data, bytes);
    put(dir, "manifest.json.xxh3", sums, (size_t)n);
    int status = ku_ckpt_open(dir, &c);
    if (status == KUMI_OK) {
        KU_ASSERT(c.step >= 0 && c.file[KU_CKPT_FILE_MODEL].bytes == FILE_BYTES);
        status = ku_ckpt_check_companions(&c);
        KU_ASSERT(ku_ckpt_check(&c) < 0);
        ku_ckpt_close(&c);
    }
    KU_ASSERT(status == KUMI_OK ||
              (ku_err_get()->text[0] != '\0' && strchr(ku_err_get()->text, '\n') == NULL));
    KU_ASSERT(ku_os_rmtree(dir) == 0);
    return 0;
}
