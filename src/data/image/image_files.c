/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/store.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "data/input_file.h"

#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MAX = 1 << 20, NAME_MAX_BYTES = 4096, BRACES_MAX = 16 };
/*
 * A file is identified by its length and 64 of its 4 KiB blocks, so that opening does not read all
 * data.
 */
enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };

void ku_files_fini(struct ku_files *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        ku_free(f->name[i]);
    ku_free(f->name);
    *f = (struct ku_files){0};
}

int ku_files_add_name(struct ku_files *f, const char *name)
{
    if (f->n == FILES_MAX)
        return KU_ERR(KUMI_EINPUT, "data: %s: more than %d files; merge some", name, FILES_MAX);
    KU_TRY(KU_GROW(&f->name, f->n, &f->cap));
    f->name[f->n] = ku_strdup(name);
    if (!f->name[f->n])
        return KUMI_ENOMEM;
    f->n++;
    return KUMI_OK;
}

static int add_match(void *files, const char *name)
{
    return ku_files_add_name(files, name);
}

static int expand(struct ku_files *f, const char *pattern, int depth);

/* Expands the pattern with one choice in place of the braces [open, close]. */
static int expand_one(struct ku_files *f, const char *pattern, const char *open, const char *close,
                      const char *choice, size_t bytes, int depth)
{
    char name[NAME_MAX_BYTES];
    int n = snprintf(name, sizeof name, "%.*s%.*s%s", (int)(open - pattern), pattern, (int)bytes,
                     choice, close + 1);
    if (n < 0 || (size_t)n >= sizeof name)
        return KU_ERR(KUMI_EINPUT, "data: %.60s…: longer than %d bytes", pattern,
                      NAME_MAX_BYTES - 1);
    return expand(f, name, depth + 1);
}

/*
 * Parses "000..147" as bash and WebDataset do; *width is the width of the first number. Returns 1
 * if it is a range.
 */
static int parse_range(const char *open, const char *close, long *from, long *to, int *width)
{
    char *end, *stop;
    if (open[1] < '0' || open[1] > '9')
        return 0;
    *from = strtol(open + 1, &end, 10);
    *width = (int)(end - open - 1);
    if (*width > 9 || strncmp(end, "..", 2) != 0 || end[2] < '0' || end[2] > '9')
        return 0;
    *to = strtol(end + 2, &stop, 10);
    return stop == close && stop - end <= 11;
}

static int expand(struct ku_files *f, const char *pattern, int depth)
{
    const char *open = strchr(pattern, '{'), *close = open ? strchr(open, '}') : NULL;
    struct stat st;
    if (!close || ku_os_stat(pattern, &st) == 0)
        return ku_input_glob(pattern, add_match, f);
    long from, to;
    int width;
    if (depth == BRACES_MAX)
        return KU_ERR(KUMI_EINPUT, "data: %s: more than %d braces", pattern, BRACES_MAX);
    if (parse_range(open, close, &from, &to, &width)) {
        if (from > to || to - from >= FILES_MAX)
            return KU_ERR(KUMI_EINPUT, "data: %s: %ld to %ld; give ascending numbers, at most %d",
                          pattern, from, to, FILES_MAX);
        for (long i = from; i <= to; i++) {
            char number[32];
            int n = snprintf(number, sizeof number, "%0*ld", width, i);
            KU_TRY(expand_one(f, pattern, open, close, number, (size_t)n, depth));
        }
        return KUMI_OK;
    }
    for (const char *at = open + 1;; at++) {
        size_t n = strcspn(at, ",}");
        KU_TRY(expand_one(f, pattern, open, close, at, n, depth));
        at += n;
        if (*at == '}')
            return KUMI_OK;
    }
}

int ku_files_add(struct ku_files *f, const char *const *pattern, int n)
{
    for (int i = 0; i < n; i++)
        KU_TRY(expand(f, pattern[i], 0));
    return KUMI_OK;
}

int ku_store_opened(struct ku_image_store *s, int status, struct ku_image_store **out)
{
    if (status < 0)
        s->ops->close(s);
    else
        *out = s;
    return status;
}

int ku_file_open(const char *name, const char *what, int keep_open, struct ku_file *f)
{
    struct stat st;
    const char *fault = NULL;
    /* O_NONBLOCK: a pipe without a writer gives an error instead of blocking. */
    int fd = ku_os_open(name, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0 || ku_os_fstat(fd, &st) < 0)
        fault = ku_os_why();
    else if (!S_ISREG(st.st_mode))
        fault = S_ISDIR(st.st_mode) ? "a folder" : "not a regular file";
    else if (st.st_size == 0)
        fault = "empty";
    if (fault) {
        int status = KU_ERR(KUMI_EINPUT, "data: %s: %s; give a file with %s", name, fault, what);
        if (fd >= 0)
            ku_os_close(fd);
        return status;
    }
    *f = (struct ku_file){ku_strdup(name), fd, (uint64_t)st.st_size};
    if (!keep_open || !f->name) {
        ku_os_close(fd);
        f->fd = -1;
    }
    return f->name ? KUMI_OK : KUMI_ENOMEM;
}

void ku_file_close(struct ku_file *f)
{
    if (f->name && f->fd >= 0)
        ku_os_close(f->fd);
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
        snprintf(why, why_bytes, "ends at byte %llu, %llu of %zu bytes are missing; copy it again",
                 (unsigned long long)at + (uint64_t)n, (unsigned long long)(bytes - (size_t)n),
                 bytes);
    if (fd >= 0 && fd != f->fd)
        ku_os_close(fd);
    return status;
}

int ku_file_get(const struct ku_file *f, uint64_t at, void *data, size_t bytes)
{
    char why[160];
    int status = ku_file_read(f, at, data, bytes, why, sizeof why);
    return status < 0 ? KU_ERR(status, "data: %s: %s", f->name, why) : status;
}

int ku_file_identify(const struct ku_file *f, struct ku_sha256 *h)
{
    unsigned char block[SAMPLE_BYTES];
    uint64_t bytes = htole64(f->bytes), n_blocks = (f->bytes + SAMPLE_BYTES - 1) / SAMPLE_BYTES;
    uint64_t n = n_blocks < SAMPLES ? n_blocks : SAMPLES;
    ku_sha256_update(h, &bytes, sizeof bytes);
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
