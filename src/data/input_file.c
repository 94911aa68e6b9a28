/* SPDX-License-Identifier: Apache-2.0 */
#include "data/input_file.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"

enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };

/* A hint where to get the files that the example configurations use; "" for any other file. */
static const char *page_of(const char *name)
{
    return strstr(name, "small_parallel_enja")
               ? " (docs/reference/translation.md tells where to get it)"
           : strstr(name, "tinyshakespeare") ? " (docs/reference/text.md tells where to get it)"
                                             : "";
}

int ku_file_open(const char *name, const char *what, struct ku_file *f)
{
    struct stat st;
    const char *fault = NULL;
    /* O_NONBLOCK: a pipe without a writer gives an error instead of blocking. */
    int fd = ku_os_open(name, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0 || ku_os_fstat(fd, &st) < 0)
        fault = ku_os_why();
    else if (!S_ISREG(st.st_mode))
        fault = S_ISDIR(st.st_mode) ? "a directory" : "not a regular file";
    else if (st.st_size == 0)
        fault = "empty";
    int status = KUMI_OK;
    if (fault)
        status = KU_ERR(KUMI_EINPUT, "data: %s: %s; give a file with %s%s", name, fault, what,
                        fd < 0 ? page_of(name) : "");
    char *own = fault ? NULL : ku_strdup(name);
    if (!own) {
        if (fd >= 0)
            ku_os_close(fd);
        return fault ? status : KUMI_ENOMEM;
    }
    *f = (struct ku_file){own, fd, (uint64_t)st.st_size};
    return KUMI_OK;
}

void ku_file_park(struct ku_file *f)
{
    if (f->name && f->fd >= 0)
        ku_os_close(f->fd);
    f->fd = -1;
}

void ku_file_close(struct ku_file *f)
{
    ku_file_park(f);
    ku_free(f->name);
    *f = (struct ku_file){.fd = -1};
}

int ku_file_read(const struct ku_file *f, uint64_t at, void *data, size_t bytes, char *why,
                 size_t why_bytes)
{
    int fd = f->fd >= 0 ? f->fd : ku_os_open(f->name, O_RDONLY | O_NONBLOCK, 0);
    ssize_t n = fd < 0 ? -1 : ku_os_pread_full(fd, data, bytes, (off_t)at);
    int status = n < 0 || (size_t)n < bytes ? KUMI_EINPUT : KUMI_OK;
    if (n < 0)
        snprintf(why, why_bytes, "byte %llu: %s; check the storage", (unsigned long long)at,
                 ku_os_why());
    else if (status < 0)
        snprintf(why, why_bytes,
                 "ends at byte %llu, %llu of %zu bytes are missing; copy it again, and do not "
                 "change it while it is in use",
                 (unsigned long long)at + (uint64_t)n, (unsigned long long)(bytes - (size_t)n),
                 bytes);
    if (fd >= 0 && fd != f->fd)
        ku_os_close(fd);
    return status;
}

int ku_file_get(const struct ku_file *f, uint64_t at, void *data, size_t bytes)
{
    char why[200];
    int status = ku_file_read(f, at, data, bytes, why, sizeof why);
    return status < 0 ? KU_ERR(status, "data: %s: %s", f->name, why) : status;
}

int ku_file_identify(const struct ku_file *f, struct ku_sha256 *h)
{
    unsigned char block[SAMPLE_BYTES];
    uint64_t n_blocks = (f->bytes + SAMPLE_BYTES - 1) / SAMPLE_BYTES;
    uint64_t n = n_blocks < SAMPLES ? n_blocks : SAMPLES;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t nth =
            n == 1 ? 0 : (n_blocks - 1) / (n - 1) * i + (n_blocks - 1) % (n - 1) * i / (n - 1);
        uint64_t at = nth * SAMPLE_BYTES, left = f->bytes - at;
        size_t part = left < SAMPLE_BYTES ? (size_t)left : SAMPLE_BYTES;
        KU_TRY(ku_file_get(f, at, block, part));
        ku_sha256_update(h, block, part);
    }
    return KUMI_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int ku_input_glob(const char *pattern, int (*each)(void *ctx, const char *name), void *ctx)
{
    struct stat st;
    glob_t found = {0};
    if (!strpbrk(pattern, "*?[") || ku_os_stat(pattern, &st) == 0)
        return each(ctx, pattern);
    int failed = glob(pattern, GLOB_NOSORT, NULL, &found), status = KUMI_OK;
    if (failed == GLOB_NOSPACE)
        status = KU_ERR(
            KUMI_ENOMEM,
            "data: %s: not enough memory for the list of files; give a narrower pattern", pattern);
    else if (failed || found.gl_pathc == 0)
        status = KU_ERR(KUMI_EINPUT, "data: %s: no file matches; correct the pattern", pattern);
    else
        qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, by_name);
    for (size_t i = 0; status == KUMI_OK && i < found.gl_pathc; i++)
        status = each(ctx, found.gl_pathv[i]);
    globfree(&found);
    return status;
}

int ku_input_cache(const char *folder, struct ku_cache *out)
{
    *out = (struct ku_cache){.path = NULL};
    if (folder == NULL)
        return ku_env_cache(&out->path);
    out->path = ku_strdup(folder);
    return out->path ? KUMI_OK : KUMI_ENOMEM;
}
