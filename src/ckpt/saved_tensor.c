/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between file order (dense) and memory (padded, in one piece, in parts or in stores). All
 * copies proceed in runs of elements that are contiguous in file and memory.
 */
#include "ckpt/saved_tensor.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "tensor/blocks.h"

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_shape(const struct ku_ckpt_tensor *t)
{
    if (t->name == NULL || t->name[0] == '\0')
        return KU_ERR(KUMI_EINVAL, "checkpoint: a tensor has no name");
    if (t->ndim < 0 || t->ndim > KU_MAX_DIMS || kumi_dtype_bytes(t->dtype) == 0)
        return KU_ERR(KUMI_EINVAL, "checkpoint: %s: %d dimensions of dtype %d", t->name, t->ndim,
                      (int)t->dtype);
    int64_t count = 1, in_memory = 1;
    for (int i = 0; i < t->ndim; i++) {
        if (t->dim[i] < 0 || t->padded[i] < t->dim[i])
            return KU_ERR(KUMI_EINVAL,
                          "checkpoint: %s: dimension %d: %lld in files, %lld in memory", t->name, i,
                          (long long)t->dim[i], (long long)t->padded[i]);
        if (__builtin_mul_overflow(count, t->dim[i], &count) ||
            __builtin_mul_overflow(in_memory, t->padded[i], &in_memory) ||
            in_memory > (int64_t)1 << 48)
            return KU_ERR(KUMI_EINVAL, "checkpoint: %s: more than 2^48 elements", t->name);
    }
    if (count > 0 && t->data == NULL && t->n_parts == 0 && t->owner.n_owners == 0)
        return KU_ERR(KUMI_EINVAL, "checkpoint: %s: no memory given", t->name);
    if (t->group != KU_CKPT_MODEL && t->group != KU_CKPT_OPTIMIZER)
        return KU_ERR(KUMI_EINVAL, "checkpoint: %s: group %d", t->name, (int)t->group);
    return KUMI_OK;
}

int ku_ckpt_tensors_check(const struct ku_ckpt_tensor *t, int n)
{
    for (int i = 0; i < n; i++)
        KU_TRY(check_shape(&t[i]));
    const char **name = ku_calloc((size_t)n + 1, sizeof *name);
    if (name == NULL)
        return KUMI_ENOMEM;
    for (int i = 0; i < n; i++)
        name[i] = t[i].name;
    qsort(name, (size_t)n, sizeof *name, compare_names);
    int status = KUMI_OK;
    for (int i = 1; i < n && status == KUMI_OK; i++)
        if (strcmp(name[i - 1], name[i]) == 0)
            status = KU_ERR(KUMI_EINVAL, "checkpoint: two tensors are called %s", name[i]);
    ku_free(name);
    return status;
}

int64_t ku_ckpt_tensor_count(const struct ku_ckpt_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

int64_t ku_ckpt_tensor_run(const struct ku_ckpt_tensor *t, int64_t at, int64_t *memory_at)
{
    /* Let k be the last padded dim. The dims after k are dense, and so are the dim[k] rows: runs of
     * `block` elements, one per index of the dims before k. */
    int k = t->ndim - 1;
    int64_t block = 1, stride = 1;
    for (; k >= 0; k--) {
        block *= t->dim[k];
        stride *= t->padded[k];
        if (t->dim[k] != t->padded[k])
            break;
    }
    int64_t outer = at / block, in_block = at % block, place = 0;
    for (k--; k >= 0; k--) {
        place += outer % t->dim[k] * stride;
        outer /= t->dim[k];
        stride *= t->padded[k];
    }
    *memory_at = place + in_block;
    return block - in_block;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The location of contiguous elements: in memory (data), or in a store. */
struct place {
    char *data;
    const struct ku_ckpt_store *store;
    uint64_t at;
};

int ku_ckpt_tensor_copy(const struct ku_ckpt_tensor *t, int64_t copy)
{
    const struct ku_ckpt_owners *o = &t->owner;
    KU_ASSERT(o->n_owners > 0 && o->n_copies > 0);
    return o->first + (int)(copy % o->n_copies) * o->copy_stride;
}

int ku_ckpt_tensor_owner(const struct ku_ckpt_tensor *t, int64_t at, int near, int64_t *end)
{
    const struct ku_ckpt_owners *o = &t->owner;
    int64_t place, n = ku_ckpt_tensor_run(t, at, &place), count = 1, slice = 0, begin, to;
    for (int i = 0; i < t->ndim; i++)
        count *= t->padded[i];
    if (o->pitch) {
        slice = place % o->pitch / o->run;
        n = min_i64(n, o->run - place % o->run);
        place = place / o->pitch * o->run + place % o->run;
        count = count / o->pitch * o->run;
    }
    const int owner = ku_blocks_owner(count, o->block_count, o->first_block, o->n_owners, place);
    ku_blocks_range(count, o->block_count, o->first_block, o->n_owners, owner, &begin, &to);
    *end = at + min_i64(n, to - place);
    const int copy = near % (o->n_copies * o->copy_stride) / o->copy_stride;
    return ku_ckpt_tensor_copy(t, copy) + owner * o->n_slice_ranks +
           (int)slice * (o->slice_stride ? o->slice_stride : 1);
}

bool ku_ckpt_tensor_is_here(const struct ku_ckpt_tensor *t, int64_t at, int64_t count)
{
    int64_t first, last;
    bool is_here = t->owner.n_owners == 0;
    ku_ckpt_tensor_run(t, at, &first);
    ku_ckpt_tensor_run(t, at + count - 1, &last);
    for (int i = 0; i < t->n_parts && !is_here; i++)
        is_here = t->part[i].begin <= last && first < t->part[i].end;
    return is_here;
}

/* Finds the next part that contains element `at`, and lowers *end to the end of its contiguous
 * elements, and to the begin of a part after `at` on its way. *part: the previous part, -1 to
 * begin. Returns 0 if there is no further part. */
static int place_of(const struct ku_ckpt_tensor *t, int64_t at, int64_t *end, int *part,
                    struct place *place)
{
    size_t each = kumi_dtype_bytes(t->dtype);
    if (t->n_parts == 0 && t->owner.n_owners == 0) {
        *place = (struct place){.data = (char *)t->data + (size_t)at * each};
        return ++*part == 0;
    }
    while (++*part < t->n_parts) {
        const struct ku_ckpt_part *p = &t->part[*part];
        const int64_t run = p->run ? p->run : p->end - p->begin, pitch = p->run ? p->pitch : run;
        if (at < p->begin)
            *end = min_i64(*end, p->begin);
        if (at < p->begin || at >= p->end)
            continue;
        const int64_t i = (at - p->begin) / pitch, in_run = (at - p->begin) % pitch;
        if (in_run < run) {
            *end = min_i64(*end, at + run - in_run);
            *place = (struct place){NULL, p->store, p->at + (uint64_t)(i * run + in_run) * each};
            return 1;
        }
        *end = min_i64(*end, p->begin + (i + 1) * pitch);
    }
    return 0;
}

int ku_ckpt_tensor_gather(const struct ku_ckpt_tensor *t, int64_t at, int64_t count, void *out)
{
    size_t each = kumi_dtype_bytes(t->dtype);
    for (int64_t done = 0, n; done < count; done += n) {
        int64_t place, end;
        int part = -1;
        n = min_i64(ku_ckpt_tensor_run(t, at + done, &place), count - done);
        end = place + n;
        struct place from;
        KU_ASSERT(place_of(t, place, &end, &part, &from));
        n = end - place;
        char *to = (char *)out + (size_t)done * each;
        if (from.data)
            memcpy(to, from.data, (size_t)n * each);
        else
            KU_TRY(from.store->move(from.store, 0, from.at, to, (size_t)n * each));
    }
    return KUMI_OK;
}

/* Whether dtype `to` represents every value of `from`, so that elements need no check. */
static bool is_widening(enum kumi_dtype from, enum kumi_dtype to)
{
    size_t wide = kumi_dtype_bytes(to), narrow = kumi_dtype_bytes(from);
    if (from == to)
        return 1;
    if (from == KUMI_U8)
        return 1;
    if (ku_dtype_is_float(from) && ku_dtype_is_float(to))
        return wide > narrow;
    if (ku_dtype_is_float(from))
        return 0;
    /* a float needs twice the bytes of u16, i32; of two integer types the wider is signed */
    return wide >= (ku_dtype_is_float(to) ? 2 * narrow : narrow + 1);
}

/* What a conversion is checked for. */
enum look { LOOK_NONE, LOOK_RANGE /* finite values stay finite */, LOOK_EXACT /* values stay */ };

static enum look look_for(enum kumi_dtype from, enum kumi_dtype to, int exact)
{
    if (is_widening(from, to))
        return LOOK_NONE;
    return exact ? LOOK_EXACT : ku_dtype_is_float(to) ? LOOK_RANGE : LOOK_NONE;
}

/* The first element that fails the check, or -1. LOOK_EXACT converts back and compares bytes. */
static int64_t first_bad(enum look look, const void *out, enum kumi_dtype out_dtype, const void *in,
                         enum kumi_dtype in_dtype, int64_t count)
{
    unsigned char back[8] = {0}, was[8] = {0};
    size_t out_bytes = kumi_dtype_bytes(out_dtype), in_bytes = kumi_dtype_bytes(in_dtype);
    for (int64_t i = 0; i < count && look != LOOK_NONE; i++) {
        const char *x = (const char *)in + (size_t)i * in_bytes;
        const char *y = (const char *)out + (size_t)i * out_bytes;
        if (look == LOOK_RANGE) {
            if (isinf(ku_load_f64(y, out_dtype, 0)) && !isinf(ku_load_f64(x, in_dtype, 0)))
                return i;
            continue;
        }
        double a = ku_load_f64(x, in_dtype, 0);
        if (a != a && ku_dtype_is_float(out_dtype))
            continue; /* a NaN stays a NaN */
        ku_convert(back, in_dtype, y, out_dtype, 1);
        memcpy(was, x, in_bytes);
        if (memcmp(back, was, in_bytes) != 0)
            return i;
    }
    return -1;
}

/* Converts n elements into `out`. Returns the first element that fails the check, or -1. */
static int64_t convert(const struct ku_ckpt_tensor *t, void *out, const void *in,
                       enum kumi_dtype in_dtype, int64_t n, enum look look)
{
    if (in_dtype == t->dtype)
        memcpy(out, in, (size_t)n * kumi_dtype_bytes(t->dtype));
    else
        ku_convert(out, t->dtype, in, in_dtype, n);
    return first_bad(look, out, t->dtype, in, in_dtype, n);
}

/* Writes elements of another dtype to a store without addresses, through a staging buffer. */
enum { STAGE_ELEMENTS = 4096 };
static int stage_run(const struct ku_ckpt_tensor *t, const struct place *to, int64_t n,
                     const void *in, enum kumi_dtype in_dtype, enum look look, int64_t *bad)
{
    char stage[STAGE_ELEMENTS * 8];
    size_t each = kumi_dtype_bytes(t->dtype), in_each = kumi_dtype_bytes(in_dtype);
    for (int64_t at = 0, m; at < n && *bad < 0; at += m) {
        m = min_i64(n - at, STAGE_ELEMENTS);
        *bad = convert(t, stage, (const char *)in + (size_t)at * in_each, in_dtype, m, look);
        *bad += *bad < 0 ? 0 : at;
        KU_TRY(
            to->store->move(to->store, 1, to->at + (uint64_t)at * each, stage, (size_t)m * each));
    }
    return KUMI_OK;
}

static int store_run(const struct ku_ckpt_tensor *t, const struct place *to, int64_t n,
                     const void *in, enum kumi_dtype in_dtype, enum look look, int64_t *bad)
{
    const struct ku_ckpt_store *s = to->store;
    size_t bytes = (size_t)n * kumi_dtype_bytes(t->dtype);
    void *data;
    if (in_dtype == t->dtype)
        return s->move(s, 1, to->at, (void *)(uintptr_t)in, bytes);
    if (s->map == NULL)
        return stage_run(t, to, n, in, in_dtype, look, bad);
    KU_TRY(s->map(s, to->at, bytes, &data));
    *bad = convert(t, data, in, in_dtype, n, look);
    return s->unmap(s, to->at, bytes, data);
}

/* Writes the first of the *n elements at `in` that are contiguous in all parts that contain them,
 * to all these parts. *n: their number. *bad: the first inexact element, or -1. */
static int scatter_run(const struct ku_ckpt_tensor *t, int64_t place, int64_t *n, const void *in,
                       enum kumi_dtype in_dtype, enum look look, int64_t *bad)
{
    int64_t end = place + *n;
    int part = -1;
    struct place to;
    while (place_of(t, place, &end, &part, &to)) /* end: the min over all parts */
        ;
    *n = end - place;
    *bad = part = -1;
    while (*bad < 0 && place_of(t, place, &end, &part, &to)) {
        if (to.data == NULL)
            KU_TRY(store_run(t, &to, *n, in, in_dtype, look, bad));
        else
            *bad = convert(t, to.data, in, in_dtype, *n, look);
    }
    return KUMI_OK;
}

int ku_ckpt_tensor_scatter(const struct ku_ckpt_tensor *t, int64_t at, int64_t count,
                           const void *in, enum kumi_dtype in_dtype, int exact)
{
    size_t in_each = kumi_dtype_bytes(in_dtype);
    const enum look look = look_for(in_dtype, t->dtype, exact);
    for (int64_t done = 0, n; done < count; done += n) {
        int64_t place, bad;
        const char *from = (const char *)in + (size_t)done * in_each;
        n = min_i64(ku_ckpt_tensor_run(t, at + done, &place), count - done);
        KU_TRY(scatter_run(t, place, &n, from, in_dtype, look, &bad));
        if (bad >= 0)
            return KU_ERR(KUMI_EINPUT,
                          "tensor: %s: element %lld: %.17g of dtype %s %s %s; choose a wider dtype",
                          t->name, (long long)(at + done + bad), ku_load_f64(from, in_dtype, bad),
                          kumi_dtype_name(in_dtype),
                          look == LOOK_EXACT ? "cannot be represented in" : "exceeds the range of",
                          kumi_dtype_name(t->dtype));
    }
    return KUMI_OK;
}
