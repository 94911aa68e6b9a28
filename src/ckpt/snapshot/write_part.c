/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a rank's part of a snapshot: its chunks of every file, in segments of 4 MiB. A segment is
 * copied from the tensors to a slot (a staging buffer), hashed, and written from there. Segments
 * are ordered by when the update will next change their tensors, so that the update waits as little
 * as possible:
 *
 *     segments   | 0 | 1 | 2 | 3 | 4 | 5 |      3 slots: 0 to 2 are copied at once,
 *     slots      | 3 | 1 | 2 |                  3 after 0 is written
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/tick.h"
#include "ckpt/snapshot/writer.h"

enum {
    WINDOW_CHUNKS = KU_CKPT_WINDOW_BYTES / KU_CHUNK_BYTES,
    DIRECT_ALIGN = 4096,
    SYNC_BYTES = 64 << 20 /* in the page cache at most, so that no sync takes long */
};

struct window {
    int file;
    uint32_t turn;       /* min turn of its tensors that change; UINT32_MAX: none */
    uint64_t first, end; /* chunks */
};

/* This rank's part of a file. first, end: chunks, of a rank that has them in one piece */
struct share {
    int fd, direct_fd; /* -1: not open; direct_fd: with O_DIRECT */
    size_t unsynced;   /* bytes written through the page cache since the last sync */
    uint64_t first, end;
    int64_t begin_piece, end_piece;
};

struct part {
    struct ku_ckpt_writer *w;
    const struct ku_ckpt_writing *how;
    struct share share[KU_CKPT_N_FILES];
    struct window *window;
    int64_t n_windows, n_slots;
    unsigned char *slot, *own; /* own: allocated slot, if no staging is given */
};

/* Copies the bytes of one piece and computes their checksum. */
static int fill(const struct ku_ckpt_writer *w, int file, struct ku_piece *p, unsigned char *out)
{
    const struct ku_ckpt_out_file *f = &w->file[file];
    if (p->part > 0 && w->spread) {
        KU_TRY(ku_ckpt_spread_fill(w, file, p, out));
    } else if (p->part == 0) {
        memcpy(out, f->head.text + p->at, p->bytes);
    } else {
        const struct ku_ckpt_tensor *t = f->tensor[p->part - 1];
        size_t each = kumi_dtype_bytes(t->dtype);
        uint64_t begin_at = f->end[p->part - 1];
        KU_TRY(ku_ckpt_tensor_gather(t, (int64_t)((p->at - begin_at) / each),
                                     (int64_t)(p->bytes / each), out));
    }
    p->sum = ku_hash64(out, p->bytes);
    return KUMI_OK;
}

static int copy_window(struct part *p, int64_t i)
{
    const struct window *x = &p->window[i];
    struct ku_ckpt_out_file *f = &p->w->file[x->file];
    unsigned char *out = p->slot + (size_t)(i % p->n_slots) * KU_CKPT_WINDOW_BYTES;
    uint64_t at = x->first * KU_CHUNK_BYTES, to = x->end * KU_CHUNK_BYTES;
    for (int64_t n = ku_pieces_first(f->piece, f->n_pieces, at);
         n < f->n_pieces && f->piece[n].at < to; n++)
        KU_TRY(fill(p->w, x->file, &f->piece[n], out + (f->piece[n].at - at)));
    return KUMI_OK;
}

/* Writes whole pages with O_DIRECT and the rest through the page cache; if the file system refuses
 * O_DIRECT (EINVAL), all through the page cache. */
static int write_window(struct part *p, int64_t i)
{
    const struct window *x = &p->window[i];
    const struct ku_ckpt_out_file *f = &p->w->file[x->file];
    struct share *s = &p->share[x->file];
    const unsigned char *data = p->slot + (size_t)(i % p->n_slots) * KU_CKPT_WINDOW_BYTES;
    uint64_t at = x->first * KU_CHUNK_BYTES, to = x->end * KU_CHUNK_BYTES;
    size_t bytes = (size_t)((to < ku_ckpt_out_bytes(f) ? to : ku_ckpt_out_bytes(f)) - at);
    size_t direct = s->direct_fd >= 0 ? bytes & ~(size_t)(DIRECT_ALIGN - 1) : 0;
    if (direct > 0 && ku_os_pwrite_full(s->direct_fd, data, direct, (off_t)at) < 0) {
        if (errno != EINVAL)
            return ku_ckpt_storage_error(f->path);
        ku_os_close(s->direct_fd);
        s->direct_fd = -1;
        direct = 0;
    }
    if (direct < bytes &&
        ku_os_pwrite_full(s->fd, data + direct, bytes - direct, (off_t)(at + direct)) < 0)
        return ku_ckpt_storage_error(f->path);
    s->unsynced += bytes - direct;
    if (s->unsynced >= SYNC_BYTES) {
        s->unsynced = 0;
        if (ku_os_fsync(s->fd) < 0)
            return ku_ckpt_storage_error(f->path);
    }
    return KUMI_OK;
}

/* Segments before `n` are copied: lets their tensors change. */
static int tell(const struct part *p, int64_t n)
{
    uint32_t turn = n < p->n_windows ? p->window[n].turn : UINT32_MAX;
    return p->how->copied ? p->how->copied(p->how->ctx, turn) : KUMI_OK;
}

static int write_windows(struct part *p)
{
    int64_t n_copied = 0;
    KU_TRY(tell(p, 0));
    for (int64_t i = 0; i < p->n_windows; i++) {
        for (; n_copied < p->n_windows && n_copied < i + p->n_slots; n_copied++) {
            KU_TRY(copy_window(p, n_copied));
            KU_TRY(tell(p, n_copied + 1));
        }
        KU_TRY(write_window(p, i));
        ku_tick();
    }
    return KUMI_OK;
}

int ku_ckpt_write_sums(const struct ku_ckpt_out_file *f, int64_t first, int64_t end, uint64_t *sum)
{
    int status = KUMI_OK;
    char *text = ku_calloc((size_t)(end - first) + 1, KU_PIECE_LINE_BYTES);
    if (text == NULL)
        return KUMI_ENOMEM;
    for (int64_t i = first; i < end; i++)
        ku_pieces_print(&f->piece[i], text + (i - first) * KU_PIECE_LINE_BYTES);
    if (sum)
        *sum = ku_hash64(text, (size_t)(end - first) * KU_PIECE_LINE_BYTES);
    int fd = ku_os_open(f->sums_path, O_WRONLY, 0);
    if (fd < 0 ||
        ku_os_pwrite_full(fd, text, (size_t)(end - first) * KU_PIECE_LINE_BYTES,
                          (off_t)first * KU_PIECE_LINE_BYTES) < 0 ||
        ku_os_fsync(fd) < 0)
        status = ku_ckpt_storage_error(f->sums_path);
    if (fd >= 0 && ku_os_close(fd) < 0 && status == KUMI_OK)
        status = ku_ckpt_storage_error(f->sums_path);
    ku_free(text);
    return status;
}

static uint32_t turn_of(const struct ku_ckpt_out_file *f, uint64_t first, uint64_t end)
{
    uint32_t turn = UINT32_MAX;
    for (int64_t n = ku_pieces_first(f->piece, f->n_pieces, first * KU_CHUNK_BYTES);
         n < f->n_pieces && f->piece[n].at < end * KU_CHUNK_BYTES; n++) {
        uint32_t t = f->piece[n].part > 0 ? f->tensor[f->piece[n].part - 1]->turn : 0;
        turn = t > 0 && t < turn ? t : turn;
    }
    return turn;
}

static int compare_windows(const void *x, const void *y)
{
    const struct window *a = x, *b = y;
    if (a->turn != b->turn)
        return a->turn < b->turn ? -1 : 1;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

static int open_share(const struct ku_ckpt_out_file *f, struct share *s)
{
    s->fd = ku_os_open(f->path, O_WRONLY, 0);
    if (s->fd < 0)
        return ku_ckpt_storage_error(f->path);
    s->direct_fd = ku_os_open(f->path, O_WRONLY | O_DIRECT, 0);
    return KUMI_OK;
}

static void add_windows(struct part *p, int file, uint64_t first, uint64_t end)
{
    for (uint64_t at = first, to; at < end; at = to) {
        to = at + WINDOW_CHUNKS < end ? at + WINDOW_CHUNKS : end;
        p->window[p->n_windows++] =
            (struct window){file, turn_of(&p->w->file[file], at, to), at, to};
    }
}

/* This rank's chunks, as chosen for several hosts. */
static int take_chunks(struct part *p)
{
    const struct ku_ckpt_spread *s = p->w->spread;
    p->window = ku_calloc((size_t)s->n_chunks + 1, sizeof *p->window);
    if (p->window == NULL)
        return KUMI_ENOMEM;
    for (int64_t i = 0, end; i < s->n_chunks; i = end) {
        const int file = s->chunk[i].file;
        for (end = i + 1; end < s->n_chunks && s->chunk[end].file == file &&
                          s->chunk[end].at == s->chunk[end - 1].at + 1;)
            end++;
        add_windows(p, file, s->chunk[i].at, s->chunk[end - 1].at + 1);
        if (p->share[file].fd < 0)
            KU_TRY(open_share(&p->w->file[file], &p->share[file]));
    }
    return KUMI_OK;
}

/* An equal part of the chunks of each file. */
static int share_chunks(struct part *p, int rank, int n_ranks)
{
    size_t most = 0;
    for (int i = 0; i < KU_CKPT_N_FILES; i++) {
        const struct ku_ckpt_out_file *f = &p->w->file[i];
        struct share *s = &p->share[i];
        ku_pieces_share(ku_pieces_n_chunks(ku_ckpt_out_bytes(f)), rank, n_ranks, &s->first,
                        &s->end);
        s->begin_piece = ku_pieces_first(f->piece, f->n_pieces, s->first * KU_CHUNK_BYTES);
        s->end_piece = ku_pieces_first(f->piece, f->n_pieces, s->end * KU_CHUNK_BYTES);
        most += (size_t)(s->end - s->first) / WINDOW_CHUNKS + 1;
        if (s->first < s->end)
            KU_TRY(open_share(f, s));
    }
    p->window = ku_calloc(most, sizeof *p->window);
    if (p->window == NULL)
        return KUMI_ENOMEM;
    for (int i = 0; i < KU_CKPT_N_FILES; i++)
        add_windows(p, i, p->share[i].first, p->share[i].end);
    return KUMI_OK;
}

/* Determines this rank's chunks, opens their files, and lists the segments in order. */
static int open_part(struct part *p, int rank, int n_ranks)
{
    KU_TRY(p->w->spread ? take_chunks(p) : share_chunks(p, rank, n_ranks));
    qsort(p->window, (size_t)p->n_windows, sizeof *p->window, compare_windows);
    return KUMI_OK;
}

static int take_slots(struct part *p)
{
    p->slot = p->how->staging;
    p->n_slots = (int64_t)(p->how->staging_bytes / KU_CKPT_WINDOW_BYTES);
    if (p->slot)
        return KUMI_OK;
    p->slot = p->own = ku_malloc_aligned(DIRECT_ALIGN, KU_CKPT_WINDOW_BYTES);
    p->n_slots = 1;
    return p->own ? KUMI_OK : KUMI_ENOMEM;
}

int ku_ckpt_writer_write_so(struct ku_ckpt_writer *w, int rank, int n_ranks,
                            const struct ku_ckpt_writing *how)
{
    struct part p = {.w = w, .how = how};
    int status;
    KU_ASSERT(rank >= 0 && rank < n_ranks);
    for (int i = 0; i < KU_CKPT_N_FILES; i++)
        p.share[i].fd = p.share[i].direct_fd = -1;
    KU_TRY_OUT(open_part(&p, rank, n_ranks));
    KU_TRY_OUT(take_slots(&p));
    KU_TRY_OUT(write_windows(&p));
    for (int i = 0; i < KU_CKPT_N_FILES; i++) {
        const struct share *s = &p.share[i];
        if (s->fd < 0)
            continue;
        KU_TRY_OUT(ku_os_fsync(s->fd) < 0 ? ku_ckpt_storage_error(w->file[i].path) : KUMI_OK);
        if (w->spread == NULL) /* else the committing rank writes them */
            KU_TRY_OUT(ku_ckpt_write_sums(&w->file[i], s->begin_piece, s->end_piece, NULL));
    }
out:
    for (int i = 0; i < KU_CKPT_N_FILES; i++) {
        if (p.share[i].direct_fd >= 0)
            ku_os_close(p.share[i].direct_fd);
        if (p.share[i].fd >= 0 && ku_os_close(p.share[i].fd) < 0 && status == KUMI_OK)
            status = ku_ckpt_storage_error(w->file[i].path);
    }
    ku_free(p.window);
    ku_free(p.own);
    return status;
}

int ku_ckpt_writer_write(struct ku_ckpt_writer *w, int rank, int n_ranks)
{
    static const struct ku_ckpt_writing plainly = {0};
    return ku_ckpt_writer_write_so(w, rank, n_ranks, &plainly);
}
