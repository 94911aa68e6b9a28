/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verified reads. Trust starts at the manifest:
 *
 *     manifest.json.xxh3 -> manifest.json -> each FILE.xxh3 -> pieces of FILE (header first)
 */
#include "ckpt/snapshot/region_reader.h"

#include <fcntl.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/tick.h"
#include "ckpt/read_ahead.h"

/* Turns an error of a snapshot's file into ENOCKPT (damaged snapshot), except ENOMEM. */
static int as_damage(int status)
{
    const struct kumi_error e = *ku_err_get();
    return status == KUMI_ENOMEM ? status
                                 : KU_ERR(KUMI_ENOCKPT, "checkpoint: damaged: %.400s", e.text);
}

static int unreadable(const char *path)
{
    return KU_ERR(ku_os_status(KUMI_ENOCKPT), "checkpoint: %s: %s", path, ku_os_why());
}

/* Loads PATH.xxh3 and checks it against `sum`, if not NULL. */
static int load_sums(const char *path, uint64_t file_bytes, const uint64_t *sum,
                     struct ku_piece **piece, int64_t *n)
{
    char *sums_path = ku_asprintf("%s.xxh3", path), *text = NULL;
    size_t bytes, max_bytes;
    int status = KUMI_OK;
    if (sums_path == NULL)
        return KUMI_ENOMEM;
    /* a piece has at least one byte, so the list has at most 43 times the file's size */
    max_bytes = file_bytes < SIZE_MAX / KU_PIECE_LINE_BYTES
                    ? (size_t)file_bytes * KU_PIECE_LINE_BYTES
                    : SIZE_MAX;
    if (ku_os_slurp(sums_path, max_bytes, &text, &bytes) < 0)
        status = unreadable(sums_path);
    else if (sum != NULL && ku_hash64(text, bytes) != *sum)
        status =
            KU_ERR(KUMI_ENOCKPT,
                   "checkpoint: damaged: %s: its checksum is %016llx, the manifest says "
                   "%016llx",
                   sums_path, (unsigned long long)ku_hash64(text, bytes), (unsigned long long)*sum);
    else if ((status = ku_pieces_parse(sums_path, text, bytes, file_bytes, piece, n)) < 0)
        status = as_damage(status);
    ku_free(text);
    ku_free(sums_path);
    return status;
}

int64_t ku_scan_piece_at(const struct ku_scan *s, uint64_t at)
{
    int64_t i = ku_pieces_first(s->piece, s->n_pieces, at);
    return i < s->n_pieces && s->piece[i].at == at ? i : -1;
}

const char *ku_scan_what(const struct ku_scan *s, uint64_t at)
{
    if (!s->is_st)
        return "its text";
    const struct ku_st_tensor *t = s->has_st ? ku_st_at(&s->st, at) : NULL;
    return t != NULL ? t->name : "the header";
}

int ku_scan_damaged(const struct ku_scan *s, const struct ku_piece *p)
{
    return KU_ERR(KUMI_ENOCKPT,
                  "checkpoint: damaged: %s: %.120s: bytes %llu to %llu do not match their checksum",
                  s->path, ku_scan_what(s, p->at), (unsigned long long)p->at,
                  (unsigned long long)(p->at + p->bytes));
}

static int check_header(void *ctx, const struct ku_piece *p, const unsigned char *data, int is_good)
{
    struct ku_scan *s = ctx;
    (void)data;
    return is_good ? KUMI_OK : ku_scan_damaged(s, p);
}

/* Verifies the checksums of the header's pieces before the header is parsed. The header's length is
 * needed for that: it is read first, and verified with them. */
static int open_header(struct ku_scan *s)
{
    unsigned char word[8];
    uint64_t header_bytes = 0;
    if (ku_os_pread_full(s->fd, word, sizeof word, 0) != (ssize_t)sizeof word)
        return unreadable(s->path);
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | word[i];
    int64_t n = 0;
    while (n < s->n_pieces && s->piece[n].at < header_bytes && s->piece[n].at < s->bytes)
        n++;
    /* the scan reads whole chunks: limit it to the header's pieces */
    int64_t all = s->n_pieces;
    s->n_pieces = n < 1 ? (all > 0) : n;
    const struct ku_piece *last = s->n_pieces ? &s->piece[s->n_pieces - 1] : NULL;
    int status = last ? ku_scan_run(s, 0, last->at / KU_CHUNK_BYTES + 1, check_header, s) : KUMI_OK;
    s->n_pieces = all;
    KU_TRY(status);
    status = ku_st_open(s->path, &s->st);
    s->has_st = status == KUMI_OK;
    return status < 0 ? as_damage(status) : KUMI_OK;
}

int ku_scan_open(const struct ku_ckpt *c, int file, struct ku_scan *out)
{
    struct ku_scan s = {
        .name = ku_ckpt_file_name(file), .fd = -1, .direct_fd = -1, .bytes = c->file[file].bytes};
    s.is_st = file != KU_CKPT_FILE_CONFIG;
    struct stat info;
    int status = KUMI_ENOMEM;
    s.path = ku_asprintf("%s/%s", c->path, s.name);
    if (s.path == NULL)
        goto out;
    KU_TRY_OUT(load_sums(s.path, s.bytes, &c->file[file].sum, &s.piece, &s.n_pieces));
    s.fd = ku_os_open(s.path, O_RDONLY, 0);
    KU_TRY_OUT(s.fd < 0 || ku_os_fstat(s.fd, &info) < 0 ? unreadable(s.path) : KUMI_OK);
    if ((uint64_t)info.st_size != s.bytes) {
        status = KU_ERR(KUMI_ENOCKPT, "checkpoint: damaged: %s: %lld bytes, the manifest says %llu",
                        s.path, (long long)info.st_size, (unsigned long long)s.bytes);
        goto out;
    }
    s.direct_fd = ku_os_open(s.path, O_RDONLY | O_DIRECT, 0);
    if (s.is_st)
        KU_TRY_OUT(open_header(&s));
    *out = s;
    return KUMI_OK;
out:
    ku_scan_close(&s);
    return status;
}

void ku_scan_close(struct ku_scan *s)
{
    if (s->has_st)
        ku_st_close(&s->st);
    if (s->path != NULL && s->fd >= 0)
        ku_os_close(s->fd);
    if (s->path != NULL && s->direct_fd >= 0)
        ku_os_close(s->direct_fd);
    ku_free(s->piece);
    ku_free(s->path);
    *s = (struct ku_scan){.fd = -1, .direct_fd = -1};
}

int ku_scan_run(struct ku_scan *s, uint64_t first, uint64_t end,
                int (*visit)(void *ctx, const struct ku_piece *p, const unsigned char *data,
                             int is_good),
                void *ctx)
{
    int64_t i = ku_pieces_first(s->piece, s->n_pieces, first * KU_CHUNK_BYTES);
    uint64_t at = first * KU_CHUNK_BYTES, to = end * KU_CHUNK_BYTES;
    struct ku_ahead *ahead = NULL;
    const unsigned char *window;
    size_t bytes;
    int status = KUMI_OK;
    to = to < s->bytes ? to : s->bytes;
    if (i == s->n_pieces || at >= to)
        return KUMI_OK;
    KU_TRY(ku_ahead_open(s->fd, s->direct_fd, at, to, &ahead));
    for (; at < to; at += bytes) {
        KU_TRY_OUT(ku_ahead_next(ahead, &window, &bytes) < 0 ? unreadable(s->path) : KUMI_OK);
        for (; i < s->n_pieces && s->piece[i].at < at + bytes; i++) {
            const struct ku_piece *p = &s->piece[i];
            const unsigned char *data = window + (p->at - at);
            KU_TRY_OUT(visit(ctx, p, data, ku_hash64(data, p->bytes) == p->sum));
            ku_tick();
        }
    }
out:
    ku_ahead_close(ahead);
    return status;
}

int ku_scan_small(const char *path, size_t max_bytes, char **text, size_t *bytes)
{
    struct ku_piece *piece = NULL;
    int64_t n = 0;
    char *data;
    size_t n_bytes;
    if (ku_os_slurp(path, max_bytes, &data, &n_bytes) < 0)
        return unreadable(path);
    int status = load_sums(path, n_bytes, NULL, &piece, &n);
    for (int64_t i = 0; i < n && status == KUMI_OK; i++)
        if (ku_hash64(data + piece[i].at, piece[i].bytes) != piece[i].sum)
            status =
                KU_ERR(KUMI_ENOCKPT,
                       "checkpoint: damaged: %s: bytes %llu to %llu do not match their checksum",
                       path, (unsigned long long)piece[i].at,
                       (unsigned long long)(piece[i].at + piece[i].bytes));
    ku_free(piece);
    if (status < 0) {
        ku_free(data);
        return status;
    }
    *text = data;
    *bytes = n_bytes;
    return KUMI_OK;
}
