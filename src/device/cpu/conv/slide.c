/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv2d and conv2d_dx. Both slide a window over a source and produce a destination; for the
 * gradient the source is dy, read at the pixels whose window contains the destination.
 *
 *     rows      one destination pixel of several images: all rows have the same valid taps,
 *               so padding is never multiplied, for any window, stride and dilation
 *     columns   weights, packed once per call as [tap][channel] panels
 *     a         the needed lines of the source, copied image after image to the scratch
 *
 * Taps are ordered so that consecutive taps read adjacent pixels; in the gradient, taps with the
 * same remainder modulo the stride are grouped. Adjacent taps of a line form one part of the
 * contraction, read in place from the copy. Images in the copy start one cache line apart modulo 4
 * KiB, so that rows do not collide in L1. Where the parts would be short (few channels) the copy
 * holds whole windows (im2col).
 *
 * Each element is one chain of multiply-adds over (tap, channel) in panel order, whatever the tiles
 * are; tiles may therefore depend on the number of threads.
 */
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"

enum {
    TILE_COLS = 64,
    MOST_COPY_UNITS = 256 << 10, /* half of the scratch */
    SUM_ROWS = 2048,             /* 512 KiB of sums */
    TABLE_INTS = 9 << 10,
    TILES_A_THREAD = 4,
    LINE_UNITS = 16,
    LINE_BYTES = 64
};
_Static_assert((MOST_COPY_UNITS + SUM_ROWS * TILE_COLS + TILE_COLS + TABLE_INTS) * 4 <=
                   KU_CPU_SCRATCH_BYTES,
               "a tile's parts fit the thread's scratch");

/* The position in the source under a tap, or -1. */
static int64_t position(const struct ku_cpu_axis *a, int64_t dst, int64_t tap)
{
    int64_t p = a->is_back ? dst + a->pad - tap * a->dilation
                           : dst * a->stride - a->pad + tap * a->dilation;
    if (p < 0)
        return -1;
    if (a->is_back && a->stride > 1) {
        if (p % a->stride != 0)
            return -1;
        p /= a->stride;
    }
    return p < a->src ? p : -1;
}
/*
 * Taps in panel order; in the gradient, taps with the same remainder modulo the stride are
 * adjacent.
 */
static void order_taps(const struct ku_cpu_axis *a, int32_t *tap_of)
{
    int64_t n = 0, x = a->stride, y = a->dilation;
    while (y != 0) {
        int64_t rest = x % y;
        x = y, y = rest;
    }
    const int64_t step = a->stride / x;
    if (!a->is_back)
        for (; n < a->taps; n++)
            tap_of[n] = (int32_t)n;
    for (int64_t r = 0; n < a->taps; r++)
        for (int64_t t = a->taps - 1; t >= 0; t--)
            if (t % step == r)
                tap_of[n++] = (int32_t)t;
}

/* Positions of the source that destinations [dst, dst + n) read. */
struct span {
    int64_t from, n;
};
static struct span span_of(const struct ku_cpu_axis *a, int64_t dst, int64_t n)
{
    const int64_t reach = (a->taps - 1) * a->dilation;
    int64_t from = dst * a->stride - a->pad, to = from + (n - 1) * a->stride + reach;
    if (a->is_back) {
        from = dst + a->pad - reach;
        from = from > 0 ? (from + a->stride - 1) / a->stride : 0;
        to = (dst + n - 1 + a->pad) / a->stride;
    }
    from = from > 0 ? from : 0;
    to = to < a->src ? to : a->src - 1;
    return (struct span){from, to >= from ? to - from + 1 : 0};
}
static int64_t most_span(const struct ku_cpu_axis *a, int64_t n)
{
    const int64_t reach = (a->taps - 1) * a->dilation;
    int64_t most = a->is_back ? (n - 1 + reach) / a->stride + 1 : (n - 1) * a->stride + reach + 1;
    return most < a->src ? most : a->src;
}

static void tile_weights(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int64_t nr = ku_cpu_micro(k)->nr, taps = k->window.kernel_h * k->window.kernel_w;
    const int64_t group = tile / v->n_panels, col = tile % v->n_panels * nr;
    const int64_t n_cols = v->cols - col < nr ? v->cols - col : nr;
    float *panel = (float *)k->call.workspace + tile * nr * v->total_units;
    int32_t *slot = (int32_t *)(void *)ku_cpu_scratch(k, thread), *tap_h = slot + taps;
    int32_t *tap_w = tap_h + k->window.kernel_h;
    if (v->is_patched) {
        for (int64_t t = 0; t < taps; t++)
            slot[t] = (int32_t)t;
        memset(panel + taps * v->tap_units * nr, 0,
               (size_t)((v->units - taps * v->tap_units) * nr) * sizeof *panel);
    } else {
        order_taps(&v->h, tap_h);
        order_taps(&v->w, tap_w);
        for (int64_t i = 0; i < taps; i++)
            slot[tap_h[i / v->w.taps] * v->w.taps + tap_w[i % v->w.taps]] = (int32_t)i;
    }
    const int is_back = v->h.is_back;
    const int64_t first = is_back ? group * v->k * v->cols + col : (group * v->cols + col) * v->k;
    const struct ku_conv_panel p = {.panel = panel,
                                    .weight = ku_cpu_at(&k->call.in[1], first * taps),
                                    .width = nr,
                                    .n_cols = n_cols,
                                    .k = v->k,
                                    .taps = taps,
                                    .row_units = v->tap_units,
                                    .col_ld = is_back ? taps : v->k * taps,
                                    .k_ld = is_back ? v->cols * taps : taps,
                                    .slot = slot};
    k->cpu->ops->conv_pack(&p, k->product.dtype, ku_cpu_has_pairs(k));
}

struct tile {
    int64_t group, n0, rows, y0, n_y, x0, n_x, panel, end_panel;
    struct span sy, sx; /* of the source, in the copy */
    int64_t row_units;
    float *copy, *sum, *bias;
    int32_t *tap_h, *tap_w;
};
/* Units from image to image of the copy: one cache line above a multiple of 4 KiB. */
static int64_t pitch_of(int64_t units)
{
    return (units + 1023) / 1024 * 1024 + LINE_UNITS;
}
static const char *source_at(const struct ku_kernel *k, const struct tile *t, int64_t row,
                             int64_t y, int64_t x)
{
    const struct ku_cpu_conv *v = &k->conv;
    int64_t pixel = ((t->n0 + row) * v->h.src + y) * v->w.src + x;
    return ku_cpu_at(&k->call.in[0], pixel * v->src_c + t->group * v->k);
}
/* Copies the channels of n pixels, padded with zeros to `units` per pixel. */
static void copy_pixels(const struct ku_kernel *k, const char *from, int64_t n, int64_t units,
                        float *to)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int pairs = ku_cpu_has_pairs(k);
    const enum kumi_dtype as = pairs ? KUMI_BF16 : KUMI_F32;
    const int64_t bytes = (int64_t)kumi_dtype_bytes(k->product.dtype), unit = pairs ? 2 : 4;
    if (v->k == v->src_c && v->k * unit == units * 4) {
        k->cpu->ops->cast(to, as, from, k->product.dtype, n * v->k);
        return;
    }
    for (int64_t i = 0; i < n; i++, to += units, from += v->src_c * bytes) {
        memset((char *)to + v->k * unit, 0, (size_t)(units * 4 - v->k * unit));
        k->cpu->ops->cast(to, as, from, k->product.dtype, v->k);
    }
}
static void copy_windows(const struct ku_kernel *k, const struct tile *t, int64_t row)
{
    const struct ku_cpu_conv *v = &k->conv;
    for (int64_t i = 0; i < t->n_y * t->n_x; i++) {
        float *to = t->copy + row * t->row_units + i * v->units, *end = to + v->units;
        for (int64_t h = 0; h < v->h.taps; h++) {
            int64_t y = position(&v->h, t->y0 + i / t->n_x, h);
            for (int64_t w = 0; w < v->w.taps; w++, to += v->tap_units) {
                int64_t x = y < 0 ? -1 : position(&v->w, t->x0 + i % t->n_x, w);
                if (x < 0)
                    memset(to, 0, (size_t)v->tap_units * sizeof *to);
                else
                    copy_pixels(k, source_at(k, t, row, y, x), 1, v->tap_units, to);
            }
        }
        memset(to, 0, (size_t)(end - to) * sizeof *to);
    }
}
static void copy_source(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_cpu_conv *v = &k->conv;
    for (int64_t r = 0; r < t->rows; r++) {
        if (v->is_patched)
            copy_windows(k, t, r);
        else
            for (int64_t y = 0; y < t->sy.n && t->sx.n > 0; y++)
                copy_pixels(k, source_at(k, t, r, t->sy.from + y, t->sx.from), t->sx.n, v->units,
                            t->copy + r * t->row_units + y * t->sx.n * v->units);
    }
}

/* Adjacent taps of one line: first slot in the panel, position in the copy, number. */
struct run {
    int64_t slot, at, n;
};
static int64_t list_runs(const struct ku_kernel *k, const struct tile *t, int64_t x,
                         struct run *run)
{
    const struct ku_cpu_axis *a = &k->conv.w;
    int64_t n = 0;
    for (int64_t s = 0; s < a->taps; s++) {
        int64_t at = position(a, x, t->tap_w[s]);
        if (at < 0)
            continue;
        at -= t->sx.from;
        if (n > 0 && run[n - 1].slot + run[n - 1].n == s && run[n - 1].at + run[n - 1].n == at)
            run[n - 1].n++;
        else
            run[n++] = (struct run){s, at, 1};
    }
    return n;
}

enum { MOST_PARTS = 16 };
struct parts {
    struct ku_gemm_part part[MOST_PARTS];
    int64_t n;
    int load;
};
/* Runs the listed parts for n_panels panels of columns and clears the list. */
static void multiply(const struct ku_kernel *k, const struct tile *t, struct parts *p,
                     int64_t n_panels, float *sum)
{
    const struct ku_gemm_micro *micro = ku_cpu_micro(k);
    for (int64_t j = 0; j < n_panels && p->n > 0; j++) {
        micro->run_parts((int)t->rows, p->part, p->n, t->row_units, 1, sum + j * micro->nr,
                         TILE_COLS, p->load, NULL, 0);
        for (int64_t i = 0; i < p->n; i++)
            p->part[i].b = (const float *)p->part[i].b + k->conv.total_units * micro->nr;
    }
    p->load |= p->n > 0;
    p->n = 0;
}

/* The part of the weights in progress: n_panels panels from `panel`, units [from, to). */
struct block {
    const float *panel;
    int64_t n_panels, from, to;
};
/* One destination pixel of the tile's images. */
static void slide(const struct ku_kernel *k, const struct tile *t, const struct block *b, int64_t y,
                  const struct run *run, int64_t n_runs, float *sum)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int64_t nr = ku_cpu_micro(k)->nr;
    struct parts p;
    p.n = p.load = 0;
    for (int64_t s = 0; s < v->h.taps; s++) {
        int64_t line = position(&v->h, y, t->tap_h[s]);
        for (int64_t r = 0; r < n_runs && line >= 0; r++) {
            int64_t unit = (s * v->w.taps + run[r].slot) * v->units;
            int64_t from = unit > b->from ? unit : b->from, to = unit + run[r].n * v->units;
            to = to < b->to ? to : b->to;
            p.load |= unit < b->from;
            if (from >= to)
                continue;
            const float *at = t->copy + ((line - t->sy.from) * t->sx.n + run[r].at) * v->units;
            p.part[p.n++] =
                (struct ku_gemm_part){at + from - unit, b->panel + from * nr, to - from};
            if (p.n == MOST_PARTS)
                multiply(k, t, &p, b->n_panels, sum);
        }
    }
    multiply(k, t, &p, b->n_panels, sum);
    if (!p.load && b->to == v->total_units) /* a pixel that no window contains */
        memset(sum, 0, (size_t)(t->rows * TILE_COLS) * sizeof *sum);
}
static void patch(const struct ku_kernel *k, const struct tile *t, const struct block *b,
                  int64_t pixel, float *sum)
{
    struct parts p;
    p.n = 1, p.load = b->from > 0;
    p.part[0] = (struct ku_gemm_part){t->copy + pixel * k->conv.units + b->from,
                                      b->panel + b->from * ku_cpu_micro(k)->nr, b->to - b->from};
    multiply(k, t, &p, b->n_panels, sum);
}

static struct ku_finish finish_at(const struct ku_kernel *k, const struct tile *t, int64_t y,
                                  int64_t x, int64_t col, int64_t n_cols)
{
    const struct ku_cpu_conv *v = &k->conv;
    int64_t pixel = (t->n0 * v->h.dst + y) * v->w.dst + x;
    return (struct ku_finish){
        .out = ku_cpu_at(&k->call.out[0], pixel * v->dst_c + t->group * v->cols + col),
        .ld = v->h.dst * v->w.dst * v->dst_c,
        .n = n_cols,
        .bias = k->call.op == KU_OP_conv2d && k->call.n_in == 3 ? t->bias : NULL,
        .dtype = k->call.out[0].dtype};
}
static void fetch_results(const struct ku_finish *f, int64_t rows)
{
    const int64_t bytes = (int64_t)kumi_dtype_bytes(f->dtype);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t at = r * f->ld * bytes, end = at + f->n * bytes; at < end; at += LINE_BYTES)
            __builtin_prefetch((char *)f->out + at, 1);
}

/* All pixels of a tile with one part of the weights. */
static void run_block(const struct ku_kernel *k, const struct tile *t, const struct block *b,
                      int64_t col, int64_t n_cols, int thread)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int is_last = b->to == v->total_units, is_whole = is_last && b->from == 0;
    struct run *run = (struct run *)(void *)(t->tap_w + v->w.taps + v->w.taps % 2);
    int64_t n_runs = 0;
    for (int64_t i = 0; i < t->n_x * t->n_y; i++) {
        const int64_t x = i / t->n_y, y = i % t->n_y, pixel = y * t->n_x + x;
        float *sum = is_whole ? t->sum : t->sum + i * t->rows * TILE_COLS;
        struct ku_finish to = finish_at(k, t, t->y0 + y, t->x0 + x, col, n_cols);
        if (is_last)
            fetch_results(&to, t->rows);
        if (y == 0 && !v->is_patched)
            n_runs = list_runs(k, t, t->x0 + x, run);
        if (v->is_patched)
            patch(k, t, b, pixel, sum);
        else
            slide(k, t, b, t->y0 + y, run, n_runs, sum);
        if (is_last)
            k->cpu->ops->finish_rows(&to, t->rows, sum, TILE_COLS);
        ku_pool_poll(k->cpu->pool, thread);
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static void tile_place(const struct ku_kernel *k, int64_t tile, int thread, struct tile *t)
{
    const struct ku_cpu_conv *v = &k->conv;
    int64_t part = tile % v->n_col_parts;
    tile /= v->n_col_parts;
    t->panel = part * v->n_panels / v->n_col_parts;
    t->end_panel = (part + 1) * v->n_panels / v->n_col_parts;
    t->x0 = tile % v->n_w_tiles * v->tile_w, tile /= v->n_w_tiles;
    t->y0 = tile % v->n_h_tiles * v->tile_h, tile /= v->n_h_tiles;
    t->n0 = tile % v->n_row_tiles * v->rows, t->group = tile / v->n_row_tiles;
    t->n_x = least(v->tile_w, v->w.dst - t->x0);
    t->n_y = least(v->tile_h, v->h.dst - t->y0);
    t->rows = least(v->rows, v->n - t->n0);
    t->sy = span_of(&v->h, t->y0, t->n_y);
    t->sx = span_of(&v->w, t->x0, t->n_x);
    t->row_units =
        pitch_of(v->is_patched ? t->n_y * t->n_x * v->units : t->sy.n * t->sx.n * v->units);
    t->copy = ku_cpu_scratch(k, thread);
    t->sum = t->copy + MOST_COPY_UNITS;
    t->bias = t->sum + SUM_ROWS * TILE_COLS;
    t->tap_h = (int32_t *)(void *)(t->bias + TILE_COLS);
    t->tap_w = t->tap_h + v->h.taps + v->h.taps % 2;
    order_taps(&v->h, t->tap_h);
    order_taps(&v->w, t->tap_w);
}
static void tile_slide(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int64_t nr = ku_cpu_micro(k)->nr, at_once = TILE_COLS / nr;
    const struct ku_view *bias = k->call.n_in == 3 ? &k->call.in[2] : NULL;
    struct tile t;
    tile_place(k, tile, thread, &t);
    copy_source(k, &t);
    for (int64_t j = t.panel; j < t.end_panel; j += at_once) {
        const int64_t col = j * nr,
                      n_cols = least(least(TILE_COLS, t.end_panel * nr - col), v->cols - col);
        struct block b = {.n_panels = least(at_once, t.end_panel - j)};
        b.panel =
            (const float *)k->call.workspace + (t.group * v->n_panels + j) * nr * v->total_units;
        if (bias)
            k->cpu->ops->cast(t.bias, KUMI_F32, ku_cpu_at(bias, t.group * v->cols + col),
                              bias->dtype, n_cols);
        for (b.from = 0; b.from < v->total_units; b.from = b.to) {
            b.to = least(b.from + v->chunk_units, v->total_units);
            run_block(k, &t, &b, col, n_cols, thread);
        }
    }
}

static int64_t copy_units(const struct ku_cpu_conv *v)
{
    int64_t pixels = v->is_patched ? v->tile_h * v->tile_w
                                   : most_span(&v->h, v->tile_h) * most_span(&v->w, v->tile_w);
    return v->rows * pitch_of(pixels * v->units);
}
static bool is_small(const struct ku_cpu_conv *v, int64_t most)
{
    return copy_units(v) <= most && v->rows * v->tile_h * v->tile_w <= SUM_ROWS;
}
/*
 * Starts with whole lines of as many images as a product has rows, then adds lines while they fit.
 */
static int choose_tile(struct ku_kernel *k)
{
    struct ku_cpu_conv *v = &k->conv;
    const int64_t mr = ku_cpu_micro(k)->mr, taps = v->h.taps * v->w.taps;
    const struct ku_slide_tiling tiling = ku_slide_tiling(&k->cpu->caches);
    const int64_t target = tiling.copy_units;
    v->chunk_units = tiling.chunk_units;
    v->tap_units =
        v->is_patched ? ku_cpu_has_pairs(k) ? (v->k + 1) / 2 : v->k : ku_cpu_units(k, v->k);
    v->units = v->tap_units;
    if (v->is_patched)
        v->units = ku_cpu_units(k, taps * v->tap_units * (ku_cpu_has_pairs(k) ? 2 : 1));
    v->total_units = v->is_patched ? v->units : taps * v->units;
    v->rows = ku_cpu_tiles(v->n, ku_cpu_tiles(v->n, mr));
    v->tile_h = 1, v->tile_w = v->w.dst;
    while (v->tile_w > 1 && !is_small(v, target))
        v->tile_w = (v->tile_w + 1) / 2;
    while (v->rows > 1 && !is_small(v, MOST_COPY_UNITS))
        v->rows = (v->rows + 1) / 2;
    if (!is_small(v, MOST_COPY_UNITS))
        return 0;
    for (; v->tile_h < v->h.dst; v->tile_h++) {
        struct ku_cpu_conv more = *v;
        more.tile_h++;
        if (!is_small(&more, target))
            break;
    }
    return 1;
}

int ku_cpu_bind_slide(struct ku_kernel *k)
{
    struct ku_cpu_conv *v = &k->conv;
    const int n_threads = ku_pool_n_threads(k->cpu->pool);
    const int64_t nr = ku_cpu_micro(k)->nr;
    if (!choose_tile(k)) {
        v->is_patched = 1; /* windows with a large reach: the copy of whole windows may fit */
        if (!choose_tile(k))
            return 0;
    }
    v->n_panels = ku_cpu_tiles(v->cols, nr);
    v->tile_h = ku_cpu_tiles(v->h.dst, ku_cpu_tiles(v->h.dst, v->tile_h));
    v->n_row_tiles = ku_cpu_tiles(v->n, v->rows);
    v->n_h_tiles = ku_cpu_tiles(v->h.dst, v->tile_h);
    v->n_w_tiles = ku_cpu_tiles(v->w.dst, v->tile_w);
    int64_t n_tiles = v->groups * v->n_row_tiles * v->n_h_tiles * v->n_w_tiles;
    int64_t n_blocks = ku_cpu_tiles(v->cols, TILE_COLS);
    v->n_col_parts = n_threads > 1 ? ku_cpu_tiles(TILES_A_THREAD * n_threads, n_tiles) : 1;
    v->n_col_parts = least(v->n_col_parts, n_blocks);
    ku_cpu_phase(k, tile_weights, v->groups * v->n_panels);
    ku_cpu_phase(k, tile_slide, n_tiles * v->n_col_parts);
    return 1;
}

/* Panels as f32 units, with room for the widest panel and step of any instruction set. */
enum { MOST_NR = 32, MOST_STEP = 16 };
size_t ku_cpu_workspace_conv_panels(const struct ku_op_case *c)
{
    const struct ku_dim *w = c->in[1].shape.dim;
    const int is_back = c->op == KU_OP_conv2d_dx;
    int64_t group_f = w[0].count / c->attr->groups, k = is_back ? group_f : w[1].count;
    int64_t cols = is_back ? w[1].count : group_f;
    return (size_t)(c->attr->groups * ku_cpu_tiles(cols, MOST_NR) * MOST_NR * w[2].count *
                    w[3].count * (k + 2 * MOST_STEP)) *
           sizeof(float);
}
