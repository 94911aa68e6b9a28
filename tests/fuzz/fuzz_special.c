/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include "base/err.h"
#include "base/os/os.h"
#include "data/tokenizer/tokenizer.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Special tokens beside the small vocabulary. An input is tokenizer_config.json, a NUL,
 * special_tokens_map.json, a NUL, added_tokens.json, a NUL, and a text: refused, or the text comes
 * back, but for the blanks of add_prefix_space. An empty part is no file.
 */
#define SMALL KUMI_SOURCE_DIR "/tests/fixtures/tokenizer/small/"
static char folder[] = "/tmp/kumi-fuzz-XXXXXX";

static void remove_folder(void)
{
    ku_os_rmtree(folder);
}

static void make_path(char *path, size_t bytes, const char *name)
{
    snprintf(path, bytes, "%s/%s", folder, name);
}

static void make_folder(void)
{
    static int is_made;
    char path[64];
    if (is_made++)
        return;
    KU_ASSERT(mkdtemp(folder) != NULL && atexit(remove_folder) == 0);
    make_path(path, sizeof path, "vocab.json");
    KU_ASSERT(symlink(SMALL "encoder.json", path) == 0);
    make_path(path, sizeof path, "merges.txt");
    KU_ASSERT(symlink(SMALL "vocab.bpe", path) == 0);
}

static void put(const char *name, const uint8_t *data, size_t bytes)
{
    char path[64];
    make_path(path, sizeof path, name);
    unlink(path);
    FILE *f = bytes ? fopen(path, "w") : NULL;
    if (f) {
        KU_ASSERT(fwrite(data, 1, bytes, f) == bytes);
        fclose(f);
    }
}

static void check(struct ku_tokenizer *t, const uint8_t *text, size_t bytes)
{
    struct ku_tokens ids = {0};
    struct ku_str back = {0};
    if (ku_tokenizer_encode(t, text, bytes, &ids) == 0) {
        KU_ASSERT(ku_tokenizer_decode(t, ids.id, ids.count, &back) == 0);
        KU_ASSERT(back.bytes >= bytes);
    }
    ku_tokens_fini(&ids);
    ku_str_fini(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const file[] = {"tokenizer_config.json", "special_tokens_map.json",
                                       "added_tokens.json"};
    struct ku_tokenizer *t = NULL;
    make_folder();
    for (int i = 0; i < 3; i++) {
        const uint8_t *nul = bytes ? memchr(data, 0, bytes) : NULL;
        size_t n = nul ? (size_t)(nul - data) : bytes;
        put(file[i], data, n);
        data += nul ? n + 1 : n;
        bytes -= nul ? n + 1 : n;
    }
    if (ku_tokenizer_open(folder, &t) == 0)
        check(t, data, bytes);
    ku_tokenizer_destroy(t);
    return 0;
}
