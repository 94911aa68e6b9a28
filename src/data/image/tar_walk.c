/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/tar.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    BLOCK = 512,
    NAME_BYTES = 1024,
    EXTENDED_MAX = 1 << 16, /* of a pax or long-name member, which hold names only */
    LABEL_DIGITS = 10
};

/* A member's header, combined with the extended headers before it. */
struct member {
    uint64_t header_at, at, bytes;
    char type, name[NAME_BYTES];
};

/* The sample whose members are being read. */
struct sample {
    char key[NAME_BYTES];
    int has_image, has_label;
    struct ku_tar_entry entry;
};

struct walk {
    const struct ku_file *f;
    const struct ku_progress *progress;
    struct ku_tar_index *index;
    struct sample now;
    unsigned char block[2 * BLOCK]; /* a header and the next block: enough for a small member */
    size_t block_bytes;
    char *extended; /* EXTENDED_MAX + 1 bytes */
    char long_name[NAME_BYTES];
    uint64_t long_bytes;
    int has_long_bytes;
};

static int refuse(const struct walk *w, uint64_t at, const char *why)
{
    return KU_ERR(KUMI_EINPUT, "data: %s: byte %llu: %s", w->f->name, (unsigned long long)at, why);
}

/* Parses octal digits with blanks around them, or a base-256 number (first byte 0x80). */
static int number_of(const unsigned char *field, int n, uint64_t *out)
{
    uint64_t v = 0;
    int i = 0;
    if (field[0] == 0x80) {
        for (i = 1; i < n; i++) {
            if (v >> 55)
                return -1;
            v = v << 8 | field[i];
        }
        *out = v;
        return 0;
    }
    while (i < n && field[i] == ' ')
        i++;
    for (; i < n && field[i] >= '0' && field[i] <= '7'; i++)
        v = v << 3 | (uint64_t)(field[i] - '0');
    for (; i < n; i++)
        if (field[i] != ' ' && field[i] != '\0')
            return -1;
    *out = v;
    return 0;
}

static bool has_checksum(const unsigned char *block)
{
    uint64_t sum = 0, stated;
    for (int i = 0; i < BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : block[i];
    return number_of(block + 148, 8, &stated) == 0 && stated == sum;
}

/* Joins ustar's prefix and name; a full field has no terminating zero. */
static void ustar_name(const unsigned char *b, char *name)
{
    const char *text = (const char *)b;
    int has_prefix = memcmp(b + 257, "ustar\0", 6) == 0 && b[345] != '\0';
    snprintf(name, NAME_BYTES, "%.*s%s%.*s", has_prefix ? (int)strnlen(text + 345, 155) : 0,
             text + 345, has_prefix ? "/" : "", (int)strnlen(text, 100), text);
}

static bool is_zero(const unsigned char *b)
{
    for (int i = 0; i < BLOCK; i++)
        if (b[i])
            return 0;
    return 1;
}

/* Reads the header at `at` into w->block; returns 1, 0 at the end of the archive, or an error. */
static int read_header(struct walk *w, uint64_t at, struct member *m)
{
    uint64_t left = w->f->bytes - at;
    if (left < BLOCK)
        return refuse(w, at, "the archive's end marker is missing: it is truncated");
    w->block_bytes = left < sizeof w->block ? (size_t)left : sizeof w->block;
    KU_TRY(ku_file_get(w->f, at, w->block, w->block_bytes));
    if (is_zero(w->block))
        return 0;
    if (!has_checksum(w->block))
        return refuse(w, at,
                      "not a tar header (wrong checksum); copy the shard again or unpack it");
    *m = (struct member){.header_at = at, .at = at + BLOCK, .type = (char)w->block[156]};
    if (number_of(w->block + 124, 12, &m->bytes) < 0)
        return refuse(w, at, "tar header: the length is not a number");
    ustar_name(w->block, m->name);
    return 1;
}

/* Parses pax records "27 path=a/b.jpg\n": length of the record, key, value. */
static int read_pax(struct walk *w, const struct member *m)
{
    char *at = w->extended, *end = at + m->bytes;
    while (at < end && *at != '\0') {
        char *blank, *value, *stop;
        unsigned long n = strtoul(at, &blank, 10); /* starts with a digit: blank is in the record */
        if (*at < '1' || *at > '9' || n < 5 || n > (size_t)(end - at) || *blank != ' ' ||
            at[n - 1] != '\n' || !(value = memchr(blank, '=', n - (size_t)(blank - at))))
            return refuse(w, m->header_at, "pax header: not a record of length, key and value");
        at[n - 1] = '\0';
        *value++ = '\0';
        if (strcmp(blank + 1, "path") == 0) {
            snprintf(w->long_name, sizeof w->long_name, "%s", value);
        } else if (strcmp(blank + 1, "size") == 0) {
            w->long_bytes = strtoull(value, &stop, 10);
            w->has_long_bytes = 1;
            if (*value < '0' || *value > '9' || *stop)
                return refuse(w, m->header_at, "pax header: the length is not a number");
        }
        at += n;
    }
    return KUMI_OK;
}

/* Reads an extended header, which describes the next member. */
static int read_extended(struct walk *w, const struct member *m)
{
    if (m->bytes > EXTENDED_MAX)
        return refuse(w, m->header_at, "tar header: an extension of more than 64 KiB");
    KU_TRY(ku_file_get(w->f, m->at, w->extended, (size_t)m->bytes));
    w->extended[m->bytes] = '\0';
    if (m->type == 'x')
        return read_pax(w, m);
    snprintf(w->long_name, sizeof w->long_name, "%s", w->extended);
    return KUMI_OK;
}

static int end_sample(struct walk *w, uint64_t at)
{
    struct sample *s = &w->now;
    char why[128];
    if (s->has_image != s->has_label) {
        snprintf(why, sizeof why, "%.60s: %s without %s", s->key,
                 s->has_image ? "an image" : "a .cls", s->has_image ? "a .cls" : "an image");
        return refuse(w, at, why);
    }
    if (s->has_image) {
        KU_TRY(KU_GROW(&w->index->entry, w->index->n, &w->index->cap));
        w->index->entry[w->index->n++] = s->entry;
    }
    s->key[0] = '\0';
    s->has_image = s->has_label = 0;
    return KUMI_OK;
}

/* Parses a decimal number, possibly with blanks after it. */
static int read_label(struct walk *w, const struct member *m)
{
    const char *text = (const char *)w->block + BLOCK;
    size_t i = 0, n = (size_t)m->bytes;
    int64_t v = 0;
    if (n > BLOCK || n > w->block_bytes - BLOCK)
        return refuse(w, m->at, "a .cls file of more than 512 bytes; it must hold a class number");
    for (; i < n && i < LABEL_DIGITS && text[i] >= '0' && text[i] <= '9'; i++)
        v = v * 10 + text[i] - '0';
    size_t digits = i;
    while (i < n && (text[i] == '\n' || text[i] == ' ' || text[i] == '\r'))
        i++;
    if (digits == 0 || i < n || v > INT32_MAX)
        return refuse(w, m->at, "a .cls file without a class number (0, 1, 2, …)");
    w->now.entry.label = (int32_t)v;
    return KUMI_OK;
}

static int add_member(struct walk *w, const struct member *m)
{
    struct sample *s = &w->now;
    const char *slash = strrchr(m->name, '/'), *file = slash ? slash + 1 : m->name;
    const char *dot = strchr(file, '.');
    if (!dot || dot == file)
        return KUMI_OK;
    size_t n = (size_t)(dot - m->name);
    if (strlen(s->key) != n || memcmp(s->key, m->name, n) != 0) {
        KU_TRY(end_sample(w, m->header_at));
        snprintf(s->key, sizeof s->key, "%.*s", (int)n, m->name);
    }
    int image = ku_image_is_ending(dot + 1), label = strcasecmp(dot + 1, "cls") == 0;
    if (!image && !label)
        return KUMI_OK;
    if (m->type != '0' && m->type != '\0' && m->type != '7')
        return refuse(w, m->header_at,
                      "a sample is a link or a sparse file; write the shard with plain files");
    if (m->bytes == 0)
        return refuse(w, m->header_at, "an empty file");
    if (image ? s->has_image++ : s->has_label++)
        return refuse(w, m->header_at, "a second file of this kind in one sample");
    if (label)
        return read_label(w, m);
    if (m->bytes > KU_IMAGE_BYTES_MAX)
        return refuse(w, m->header_at, "an image of more than 192 MiB");
    s->entry.at = m->at;
    s->entry.bytes = (uint32_t)m->bytes;
    return KUMI_OK;
}

static int walk_all(struct walk *w)
{
    uint64_t at = 0;
    for (;;) {
        struct member m;
        int is_more = read_header(w, at, &m);
        if (is_more < 0)
            return is_more;
        if (!is_more)
            return end_sample(w, at);
        int is_extended = m.type == 'x' || m.type == 'L';
        if (!is_extended && w->has_long_bytes)
            m.bytes = w->long_bytes;
        if (m.bytes > w->f->bytes - m.at)
            return refuse(w, at, "a file extends past the end of the archive: it is truncated");
        if (is_extended) {
            KU_TRY(read_extended(w, &m));
        } else {
            if (w->long_name[0])
                memcpy(m.name, w->long_name, sizeof m.name);
            w->long_name[0] = '\0';
            w->has_long_bytes = 0;
            if (m.type != '5' && m.type != 'g' && m.type != 'K')
                KU_TRY(add_member(w, &m));
        }
        at = m.at + (m.bytes + BLOCK - 1) / BLOCK * BLOCK;
        if (at > w->f->bytes)
            at = w->f->bytes;
        KU_TRY(ku_progress_call(w->progress, w->f->name, at, w->f->bytes));
    }
}

int ku_tar_walk(const struct ku_file *f, const struct ku_progress *progress,
                struct ku_tar_index *out)
{
    struct walk *w = ku_calloc(1, sizeof *w);
    if (!w)
        return KUMI_ENOMEM;
    w->f = f;
    w->progress = progress;
    w->index = out;
    w->extended = ku_malloc(EXTENDED_MAX + 1);
    int status = w->extended ? walk_all(w) : KUMI_ENOMEM;
    if (status == KUMI_OK && out->n == 0)
        status = KU_ERR(KUMI_EINPUT, "data: %s: no sample (KEY.jpg and KEY.cls) in the archive",
                        f->name);
    ku_free(w->extended);
    ku_free(w);
    return status;
}
