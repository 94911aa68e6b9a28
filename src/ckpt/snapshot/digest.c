/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/digest.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/tick.h"
#include "ckpt/snapshot/region_reader.h"
#include "ckpt/snapshot/snapshot.h"

enum { PIECE_BYTES = 1 << 20 };

static void add_number(struct ku_sha256 *h, uint64_t x, int bytes)
{
    unsigned char le[8];
    for (int i = 0; i < bytes; i++)
        le[i] = (unsigned char)(x >> 8 * i);
    ku_sha256_update(h, le, (size_t)bytes);
}

static void add_text(struct ku_sha256 *h, const char *text)
{
    add_number(h, strlen(text), 4);
    ku_sha256_update(h, text, strlen(text));
}

static void add_head(struct ku_sha256 *h, const char *name, const char *type, const int64_t *dim,
                     int ndim)
{
    add_text(h, name);
    add_text(h, type);
    add_number(h, (uint64_t)ndim, 4);
    for (int i = 0; i < ndim; i++)
        add_number(h, (uint64_t)dim[i], 8);
}

static void finish(struct ku_sha256 *h, char out[KU_DIGEST_TEXT_BYTES])
{
    unsigned char digest[32];
    ku_sha256_final(h, digest);
    memcpy(out, "sha256:", 7);
    ku_sha256_hex(digest, out + 7);
}

static int compare(const void *x, const void *y)
{
    const struct ku_ckpt_tensor *a = *(const struct ku_ckpt_tensor *const *)x;
    const struct ku_ckpt_tensor *b = *(const struct ku_ckpt_tensor *const *)y;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int add_tensor(struct ku_sha256 *h, const struct ku_ckpt_tensor *t,
                      const struct ku_digest_source *from, void *buffer)
{
    size_t each = kumi_dtype_bytes(t->dtype);
    int64_t count = ku_ckpt_tensor_count(t), most = PIECE_BYTES / (int64_t)each;
    if (h)
        add_head(h, t->name, ku_st_type_name(t->dtype), t->dim, t->ndim);
    for (int64_t at = 0, n; at < count; at += n) {
        n = count - at < most ? count - at : most;
        ku_tick();
        KU_TRY(from->gather(from->ctx, t, at, n, buffer));
        if (h)
            ku_sha256_update(h, buffer, (size_t)n * each);
    }
    return KUMI_OK;
}

static int gather_here(void *ctx, const struct ku_ckpt_tensor *t, int64_t at, int64_t count,
                       void *out)
{
    (void)ctx;
    return ku_ckpt_tensor_gather(t, at, count, out);
}

int ku_digest_memory(const struct ku_ckpt_tensor *tensor, int n, int parameters_only,
                     char out[KU_DIGEST_TEXT_BYTES])
{
    static const struct ku_digest_source here = {.gather = gather_here};
    return ku_digest_stream(tensor, n, parameters_only, &here, out);
}

static int add_sorted(struct ku_sha256 *h, const struct ku_ckpt_tensor **sorted, int n,
                      int parameters_only, const struct ku_digest_source *from, void *buffer)
{
    qsort(sorted, (size_t)n, sizeof *sorted, compare);
    for (int i = 0; i < n; i++)
        if (sorted[i]->group == KU_CKPT_MODEL || !parameters_only)
            KU_TRY(add_tensor(h, sorted[i], from, buffer));
    return KUMI_OK;
}

int ku_digest_stream(const struct ku_ckpt_tensor *tensor, int n, int parameters_only,
                     const struct ku_digest_source *from, char out[KU_DIGEST_TEXT_BYTES])
{
    struct ku_sha256 h = {0};
    char text[KU_DIGEST_TEXT_BYTES];
    KU_TRY(ku_ckpt_tensors_check(tensor, n));
    const struct ku_ckpt_tensor **sorted = ku_calloc((size_t)n + 1, sizeof *sorted);
    void *buffer = out ? ku_malloc(PIECE_BYTES) : NULL;
    int status = sorted == NULL || (out && buffer == NULL) ? KUMI_ENOMEM : KUMI_OK;
    for (int i = 0; i < n && status == KUMI_OK; i++)
        sorted[i] = &tensor[i];
    if (status == KUMI_OK && out == NULL)
        status = add_sorted(NULL, sorted, n, parameters_only, from, NULL);
    if (status == KUMI_OK && out)
        status = ku_sha256_init(&h);
    if (status == KUMI_OK && out) {
        status = add_sorted(&h, sorted, n, parameters_only, from, buffer);
        finish(&h, text); /* also frees the hash context */
        if (status == KUMI_OK)
            memcpy(out, text, sizeof text);
    }
    ku_free(buffer);
    ku_free(sorted);
    return status;
}

/* Reads tensor by tensor: tensors are hashed by name, but in the file they are sorted by width
 * first.
 */
static int add_file(struct ku_sha256 *h, const struct ku_scan *s, void *buffer)
{
    for (int i = 0; i < s->st.n; i++) {
        const struct ku_st_tensor *t = s->st.by_name[i];
        add_head(h, t->name, t->type, t->dim, t->ndim);
        for (uint64_t at = 0, n; at < t->bytes; at += n) {
            int64_t p = ku_scan_piece_at(s, t->at + at);
            n = p < 0 ? 0 : s->piece[p].bytes;
            if (n == 0 || n > t->bytes - at)
                return KU_ERR(KUMI_ENOCKPT,
                              "checkpoint: damaged: %s.xxh3: no checksum for byte %llu", s->path,
                              (unsigned long long)(t->at + at));
            KU_TRY(ku_st_read_bytes(&s->st, t, at, buffer, (size_t)n));
            if (ku_hash64(buffer, (size_t)n) != s->piece[p].sum)
                return ku_scan_damaged(s, &s->piece[p]);
            ku_sha256_update(h, buffer, (size_t)n);
        }
    }
    return KUMI_OK;
}

/* All files are open before the first is read: a run may then remove the snapshot. */
static int open_files(const struct ku_ckpt *c, struct ku_scan *scan, int n)
{
    static const int file[] = {KU_CKPT_FILE_MODEL, KU_CKPT_FILE_OPTIMIZER};
    for (int i = 0; i < n; i++)
        KU_TRY(ku_scan_open(c, file[i], &scan[i]));
    return KUMI_OK;
}

int ku_digest_snapshot(const char *path, int parameters_only, char out[KU_DIGEST_TEXT_BYTES])
{
    struct ku_sha256 h = {0};
    struct ku_ckpt c;
    struct ku_scan scan[2] = {{0}};
    const int n = parameters_only ? 1 : 2;
    char text[KU_DIGEST_TEXT_BYTES];
    KU_TRY(ku_ckpt_open(path, &c));
    void *buffer = ku_malloc(KU_CHUNK_BYTES);
    int status = buffer == NULL ? KUMI_ENOMEM : open_files(&c, scan, n);
    if (status == KUMI_OK)
        status = ku_sha256_init(&h);
    if (status == KUMI_OK) {
        for (int i = 0; i < n && status == KUMI_OK; i++)
            status = add_file(&h, &scan[i], buffer);
        finish(&h, text); /* also frees the hash context */
        if (status == KUMI_OK)
            memcpy(out, text, sizeof text);
    }
    for (int i = 0; i < n; i++)
        ku_scan_close(&scan[i]);
    ku_free(buffer);
    ku_ckpt_close(&c);
    return status;
}
