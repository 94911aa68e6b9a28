/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of rows: pick and cache_write of decoding with a key-value cache, and part. */
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"

static size_t row_bytes(const struct ku_kernel *k)
{
    return (size_t)k->width * kumi_dtype_bytes(k->call.out[0].dtype);
}

/*
 * Rows of `width` elements, about KU_CPU_TILE_COUNT elements per tile; row_count: elements that one
 * row moves.
 */
static int bind_rows(struct ku_kernel *k, ku_cpu_tile_fn *fn, int64_t n_rows, int64_t width,
                     int64_t row_count)
{
    k->count = n_rows;
    k->width = width;
    k->per_tile = row_count < KU_CPU_TILE_COUNT ? KU_CPU_TILE_COUNT / (row_count + 1) + 1 : 1;
    ku_cpu_phase(k, fn, width ? ku_cpu_tiles(n_rows, k->per_tile) : 0);
    return KUMI_OK;
}

static void tile_pick(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0];
    const int64_t parts = x->shape.dim[2].count;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t i = from; i < from + n; i++)
        memcpy(ku_cpu_at(&k->call.out[0], i * k->width),
               ku_cpu_at(x, (i * parts + k->attr.index) * k->width), row_bytes(k));
}
int ku_cpu_bind_pick(struct ku_kernel *k)
{
    const struct ku_shape *x = &k->call.in[0].shape;
    KU_TRY(ku_cpu_check(k, "x", &k->call.in[0], k->call.out[0].dtype));
    const int64_t width = ku_cpu_extent(x, 3, x->ndim);
    return bind_rows(k, tile_pick, ku_cpu_extent(x, 0, 2), width, width);
}

/*
 * A row of the phase is one head of one sample: `width` elements of each token.
 */
static void tile_cache_write(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[1], *cache = &k->call.out[0];
    const int32_t *position = k->call.in[2].data;
    const int64_t n_t = x->shape.dim[1].count, n_h = x->shape.dim[2].count;
    const int64_t places = cache->shape.dim[2].count;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t i = from; i < from + n; i++) {
        const int64_t sample = i / n_h, head = i % n_h, at = position[sample];
        for (int64_t t = at < 0 ? -at : 0; t < n_t && at + t < places; t++)
            memcpy(ku_cpu_at(cache, (i * places + at + t) * k->width),
                   ku_cpu_at(x, ((sample * n_t + t) * n_h + head) * k->width), row_bytes(k));
    }
}
int ku_cpu_bind_cache_write(struct ku_kernel *k)
{
    const struct ku_shape *x = &k->call.in[1].shape;
    KU_TRY(ku_cpu_check(k, "cache", &k->call.in[0], k->call.out[0].dtype));
    KU_TRY(ku_cpu_check(k, "x", &k->call.in[1], k->call.out[0].dtype));
    KU_TRY(ku_cpu_check(k, "positions", &k->call.in[2], KUMI_I32));
    return bind_rows(k, tile_cache_write, x->dim[0].count * x->dim[2].count, x->dim[3].count,
                     x->dim[1].count * x->dim[3].count);
}

/* Row i of the result: `width` elements that are contiguous in both. */
static void tile_part(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0], *y = &k->call.out[0];
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t i = from; i < from + n; i++) {
        int64_t at = 0, rest = i * k->width, pitch = 1;
        for (int d = y->shape.ndim - 1; d >= 0; d--) {
            at += (rest % y->shape.dim[d].count + y->start[d] - x->start[d]) * pitch;
            rest /= y->shape.dim[d].count;
            pitch *= x->shape.dim[d].count;
        }
        memcpy(ku_cpu_at(y, i * k->width), ku_cpu_at(x, at), row_bytes(k));
    }
}
int ku_cpu_bind_part(struct ku_kernel *k)
{
    const struct ku_shape *x = &k->call.in[0].shape, *y = &k->call.out[0].shape;
    int last = y->ndim - 1; /* the innermost dim that is cut */
    KU_TRY(ku_cpu_check(k, "x", &k->call.in[0], k->call.out[0].dtype));
    while (last > 0 && x->dim[last].count == y->dim[last].count)
        last--;
    const int64_t width = ku_cpu_extent(y, last < 0 ? 0 : last, y->ndim);
    return bind_rows(k, tile_part, ku_cpu_extent(y, 0, last < 0 ? 0 : last), width, width);
}
