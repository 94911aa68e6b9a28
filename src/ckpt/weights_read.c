/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of each file are divided among the ranks at multiples of 4 KiB, independent of tensor
 * boundaries. A rank reads its range in segments, several of which are in flight (read_ahead.c):
 *
 *     file     | header | a |     b     | c |          d          |
 *     rank              0 0 0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1 1 1 1
 *     segment           |    0    |    1    |    0    |    1    |
 *
 * Where tensors are divided among hosts, the ranks of a host divide the regions of 1 MiB with
 * elements of the host. An element belongs to the segment and rank in which it begins. An element
 * that crosses a segment's end (only in files with unaligned data) is read separately.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/tick.h"
#include "ckpt/read_ahead.h"
#include "ckpt/weights.h"

enum { CUT_BYTES = 4096, ALIGNED_BYTES = 64 << 10, REGION_BYTES = 1 << 20 };

/* A tensor of the file and its destination. */
struct part {
    const struct ku_st_tensor *from;
    const struct ku_ckpt_tensor *to;
};

struct reading {
    const struct ku_st *file;
    struct part *part; /* [n_parts] in data order */
    int n_parts;
    char *aligned; /* [ALIGNED_BYTES] */
};

static int compare_parts(const void *x, const void *y)
{
    const struct part *a = x, *b = y;
    return (a->from->at > b->from->at) - (a->from->at < b->from->at);
}

static void list_parts(const struct ku_weights *w, struct reading *r)
{
    r->n_parts = 0;
    for (int i = 0; i < w->n; i++)
        if (w->from[i].tensor != NULL && w->from[i].file == r->file && w->from[i].tensor->bytes > 0)
            r->part[r->n_parts++] = (struct part){w->from[i].tensor, &w->tensor[i]};
    qsort(r->part, (size_t)r->n_parts, sizeof *r->part, compare_parts);
}

static int put(const struct part *p, int64_t at, int64_t count, const void *data)
{
    return ku_ckpt_tensor_scatter(p->to, at, count, data, p->from->dtype,
                                  !ku_dtype_is_float(p->to->dtype));
}

/* Copies elements [at, end), through an aligned buffer if the data is not aligned. */
static int put_run(struct reading *r, const struct part *p, int64_t at, int64_t end,
                   const unsigned char *data)
{
    const size_t each = kumi_dtype_bytes(p->from->dtype);
    if ((uintptr_t)data % each == 0)
        return at < end ? put(p, at, end - at, data) : KUMI_OK;
    for (int64_t n; at < end; at += n, data += (size_t)n * each) {
        n = end - at < ALIGNED_BYTES / (int64_t)each ? end - at : ALIGNED_BYTES / (int64_t)each;
        memcpy(r->aligned, data, (size_t)n * each);
        KU_TRY(put(p, at, n, r->aligned));
    }
    return KUMI_OK;
}

/* Copies the elements of a tensor that begin in the segment [at, end) of the file. */
static int take(struct reading *r, const struct part *p, uint64_t at, uint64_t end,
                const unsigned char *window)
{
    const struct ku_st_tensor *t = p->from;
    const uint64_t each = kumi_dtype_bytes(t->dtype);
    uint64_t first = at > t->at ? (at - t->at + each - 1) / each : 0;
    uint64_t whole = (end - t->at) / each, last = (end - t->at + each - 1) / each;
    uint64_t count = (uint64_t)t->count;
    whole = whole < count ? whole : count;
    last = last < count ? last : count;
    if (first < whole)
        KU_TRY(put_run(r, p, (int64_t)first, (int64_t)whole, window + (t->at + first * each - at)));
    if (whole == last || whole < first)
        return KUMI_OK;
    KU_TRY(ku_st_read_bytes(r->file, t, whole * each, r->aligned, (size_t)each));
    return put(p, (int64_t)whole, 1, r->aligned);
}

/* The first byte of a rank's range. */
static uint64_t cut(uint64_t begin, uint64_t end, int rank, int n_ranks)
{
    uint64_t pages = (end - begin + CUT_BYTES - 1) / CUT_BYTES;
    uint64_t at = begin + pages * (uint64_t)rank / (uint64_t)n_ranks * CUT_BYTES;
    return at < end ? at : end;
}

static int unreadable(const struct ku_st *f)
{
    return KU_ERR(ku_os_status(KUMI_EINPUT), "safetensors: %s: %s", f->path, ku_os_why());
}

static int read_run(struct reading *r, uint64_t at, uint64_t end, int direct_fd)
{
    const struct part *p = r->part, *last = r->part + r->n_parts;
    struct ku_ahead *ahead;
    const unsigned char *window;
    size_t bytes;
    int status = KUMI_OK;
    if (at >= end)
        return KUMI_OK;
    KU_TRY(ku_ahead_open(r->file->fd, direct_fd, at, end, &ahead));
    for (; at < end; at += bytes) {
        KU_TRY_OUT(ku_ahead_next(ahead, &window, &bytes) < 0 ? unreadable(r->file) : KUMI_OK);
        while (p < last && p->from->at + p->from->bytes <= at)
            p++;
        for (const struct part *q = p; q < last && q->from->at < at + bytes; q++)
            KU_TRY_OUT(take(r, q, at, at + bytes, window));
        ku_tick();
    }
out:
    ku_ahead_close(ahead);
    return status;
}

/* A file that is truncated while it is read gives zeros after its end: checks the size again. */
static int check_whole(const struct ku_st *f)
{
    struct stat info;
    if (ku_os_fstat(f->fd, &info) < 0)
        return unreadable(f);
    if ((uint64_t)info.st_size != f->file_bytes)
        return KU_ERR(
            KUMI_EINPUT,
            "safetensors: %s: %lld bytes, %llu when opened; do not change it while it is read",
            f->path, (long long)info.st_size, (unsigned long long)f->file_bytes);
    return KUMI_OK;
}

/* Whether this host has elements of a part in [at, end) of the file. */
static bool is_here(const struct part *p, uint64_t at, uint64_t end)
{
    const uint64_t each = kumi_dtype_bytes(p->from->dtype), begin = p->from->at;
    const uint64_t first = at > begin ? (at - begin) / each : 0;
    uint64_t last = end > begin ? (end - begin + each - 1) / each : 0;
    last = last < (uint64_t)p->from->count ? last : (uint64_t)p->from->count;
    return first < last && ku_ckpt_tensor_is_here(p->to, (int64_t)first, (int64_t)(last - first));
}

/* Whether this host needs [at, end) of the file. *part: the first part that ends after `at`. */
static bool is_needed(const struct reading *r, uint64_t at, uint64_t end, int *part)
{
    bool is = false;
    while (*part < r->n_parts && r->part[*part].from->at + r->part[*part].from->bytes <= at)
        ++*part;
    for (int i = *part; i < r->n_parts && r->part[i].from->at < end && !is; i++)
        is = is_here(&r->part[i], at, end);
    return is;
}

/* The n-th part of n_ranks of the needed regions in [begin, end). */
static int read_needed(struct reading *r, uint64_t begin, uint64_t end, int rank, int n_ranks,
                       int direct_fd)
{
    uint64_t n = 0, from = begin, to = begin;
    int part = 0;
    for (uint64_t at = begin; at < end; at += REGION_BYTES)
        n += is_needed(r, at, at + REGION_BYTES < end ? at + REGION_BYTES : end, &part);
    const uint64_t first = n * (uint64_t)rank / (uint64_t)n_ranks;
    const uint64_t last = n * ((uint64_t)rank + 1) / (uint64_t)n_ranks;
    n = 0, part = 0;
    for (uint64_t at = begin, stop; at < end; at = stop) {
        stop = at + REGION_BYTES < end ? at + REGION_BYTES : end;
        if (!is_needed(r, at, stop, &part) || n++ < first || n > last)
            continue;
        if (at != to) {
            KU_TRY(read_run(r, from, to, direct_fd));
            from = at;
        }
        to = stop;
    }
    return read_run(r, from, to, direct_fd);
}

static bool is_divided(const struct reading *r)
{
    bool is = false;
    for (int i = 0; i < r->n_parts && !is; i++)
        is = r->part[i].to->owner.n_owners > 0;
    return is;
}

static int read_file(struct reading *r, int rank, int n_ranks)
{
    if (r->n_parts == 0)
        return KUMI_OK;
    const struct ku_st_tensor *last = r->part[r->n_parts - 1].from;
    uint64_t begin = r->part[0].from->at & ~(uint64_t)(CUT_BYTES - 1), end = last->at + last->bytes;
    uint64_t at = cut(begin, end, rank, n_ranks), to = cut(begin, end, rank + 1, n_ranks);
    const bool divided = is_divided(r);
    if (at == to && !divided)
        return KUMI_OK;
    int direct_fd = ku_os_open(r->file->path, O_RDONLY | O_DIRECT, 0);
    int status = divided ? read_needed(r, begin, end, rank, n_ranks, direct_fd)
                         : read_run(r, at, to, direct_fd);
    if (direct_fd >= 0)
        ku_os_close(direct_fd);
    KU_TRY(status);
    return check_whole(r->file);
}

int ku_weights_read(struct ku_weights *w, int rank, int n_ranks)
{
    KU_ASSERT(rank >= 0 && rank < n_ranks);
    KU_TRY(ku_ckpt_tensors_check(w->tensor, w->n));
    struct reading r = {.part = ku_calloc((size_t)w->n + 1, sizeof *r.part),
                        .aligned = ku_malloc(ALIGNED_BYTES)};
    int status = r.part && r.aligned ? KUMI_OK : KUMI_ENOMEM;
    for (int i = 0; i < w->set.n && status == KUMI_OK; i++) {
        r.file = &w->set.file[i];
        list_parts(w, &r);
        status = read_file(&r, rank, n_ranks);
    }
    ku_free(r.aligned);
    ku_free(r.part);
    if (status == KUMI_OK && rank == 0)
        ku_weights_say(w);
    return status;
}
