/* SPDX-License-Identifier: Apache-2.0 */
/* links: ckpt tensor base */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/os/os.h"
#include "ckpt/safetensors.h"
#include "fuzz.h"
#include "memory_folder.h"

/* What was accepted: each tensor is found in its own file, and its bytes are there. */
static void read_all(const struct ku_st_set *set)
{
    for (int i = 0; i < set->n; i++)
        for (int j = 0; j < set->file[i].n; j++) {
            const struct ku_st_tensor *t = &set->file[i].tensor[j];
            const struct ku_st *file = NULL;
            char last;
            KU_ASSERT(ku_st_set_find(set, t->name, &file) == t && file == &set->file[i]);
            KU_ASSERT(t->bytes == 0 || ku_st_read_bytes(file, t, t->bytes - 1, &last, 1) == 0);
        }
}

/* An index, a NUL, and files a.safetensors and b.safetensors that begin with their lengths (u16):
 * refused with one line, or a set that agrees with its index. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const name[] = {"model.safetensors.index.json", "a.safetensors",
                                       "b.safetensors"};
    const uint8_t *nul = bytes ? memchr(data, 0, bytes) : NULL, *at = data, *end = data + bytes;
    size_t n = nul ? (size_t)(nul - data) : bytes;
    struct ku_st_set set;
    char dir[64], path[128];
    snprintf(dir, sizeof dir, "%s/test-kumi-fuzz-shards-%d", memory_folder(), (int)getpid());
    KU_ASSERT(ku_os_mkdirs(dir) == 0);
    for (int i = 0; i < 3; i++) {
        if (i > 0 && end - at >= 2) {
            n = (size_t)at[0] | (size_t)at[1] << 8;
            at += 2;
        }
        n = n < (size_t)(end - at) ? n : (size_t)(end - at);
        snprintf(path, sizeof path, "%s/%s", dir, name[i]);
        KU_ASSERT(ku_os_replace(path, at, n) == 0);
        at += n + (i == 0 && nul);
    }
    if (ku_st_set_open(dir, &set) == KUMI_OK) {
        read_all(&set);
        ku_st_set_close(&set);
    } else {
        KU_ASSERT(ku_err_get()->text[0] != '\0' && strchr(ku_err_get()->text, '\n') == NULL);
    }
    KU_ASSERT(ku_os_rmtree(dir) == 0);
    return 0;
}
