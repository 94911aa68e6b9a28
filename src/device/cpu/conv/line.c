/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv2d, and conv2d_dx of stride 1 (a convolution with the mirrored window), for few channels,
 * such as RGB or sixteen. One line of a window is one contiguous run of elements. The rows of a
 * product are pixels along a line, a few elements apart in one padded copy of it; each line of the
 * window is one part of the contraction:
 *
 *     padded line   |0 0 0|a b c|d e f|g h i|..   3 channels per pixel, 3 taps, stride 1
 *     row 0          <--------------->             a run of 9 elements, in place
 *     row 1                <--------------->       the next pixel: 3 elements further
 *
 * Lines outside the source are skipped; the padding beside a line is multiplied. bf16 pairs must
 * start at even elements: if pixels are an odd number of elements apart, a product takes every
 * second pixel. A run of odd length ends with half a unit, whose weight is zero.
 *
 * Each element is one chain of multiply-adds over (line, column, channel) of the window.
 */
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"

enum {
    MOST_RUN = 48, /* longer runs: slide.c */
    TILE_COLS = 64,
    TILE_LINES = 8,
    COPY_UNITS = 128 << 10,
    MOST_ROWS = 32,
    MOST_TAPS = 16, /* lines of a window */
    LINE_BYTES = 64,
    LINE_UNITS = 16 /* room after a line for the end of its last run */
};
_Static_assert((2 * COPY_UNITS + MOST_ROWS * TILE_COLS + TILE_COLS) * 4 <= KU_CPU_SCRATCH_BYTES,
               "a tile's parts fit the thread's scratch");

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t run_of(const struct ku_cpu_conv *v)
{
    return v->w.taps * v->k;
}
/* Pixels of a padded line that n results need. */
static int64_t pixels_of(const struct ku_cpu_conv *v, int64_t n)
{
    return (n - 1) * v->w.stride + v->w.taps;
}
/* Stride of a line of the copy, in units. */
static int64_t pitch_of(const struct ku_kernel *k)
{
    const struct ku_cpu_conv *v = &k->conv;
    int64_t n = pixels_of(v, v->w.dst) * v->k;
    return (ku_cpu_has_pairs(k) ? (n + 1) / 2 : n) + LINE_UNITS;
}

/* Packs one panel: each line of the window is a run of rows. */
static void tile_runs(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int64_t nr = ku_cpu_micro(k)->nr, group = tile / v->n_panels;
    const int64_t col = tile % v->n_panels * nr, n_cols = least(nr, v->cols - col);
    const int64_t taps = v->h.taps * v->w.taps, bytes = (int64_t)kumi_dtype_bytes(k->product.dtype);
    const int is_back = k->call.op == KU_OP_conv2d_dx;
    float *panel = (float *)k->call.workspace + tile * nr * v->total_units;
    char *row = (char *)ku_cpu_scratch(k, thread);
    for (int64_t h = 0; h < v->h.taps; h++, panel += v->units * nr) {
        for (int64_t e = 0; e < run_of(v); e++)
            for (int64_t j = 0; j < n_cols; j++) {
                const int64_t c = e % v->k, tap = h * v->w.taps + e / v->k;
                const int64_t at =
                    is_back ? ((group * v->k + c) * v->cols + col + j) * taps + taps - 1 - tap
                            : ((group * v->cols + col + j) * v->k + c) * taps + tap;
                memcpy(row + (e * nr + j) * bytes, ku_cpu_at(&k->call.in[1], at), (size_t)bytes);
            }
        k->cpu->ops->pack_rows(panel, nr, row, k->product.dtype, nr, run_of(v), n_cols,
                               ku_cpu_has_pairs(k));
    }
}

struct tile {
    int64_t group, n, y0, n_y;
    int64_t y, n_lines, pitch; /* copy: first line, number of lines, units per line */
    float *copy, *sum, *bias;
};
static void copy_lines(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int is_cast = k->product.dtype != KUMI_F32 && !ku_cpu_has_pairs(k);
    struct ku_cpu_line l = {
        .n = t->n, .x = -v->w.pad, .n_x = pixels_of(v, v->w.dst), .c = t->group * v->k};
    const size_t line_bytes = (size_t)(l.n_x * v->k) * kumi_dtype_bytes(k->product.dtype);
    for (int64_t i = 0; i < t->n_lines; i++) {
        float *to = t->copy + i * t->pitch, *as = is_cast ? to + COPY_UNITS : to;
        l.y = t->y + i;
        ku_cpu_pad_line(k, l, (char *)as);
        memset((char *)as + line_bytes, 0, 4);
        if (is_cast)
            k->cpu->ops->cast(to, KUMI_F32, as, k->product.dtype, l.n_x * v->k);
    }
}

/* Line y of the result for the columns [col, col + n_cols). */
struct line {
    const struct tile *tile;
    struct ku_gemm_part part[MOST_TAPS]; /* for the first pixel */
    int64_t y, n_parts, col, n_cols;
    const char *next; /* a source address to prefetch */
};
static void list_parts(const struct ku_kernel *k, struct line *l, const float *panel)
{
    const struct ku_cpu_conv *v = &k->conv;
    const struct tile *t = l->tile;
    l->n_parts = 0;
    for (int64_t h = 0; h < v->h.taps; h++) {
        const int64_t line = l->y * v->h.stride - v->h.pad + h * v->h.dilation;
        if (line >= 0 && line < v->h.src)
            l->part[l->n_parts++] =
                (struct ku_gemm_part){t->copy + (line - t->y) * t->pitch,
                                      panel + h * v->units * ku_cpu_micro(k)->nr, v->units};
    }
}
/* Computes `rows` pixels from x, `step` apart. */
static void run_pixels(const struct ku_kernel *k, const struct line *l, int64_t x, int64_t step,
                       int64_t rows)
{
    const struct ku_cpu_conv *v = &k->conv;
    const struct tile *t = l->tile;
    const struct ku_gemm_micro *micro = ku_cpu_micro(k);
    const int64_t pixel = v->w.stride * v->k * (ku_cpu_has_pairs(k) ? 2 : 4);
    const struct ku_finish to = {
        .out = ku_cpu_at(&k->call.out[0], ((t->n * v->h.dst + l->y) * v->w.dst + x) * v->dst_c +
                                              t->group * v->cols + l->col),
        .ld = step * v->dst_c,
        .n = l->n_cols,
        .bias = k->call.op == KU_OP_conv2d && k->call.n_in == 3 ? t->bias : NULL,
        .dtype = k->call.out[0].dtype};
    struct ku_gemm_part part[MOST_TAPS];
    for (int64_t i = 0; i < l->n_parts; i++) {
        part[i] = l->part[i];
        part[i].a = (const char *)part[i].a + x * pixel;
    }
    for (int64_t j = 0; j < l->n_cols && l->n_parts > 0; j += micro->nr) {
        micro->run_parts((int)rows, part, l->n_parts, step * pixel / 4, 1, t->sum + j, TILE_COLS, 0,
                         l->next, (v->units + 15) / 16 * LINE_BYTES);
        for (int64_t i = 0; i < l->n_parts; i++)
            part[i].b = (const float *)part[i].b + v->total_units * micro->nr;
    }
    if (l->n_parts == 0) /* no line of the window is inside the source */
        memset(t->sum, 0, (size_t)(rows * TILE_COLS) * sizeof *t->sum);
    k->cpu->ops->finish_rows(&to, rows, t->sum, TILE_COLS);
}
static void run_line(const struct ku_kernel *k, const struct line *l)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int64_t step = ku_cpu_has_pairs(k) && v->w.stride * v->k % 2 ? 2 : 1;
    for (int64_t phase = 0; phase < step && phase < v->w.dst; phase++) {
        const int64_t n = (v->w.dst - phase + step - 1) / step;
        const int64_t rows = ku_cpu_tiles(n, ku_cpu_tiles(n, ku_cpu_micro(k)->mr));
        for (int64_t i = 0; i < n; i += rows)
            run_pixels(k, l, phase + i * step, step, least(rows, n - i));
    }
}
static void tile_lines(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_cpu_conv *v = &k->conv;
    const struct ku_view *bias = k->call.n_in == 3 ? &k->call.in[2] : NULL;
    struct tile t = {.y0 = tile % v->n_h_tiles * v->tile_h, .pitch = pitch_of(k)};
    tile /= v->n_h_tiles;
    t.n = tile % v->n, t.group = tile / v->n;
    t.n_y = least(v->tile_h, v->h.dst - t.y0);
    const int64_t first = t.y0 * v->h.stride - v->h.pad;
    const int64_t end = first + (t.n_y - 1) * v->h.stride + (v->h.taps - 1) * v->h.dilation + 1;
    t.y = first > 0 ? first : 0;
    t.n_lines = least(end, v->h.src) - t.y;
    t.copy = ku_cpu_scratch(k, thread);
    t.sum = t.copy + 2 * COPY_UNITS;
    t.bias = t.sum + MOST_ROWS * TILE_COLS;
    copy_lines(k, &t);
    for (int64_t col = 0; col < v->cols; col += TILE_COLS) {
        const float *panel = (const float *)k->call.workspace +
                             (t.group * v->n_panels * ku_cpu_micro(k)->nr + col) * v->total_units;
        struct line l = {.tile = &t, .col = col, .n_cols = least(TILE_COLS, v->cols - col)};
        if (bias)
            k->cpu->ops->cast(t.bias, KUMI_F32, ku_cpu_at(bias, t.group * v->cols + col),
                              bias->dtype, l.n_cols);
        for (l.y = t.y0; l.y < t.y0 + t.n_y; l.y++) {
            const int64_t next = (l.y + v->tile_h) * v->h.stride;
            l.next = ku_cpu_at(&k->call.in[0],
                               (t.n * v->h.src + next) * v->w.src * v->src_c + t.group * v->k);
            list_parts(k, &l, panel);
            run_line(k, &l);
        }
        ku_pool_poll(k->cpu->pool, thread);
    }
}

int ku_cpu_bind_line(struct ku_kernel *k)
{
    struct ku_cpu_conv *v = &k->conv;
    const int is_back = v->w.is_back;
    if (run_of(v) > MOST_RUN || v->h.taps > MOST_TAPS || v->w.dilation > 1 ||
        ku_cpu_micro(k)->step > 1 || (is_back && v->h.stride * v->w.stride * v->h.dilation > 1))
        return 0;
    v->units = ku_cpu_units(k, run_of(v));
    v->total_units = v->h.taps * v->units;
    v->n_panels = ku_cpu_tiles(v->cols, ku_cpu_micro(k)->nr);
    const int64_t reach = (v->h.taps - 1) * v->h.dilation + 1;
    for (v->tile_h = least(TILE_LINES, v->h.dst); v->tile_h > 0; v->tile_h--)
        if (((v->tile_h - 1) * v->h.stride + reach) * pitch_of(k) <= COPY_UNITS)
            break;
    if (v->tile_h == 0)
        return 0;
    if (is_back) { /* from here on it is this form's; a refusal leaves it to another one */
        v->h.pad = v->h.taps - 1 - v->h.pad, v->w.pad = v->w.taps - 1 - v->w.pad;
        v->h.is_back = v->w.is_back = 0;
    }
    v->n_h_tiles = ku_cpu_tiles(v->h.dst, v->tile_h);
    ku_cpu_phase(k, tile_runs, v->groups * v->n_panels);
    ku_cpu_phase(k, tile_lines, v->groups * v->n * v->n_h_tiles);
    return 1;
}
