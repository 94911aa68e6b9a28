/* SPDX-License-Identifier: Apache-2.0 */
#include "data/text/token_file.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"

#include <endian.h>
#include <string.h>

/* From llm.c's dev/data/data_common.py: "gpt-2" and "llama-3". */
const struct ku_token_form ku_token_forms[KU_N_TOKEN_FORMS] = {{20240520, 1, 2}, {20240801, 7, 4}};

enum { BLOCK_BYTES = 1 << 20 };

struct ku_token_file {
    const struct ku_token_form *form;
    char *path, *temporary;
    int fd;
    int64_t count;
    unsigned char *block;
    size_t bytes; /* used bytes of the block */
};

static int failed(const struct ku_token_file *f)
{
    return KU_ERR(ku_os_status(KUMI_ESTORAGE), "tokens: %s: %s", f->path, ku_os_why());
}

static int open_file(struct ku_token_file *f, int overwrite)
{
    static const char header[KU_TOKEN_HEADER_BYTES];
    struct stat st;
    if (f->path == NULL || f->block == NULL)
        return KUMI_ENOMEM;
    if (!overwrite && ku_os_stat(f->path, &st) == 0)
        return KU_ERR(KUMI_EBUSY, "tokens: %s: the file exists; --overwrite replaces it", f->path);
    ku_os_temporary_clean(f->path);
    f->fd = ku_os_temporary(f->path, 0, &f->temporary);
    return f->fd < 0 || ku_os_write_full(f->fd, header, sizeof header) < 0 ? failed(f) : KUMI_OK;
}

int ku_token_file_create(const char *path, int overwrite, int64_t vocab_count,
                         struct ku_token_file **out)
{
    struct ku_token_file *f = ku_calloc(1, sizeof *f);
    if (f == NULL)
        return KUMI_ENOMEM;
    *f = (struct ku_token_file){.form = &ku_token_forms[vocab_count > 65536],
                                .fd = -1,
                                .path = ku_strdup(path),
                                .block = ku_malloc(BLOCK_BYTES)};
    int status = open_file(f, overwrite);
    if (status < 0)
        ku_token_file_destroy(f);
    else
        *out = f;
    return status;
}

static int flush(struct ku_token_file *f)
{
    int result = ku_os_write_full(f->fd, f->block, f->bytes);
    f->bytes = 0;
    return result < 0 ? failed(f) : KUMI_OK;
}

int ku_token_file_add(struct ku_token_file *f, const uint32_t *id, size_t count)
{
    const size_t width = (size_t)f->form->token_bytes;
    if (count > (size_t)(INT32_MAX - f->count))
        return KU_ERR(
            KUMI_EINVAL,
            "tokens: %s: more than %d tokens, the max of a file; split the text into several files",
            f->path, INT32_MAX);
    for (size_t i = 0; i < count; i++) {
        uint16_t half = htole16((uint16_t)id[i]);
        uint32_t whole = htole32(id[i]);
        memcpy(f->block + f->bytes, width == 2 ? (const void *)&half : &whole, width);
        f->bytes += width;
        if (f->bytes == BLOCK_BYTES)
            KU_TRY(flush(f));
    }
    f->count += (int64_t)count;
    return KUMI_OK;
}

int ku_token_file_commit(struct ku_token_file *f, int64_t *count)
{
    const int32_t header[3] = {(int32_t)htole32((uint32_t)f->form->magic),
                               (int32_t)htole32((uint32_t)f->form->version),
                               (int32_t)htole32((uint32_t)f->count)};
    KU_TRY(flush(f));
    if (ku_os_pwrite_full(f->fd, header, sizeof header, 0) < 0 || ku_os_fsync(f->fd) < 0 ||
        ku_os_rename(f->temporary, f->path) < 0)
        return failed(f);
    ku_free(f->temporary);
    f->temporary = NULL;
    *count = f->count;
    return KUMI_OK;
}

void ku_token_file_destroy(struct ku_token_file *f)
{
    if (f == NULL)
        return;
    if (f->temporary)
        ku_os_unlink(f->temporary);
    if (f->fd >= 0)
        ku_os_close(f->fd);
    ku_free(f->temporary);
    ku_free(f->path);
    ku_free(f->block);
    ku_free(f);
}
