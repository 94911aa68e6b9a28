/* SPDX-License-Identifier: Apache-2.0 */
#include "data/lines.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/utf8.h"
#include "data/input_file.h"

#include <string.h>

enum { READ_BYTES = 1 << 18 };

struct ku_lines {
    struct ku_file file;
    char *buffer;
    int keep_ends, is_end;
    size_t at, bytes, cap; /* of the buffer; [at, bytes) is read but not yet returned */
    uint64_t read_bytes;
    int64_t number;
};

int ku_lines_open(const char *path, int keep_ends, struct ku_lines **out)
{
    struct ku_lines *l = ku_calloc(1, sizeof *l);
    if (!l)
        return KUMI_ENOMEM;
    l->keep_ends = keep_ends;
    int status = ku_file_open(path, "text or tokens", &l->file);
    if (status < 0) {
        ku_lines_close(l);
        return status;
    }
    *out = l;
    return KUMI_OK;
}

void ku_lines_close(struct ku_lines *l)
{
    if (!l)
        return;
    ku_file_close(&l->file);
    ku_free(l->buffer);
    ku_free(l);
}

/* Moves the unread bytes to the start of the buffer and reads more after them. */
static int fill(struct ku_lines *l)
{
    if (l->at > 0)
        memmove(l->buffer, l->buffer + l->at, l->bytes - l->at);
    l->bytes -= l->at;
    l->at = 0;
    if (l->bytes > KU_LINE_BYTES_MAX)
        return KU_ERR(KUMI_EINPUT, "data: %s:%lld: a line of more than %d bytes; split it",
                      l->file.name, (long long)l->number + 1, KU_LINE_BYTES_MAX);
    if (l->cap - l->bytes < READ_BYTES) {
        char *buffer = ku_realloc(l->buffer, 2 * l->bytes + READ_BYTES, 1);
        if (!buffer)
            return KUMI_ENOMEM;
        l->buffer = buffer;
        l->cap = 2 * l->bytes + READ_BYTES;
    }
    ssize_t n = ku_os_read(l->file.fd, l->buffer + l->bytes, l->cap - l->bytes);
    if (n < 0)
        return KU_ERR(KUMI_EINPUT, "data: %s: byte %llu: %s; check the storage", l->file.name,
                      (unsigned long long)l->read_bytes, ku_os_why());
    l->is_end = n == 0;
    l->bytes += (size_t)n;
    l->read_bytes += (uint64_t)n;
    return KUMI_OK;
}

int ku_line_check(const char *path, int64_t line, const void *text, size_t bytes)
{
    const unsigned char *at = text;
    size_t valid = ku_utf8_valid(at, at + bytes);
    if (valid == bytes)
        return KUMI_OK;
    return KU_ERR(KUMI_EINPUT,
                  "data: %s:%lld: byte %zu (0x%02x) is not valid UTF-8; convert the file to UTF-8",
                  path, (long long)line, valid + 1, at[valid]);
}

int ku_lines_next(struct ku_lines *l, const char **text, size_t *bytes)
{
    char *stop;
    for (size_t seen = 0;;) {
        size_t left = l->bytes - l->at - seen;
        stop = left ? memchr(l->buffer + l->at + seen, '\n', left) : NULL;
        if (stop)
            break;
        seen += left;
        if (l->is_end && seen == 0)
            return 0;
        if (l->is_end) {
            stop = l->buffer + l->bytes;
            break;
        }
        KU_TRY(fill(l));
    }
    char *line = l->buffer + l->at;
    size_t n = (size_t)(stop - line), ends = stop < l->buffer + l->bytes;
    l->number++;
    l->at += n + ends;
    KU_TRY(ku_line_check(l->file.name, l->number, line, n));
    if (l->keep_ends)
        n += ends;
    else if (n > 0 && line[n - 1] == '\r')
        n--;
    *text = line;
    *bytes = n;
    return 1;
}

int64_t ku_lines_number(const struct ku_lines *l)
{
    return l->number;
}

uint64_t ku_lines_done_bytes(const struct ku_lines *l)
{
    return l->read_bytes - (l->bytes - l->at);
}

uint64_t ku_lines_total_bytes(const struct ku_lines *l)
{
    return l->file.bytes;
}
