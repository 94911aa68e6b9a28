/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a snapshot. The tensors of both safetensors files are matched first, so that a mismatch
 * changes no memory. Then each rank scans its chunks of every file, verifies each piece and copies
 * it to its tensor. Of tensors that are divided among hosts, a host reads the chunks with elements
 * of its own.
 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "ckpt/diff.h"
#include "ckpt/snapshot/region_reader.h"
#include "ckpt/snapshot/snapshot.h"

/* One file and the destinations of its tensors: st.tensor[i] is read into to[i], NULL: skipped. */
struct source {
    struct ku_scan scan;
    const struct ku_ckpt_tensor **to;
    int n_asked; /* requested tensors of this file */
};

struct reader {
    struct source file[KU_CKPT_N_FILES];
};

static int file_of(const struct ku_ckpt_tensor *t)
{
    return t->group == KU_CKPT_MODEL ? KU_CKPT_FILE_MODEL : KU_CKPT_FILE_OPTIMIZER;
}

static int check_dtype(const struct source *f, const struct ku_st_tensor *t)
{
    if (t->dtype == KUMI_N_DTYPES || (t->at % kumi_dtype_bytes(t->dtype)) != 0)
        return KU_ERR(KUMI_EINPUT,
                      "checkpoint: %s: %.120s: %s at byte %llu; snapshots hold aligned tensors of "
                      "kumi's dtypes",
                      f->scan.path, t->name, t->type, (unsigned long long)t->at);
    return KUMI_OK;
}

/* Whether the file may have tensors that are not requested. */
static bool may_hold_more(const struct reader *r, int file, int is_part)
{
    return is_part && (file == KU_CKPT_FILE_OPTIMIZER || r->file[file].n_asked == 0);
}

static int match(const struct ku_ckpt *c, struct reader *r, const struct ku_ckpt_tensor *tensor,
                 int n, int is_part)
{
    struct ku_diff d = {0};
    for (int i = 0; i < n; i++) {
        struct source *f = &r->file[file_of(&tensor[i])];
        const struct ku_st_tensor *t = ku_st_find(&f->scan.st, tensor[i].name);
        f->n_asked++;
        if (t == NULL)
            ku_diff_missing(&d, tensor[i].name);
        else if (!ku_st_is_same_shape(t, &tensor[i]))
            ku_diff_shape(&d, t, &tensor[i]);
        if (t != NULL)
            f->to[t - f->scan.st.tensor] = &tensor[i];
    }
    for (int i = KU_CKPT_FILE_MODEL; i < KU_CKPT_N_FILES; i++)
        for (int j = 0; j < r->file[i].scan.st.n && !may_hold_more(r, i, is_part); j++)
            if (r->file[i].to[j] == NULL)
                ku_diff_extra(&d, r->file[i].scan.st.tensor[j].name);
    KU_TRY(ku_diff_finish(&d, "checkpoint", c->path));
    for (int i = KU_CKPT_FILE_MODEL; i < KU_CKPT_N_FILES; i++)
        for (int j = 0; j < r->file[i].scan.st.n; j++)
            KU_TRY(check_dtype(&r->file[i], &r->file[i].scan.st.tensor[j]));
    return KUMI_OK;
}

/* Whether a conversion may round: a run that stores parameters in 16 bits may resume one that does
 * not. */
static bool is_rounded(enum kumi_dtype from, enum kumi_dtype to)
{
    return ku_dtype_is_float(from) && ku_dtype_is_float(to) &&
           kumi_dtype_bytes(to) <= kumi_dtype_bytes(KUMI_BF16);
}

/* Copies a piece to its tensor. A piece that begins in a tensor ends in it, unless the checksum
 * file belongs to another file; its length is checked nevertheless. */
static int take(void *ctx, const struct ku_piece *p, const unsigned char *data, int is_good)
{
    struct source *f = ctx;
    if (!is_good)
        return ku_scan_damaged(&f->scan, p);
    const struct ku_st_tensor *t = f->scan.has_st ? ku_st_at(&f->scan.st, p->at) : NULL;
    if (t == NULL)
        return KUMI_OK;
    if (f->to[t - f->scan.st.tensor] == NULL)
        return KUMI_OK;
    uint64_t each = kumi_dtype_bytes(t->dtype), begin = p->at - t->at;
    if (begin % each != 0 || p->bytes % each != 0 || p->bytes > t->bytes - begin)
        return ku_scan_damaged(&f->scan, p);
    const struct ku_ckpt_tensor *to = f->to[t - f->scan.st.tensor];
    return ku_ckpt_tensor_scatter(to, (int64_t)(begin / each), (int64_t)(p->bytes / each), data,
                                  t->dtype, !is_rounded(t->dtype, to->dtype));
}

/* Whether this host needs a piece of the chunk. *at: its first piece; out: the next chunk's. */
static bool is_needed(const struct source *f, uint64_t chunk, int64_t *at)
{
    bool is = false;
    for (; *at < f->scan.n_pieces && f->scan.piece[*at].at < (chunk + 1) * KU_CHUNK_BYTES; ++*at) {
        const struct ku_piece *p = &f->scan.piece[*at];
        const struct ku_st_tensor *t = ku_st_at(&f->scan.st, p->at);
        const struct ku_ckpt_tensor *to = t ? f->to[t - f->scan.st.tensor] : NULL;
        const int64_t each = t ? (int64_t)kumi_dtype_bytes(t->dtype) : 1;
        is = is || to == NULL ||
             ku_ckpt_tensor_is_here(to, (int64_t)(p->at - t->at) / each,
                                    ((int64_t)p->bytes + each - 1) / each);
    }
    return is;
}

static bool is_divided(const struct source *f)
{
    bool is = false;
    for (int i = 0; i < f->scan.st.n && f->scan.has_st && !is; i++)
        is = f->to[i] && f->to[i]->owner.n_owners > 0;
    return is;
}

/* Reads this rank's part of the chunks that its host needs. */
static int read_needed(struct source *f, int rank, int n_ranks)
{
    const uint64_t n_chunks = ku_pieces_n_chunks(f->scan.bytes);
    uint64_t n = 0, first, end, begin = 0, last = 0;
    int64_t at = 0;
    for (uint64_t c = 0; c < n_chunks; c++)
        n += is_needed(f, c, &at);
    ku_pieces_share(n, rank, n_ranks, &first, &end);
    n = 0, at = 0;
    for (uint64_t c = 0; c < n_chunks; c++) {
        if (!is_needed(f, c, &at) || n++ < first || n > end)
            continue;
        if (c != last) {
            KU_TRY(ku_scan_run(&f->scan, begin, last, take, f));
            begin = c;
        }
        last = c + 1;
    }
    return ku_scan_run(&f->scan, begin, last, take, f);
}

static int read_files(const struct ku_ckpt *c, const struct ku_ckpt_tensor *tensor, int n, int rank,
                      int n_ranks, int is_part)
{
    struct reader r = {0};
    int status = KUMI_OK, opened = 0;
    KU_ASSERT(rank >= 0 && rank < n_ranks);
    KU_TRY(ku_ckpt_tensors_check(tensor, n));
    for (; opened < KU_CKPT_N_FILES; opened++) {
        struct source *f = &r.file[opened];
        KU_TRY_OUT(ku_scan_open(c, opened, &f->scan));
        f->to = ku_calloc((size_t)f->scan.st.n + 1, sizeof *f->to);
        if (f->to == NULL) {
            ku_scan_close(&f->scan);
            status = KUMI_ENOMEM;
            goto out;
        }
    }
    KU_TRY_OUT(match(c, &r, tensor, n, is_part));
    for (int i = 0; i < KU_CKPT_N_FILES; i++) {
        uint64_t first, end;
        if (is_part && i != KU_CKPT_FILE_CONFIG && r.file[i].n_asked == 0)
            continue;
        if (is_divided(&r.file[i])) {
            KU_TRY_OUT(read_needed(&r.file[i], rank, n_ranks));
            continue;
        }
        ku_pieces_share(ku_pieces_n_chunks(r.file[i].scan.bytes), rank, n_ranks, &first, &end);
        KU_TRY_OUT(ku_scan_run(&r.file[i].scan, first, end, take, &r.file[i]));
    }
out:
    for (int i = 0; i < opened; i++) {
        ku_scan_close(&r.file[i].scan);
        ku_free(r.file[i].to);
    }
    return status;
}

int ku_ckpt_read(const struct ku_ckpt *c, const struct ku_ckpt_tensor *tensor, int n, int rank,
                 int n_ranks)
{
    return read_files(c, tensor, n, rank, n_ranks, 0);
}

int ku_ckpt_read_only(const struct ku_ckpt *c, const struct ku_ckpt_tensor *tensor, int n, int rank,
                      int n_ranks)
{
    return read_files(c, tensor, n, rank, n_ranks, 1);
}

int ku_ckpt_resume(const char *dir, const struct ku_ckpt_tensor *tensor, int n, struct ku_ckpt *out)
{
    for (int64_t before = INT64_MAX;;) {
        struct ku_ckpt c;
        KU_TRY(ku_ckpt_find(dir, before, &c));
        int status = ku_ckpt_read(&c, tensor, n, 0, 1);
        if (status == KUMI_OK) {
            *out = c;
            return status;
        }
        before = c.step;
        ku_ckpt_close(&c);
        if (status != KUMI_ENOCKPT)
            return status;
        KU_LOG(CKPT, WARN, "%s; it is not used", ku_err_get()->text);
    }
}
