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
    uint64_t part_bytes; /* taken of the line number + 1 */
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

/*
 * Moves the unread bytes to the start of the buffer and reads more after them.
 *
 *   what   "line" or "word": what must not be longer than KU_LINE_BYTES_MAX
 */
static int fill(struct ku_lines *l, const char *what)
{
    if (l->at > 0)
        memmove(l->buffer, l->buffer + l->at, l->bytes - l->at);
    l->bytes -= l->at;
    l->at = 0;
    if (l->bytes > KU_LINE_BYTES_MAX)
        return KU_ERR(KUMI_EINPUT, "data: %s:%lld: a %s of more than %d bytes; split it",
                      l->file.name, (long long)l->number + 1, what, KU_LINE_BYTES_MAX);
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

static int not_utf8(const char *path, int64_t line, uint64_t at, unsigned char byte)
{
    return KU_ERR(KUMI_EINPUT,
                  "data: %s:%lld: byte %llu (0x%02x) is not valid UTF-8; convert the file to UTF-8",
                  path, (long long)line, (unsigned long long)at + 1, byte);
}

int ku_line_check(const char *path, int64_t line, const void *text, size_t bytes)
{
    const unsigned char *at = text;
    size_t valid = ku_utf8_valid(at, at + bytes);
    return valid == bytes ? KUMI_OK : not_utf8(path, line, valid, at[valid]);
}

int ku_lines_part(struct ku_lines *l, const char **text, size_t *bytes, int *is_end)
{
    size_t n = l->bytes - l->at;
    const char *stop = n ? memchr(l->buffer + l->at, '\n', n) : NULL;
    if (stop == NULL && !l->is_end) {
        KU_TRY(fill(l, "word"));
        stop = l->bytes > n ? memchr(l->buffer + n, '\n', l->bytes - n) : NULL;
    }
    if (l->at == l->bytes)
        return 0;
    const unsigned char *at = (const unsigned char *)l->buffer + l->at;
    n = stop ? (size_t)(stop - l->buffer) + 1 - l->at : l->bytes - l->at;
    *is_end = stop || l->is_end;
    *text = l->buffer + l->at;
    *bytes = ku_utf8_valid(at, at + n);
    if (*bytes == n || (!*is_end && ku_utf8_is_partial(at + *bytes, at + n)))
        return 1;
    return not_utf8(l->file.name, l->number + 1, l->part_bytes + *bytes, at[*bytes]);
}

void ku_lines_take(struct ku_lines *l, size_t bytes)
{
    KU_ASSERT(bytes <= l->bytes - l->at);
    l->at += bytes;
    l->part_bytes += bytes;
    if (bytes && l->buffer[l->at - 1] == '\n') {
        l->number++;
        l->part_bytes = 0;
    }
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
        KU_TRY(fill(l, "line"));
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
