/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/contents.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/math/exact.h"
#include "base/mem.h"
#include "remote/compress.h"
#include "remote/sparse.h"
#include "tensor/blocks.h"
#include "tensor/dtype.h"

/* Bytes of push entry `entry`, from byte `at` of its part on. */
struct piece {
    const struct ku_contents *c;
    const struct ku_contents_range *r;
    uint32_t entry;
    size_t at, bytes;
    const unsigned char *data;
};

static const struct ku_remote_entry *entry_of(const struct piece *p)
{
    return &p->c->layout->push[p->entry];
}

/* Elements of the tensor before those of a chunk; *n: of the chunk. */
static int64_t chunk_of(const struct piece *p, size_t record, int64_t *n)
{
    const struct ku_remote_part *part = &p->c->part[p->entry];
    const int64_t first = part->begin + (int64_t)record * KU_BLOCK_COUNT, left = part->end - first;
    *n = left < KU_BLOCK_COUNT ? left : KU_BLOCK_COUNT;
    return first;
}

/* -- finite ----------------------------------------------------------------------------------- */

/* what: "element", "the scale of the chunk from element" */
static int not_finite(const struct piece *p, const char *what, int64_t element, bool is_nan)
{
    return KU_ERR(KUMI_ENUMERIC,
                  "ps: push of worker %d for step %lld: %s %lld of %.120s is %s; nothing of the "
                  "step is applied; lower optimizer.lr, or set train.on_nonfinite=skip",
                  p->r->worker, (long long)p->r->step, what, (long long)element, entry_of(p)->name,
                  is_nan ? "NaN" : "infinite");
}

/*
 * The first of n floats whose exponent is all ones; n: none. In groups, so that a whole one is
 * compared with vector instructions.
 */
#define FIND_NONFINITE(type)                                                                       \
    static size_t find_##type(const unsigned char *data, size_t n, type exponent)                  \
    {                                                                                              \
        enum { GROUP = 512 };                                                                      \
        for (size_t first = 0; first < n; first += GROUP) {                                        \
            const size_t end = n - first < GROUP ? n : first + GROUP;                              \
            type any = 0;                                                                          \
            for (size_t i = first; i < end; i++) {                                                 \
                type x;                                                                            \
                memcpy(&x, data + i * sizeof x, sizeof x);                                         \
                any |= (type)((x & exponent) == exponent);                                         \
            }                                                                                      \
            for (size_t i = first; any && i < end; i++) {                                          \
                type x;                                                                            \
                memcpy(&x, data + i * sizeof x, sizeof x);                                         \
                if ((x & exponent) == exponent)                                                    \
                    return i;                                                                      \
            }                                                                                      \
        }                                                                                          \
        return n;                                                                                  \
    }
FIND_NONFINITE(uint16_t)
FIND_NONFINITE(uint32_t)
FIND_NONFINITE(uint64_t)
#undef FIND_NONFINITE

/* Losses and metrics are exact sums, which count what is not finite. Words may be apart. */
static int check_sums(const struct piece *p)
{
    struct ku_exact a;
    for (size_t at = 0; at + sizeof(int64_t) <= p->bytes; at += sizeof(int64_t)) {
        const size_t word = (p->at + at) % sizeof a;
        int64_t n;
        memcpy(&n, p->data + at, sizeof n);
        if (n && word >= offsetof(struct ku_exact, n_pos_inf) &&
            word <= offsetof(struct ku_exact, n_nan))
            return not_finite(p, "element", (int64_t)((p->at + at) / sizeof a),
                              word == offsetof(struct ku_exact, n_nan));
    }
    return KUMI_OK;
}

static int check_elements(const struct piece *p)
{
    const enum kumi_dtype wire = entry_of(p)->wire;
    const size_t each = kumi_dtype_bytes(wire), n = p->bytes / each;
    size_t i = n;
    if (wire == KUMI_I64 && entry_of(p)->count % KU_EXACT_WORDS == 0)
        return check_sums(p);
    if (wire == KUMI_F32)
        i = find_uint32_t(p->data, n, 0x7f800000);
    else if (wire == KUMI_BF16 || wire == KUMI_F16)
        i = find_uint16_t(p->data, n, wire == KUMI_BF16 ? 0x7f80 : 0x7c00);
    else if (wire == KUMI_F64)
        i = find_uint64_t(p->data, n, UINT64_C(0x7ff) << 52);
    if (i == n)
        return KUMI_OK;
    return not_finite(p, "element", p->c->part[p->entry].begin + (int64_t)(p->at / each + i),
                      isnan(ku_load_f64(p->data, wire, (int64_t)i)));
}

/* The scales of int8 records, which are multiples of 4 bytes, of chunks that begin in the piece. */
static int check_scales(const struct piece *p)
{
    const size_t each = ku_remote_record_bytes(entry_of(p), KU_BLOCK_COUNT);
    for (size_t k = (p->at + each - 1) / each; k * each < p->at + p->bytes; k++) {
        int64_t n;
        float scale;
        if (p->at + p->bytes - k * each < sizeof scale)
            break;
        memcpy(&scale, p->data + (k * each - p->at), sizeof scale);
        if (!(fabsf(scale) <= FLT_MAX / 128)) /* times -128 .. 127 */
            return not_finite(p, "the scale of the chunk from element", chunk_of(p, k, &n),
                              isnan(scale));
    }
    return KUMI_OK;
}

/* -- topk ------------------------------------------------------------------------------------- */

/* The values of a valid record. */
static int check_values(const struct piece *p, int64_t first, int64_t n,
                        const unsigned char *record)
{
    const size_t k = (size_t)ku_remote_topk(entry_of(p), n);
    const size_t i = find_uint32_t(record, k, 0x7f800000);
    uint16_t index;
    float value;
    if (i == k)
        return KUMI_OK;
    memcpy(&value, record + i * sizeof value, sizeof value);
    memcpy(&index, record + k * sizeof value + i * sizeof index, sizeof index);
    return not_finite(p, "element", first + index, isnan(value));
}

static int check_records(const struct piece *p)
{
    const struct ku_remote_entry *x = entry_of(p);
    const struct ku_remote_part *part = &p->c->part[p->entry];
    const size_t each = ku_remote_record_bytes(x, KU_BLOCK_COUNT);
    const size_t all = ku_remote_wire_bytes(x, part->end - part->begin);
    if (p->at % each || ((p->at + p->bytes) % each && p->at + p->bytes != all))
        return KU_ERR(KUMI_EINVAL,
                      "ps: worker %d pushes bytes %zu to %zu of %s; its compressed records have "
                      "%zu bytes, and are sent whole",
                      p->r->worker, p->at, p->at + p->bytes, x->name, each);
    for (size_t k = 0; k < p->bytes; k += each) {
        int64_t n;
        const int64_t first = chunk_of(p, (p->at + k) / each, &n);
        if (!ku_compress_is_valid(x, n, p->data + k))
            return KU_ERR(KUMI_EINVAL,
                          "ps: worker %d pushes %s: the indices of its elements from %lld on do "
                          "not ascend, or exceed the chunk",
                          p->r->worker, x->name, (long long)first);
        if (p->c->is_finite)
            KU_TRY(check_values(p, first, n, p->data + k));
    }
    return KUMI_OK;
}

/* -- a range ---------------------------------------------------------------------------------- */

static int check_piece(const struct piece *p)
{
    switch (entry_of(p)->form) {
    case KU_REMOTE_TOPK:
        return check_records(p);
    case KU_REMOTE_INT8:
    case KU_REMOTE_INT8_STOCHASTIC:
        return p->c->is_finite ? check_scales(p) : KUMI_OK;
    case KU_REMOTE_DENSE:
        return p->c->is_finite ? check_elements(p) : KUMI_OK;
    }
    return KUMI_EBUG;
}

/* Bytes of the push space as they are. */
static int check_bytes(const struct ku_contents *c, const struct ku_contents_range *r,
                       size_t offset, const unsigned char *data, size_t bytes)
{
    const struct ku_remote_layout *l = c->layout;
    uint32_t i = ku_remote_part_at(c->part, l->n_push, offset);
    for (; i < l->n_push && c->part[i].offset < offset + bytes; i++) {
        const struct ku_remote_part *x = &c->part[i];
        const size_t end = x->offset + ku_remote_wire_bytes(&l->push[i], x->end - x->begin);
        const size_t from = x->offset > offset ? x->offset : offset;
        const size_t to = end < offset + bytes ? end : offset + bytes;
        const struct piece p = {c, r, i, from - x->offset, to - from, data + (from - offset)};
        if (from < to)
            KU_TRY(check_piece(&p));
    }
    return KUMI_OK;
}

int ku_contents_check(const struct ku_contents *c, const struct ku_contents_range *r)
{
    struct ku_sparse_run run = {0};
    if (!c->has_topk && !c->is_finite)
        return KUMI_OK;
    if (!r->is_sparse)
        return check_bytes(c, r, r->offset, r->data, r->extent);
    if (!c->has_topk) { /* zeros are finite, and no element lies in two cells */
        while (ku_sparse_next(r->data, &run))
            KU_TRY(check_bytes(c, r, r->offset + run.at, run.data, run.bytes));
        return KUMI_OK;
    }
    unsigned char *expanded = ku_malloc(r->extent);
    if (expanded == NULL)
        return KUMI_ENOMEM;
    ku_sparse_expand(r->data, expanded);
    const int status = check_bytes(c, r, r->offset, expanded, r->extent);
    ku_free(expanded);
    return status;
}
