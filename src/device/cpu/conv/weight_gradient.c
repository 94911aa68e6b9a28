/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv2d_dw: for each tap, a product of x (shifted by the tap) and dy, contracted over the pixels
 * at which the tap is inside x. Padding is never multiplied.
 *
 * A tile is a slice of the images, up to block_c channels of x and tile_f of dy, and all taps; its
 * sums stay in the scratch. It processes some images and lines at a time and packs both operands
 * into panels [pixel][image][channel]. Pixels of x are grouped by their remainder modulo the
 * stride, so that the pixels of one tap along a line are contiguous:
 *
 *     stride 2, line of x   0 1 2 3 4 5 6 7
 *     packed                0 2 4 6 | 1 3 5 7
 *
 * One part of the contraction is a line of pixels times the images. If x has few channels (RGB),
 * the rows of the product are whole window lines instead (is_lined).
 *
 * The slices and the order inside them depend on the shape alone. Several slices leave f32 sums in
 * the workspace; a second phase adds them in order.
 */
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"

/* No functions of the caches: they decide the slices, and the order of a sum inside a slice. */
enum {
    LEAST_COLS = 64,
    SUM_FLOATS = 80 << 10,   /* target for a tile's sums: 320 KiB */
    PANEL_UNITS = 150 << 10, /* target for the panels of both operands: 600 KiB */
    MOST_TAPS = 2048,        /* the sums of one channel are then 512 KiB */
    LEAST_TILES = 8,         /* with fewer tiles, images are cut into slices */
    LEAST_IMAGES = 4,        /* min of a slice */
    CHUNK_UNITS = 4,         /* units of images per pass, if their lines are many */
    MOST_PARTS = 16,
    MOST_WINDOW = 1024, /* max elements of a window whose lines are rows */
    LINE_FLOATS = 16 << 10
};
_Static_assert((MOST_TAPS * LEAST_COLS + PANEL_UNITS + 2 * LINE_FLOATS) * 4 < KU_CPU_SCRATCH_BYTES,
               "a tile's parts fit the thread's scratch");

struct tile {
    int64_t slice, group, c0, n_c, f0, n_f;
    int64_t n0, n, n_units;   /* images, and units per pixel */
    int64_t y0, n_y, x0, n_x; /* results */
    int64_t y, n_lines, n_q;  /* lines of x in use: first, number; columns per remainder */
    int64_t part, width;      /* of a panel of x: columns, and units of a row */
    int64_t x_panel, dy_panel;
    float *sum, *xs, *dys, *row;
};
static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t taps_of(const struct ku_cpu_conv *v)
{
    return v->is_lined ? v->h.taps : v->h.taps * v->w.taps;
}
static int64_t rows_of(const struct ku_cpu_conv *v)
{
    return v->is_lined ? v->w.taps * v->k : v->k;
}
/* Rows of a product: as equal as possible; AMX needs its full tile. */
static int64_t part_of(const struct ku_kernel *k, int64_t n_c)
{
    const struct ku_gemm_micro *micro = ku_cpu_micro(k);
    return micro->regroup ? micro->mr : ku_cpu_tiles(n_c, ku_cpu_tiles(n_c, micro->mr));
}
/* Whole vectors are faster to write. */
static int64_t width_of(const struct ku_kernel *k, int64_t part)
{
    return ku_cpu_micro(k)->mr > 8 ? (part + 15) / 16 * 16 : part;
}
static int64_t reach_of(const struct ku_cpu_axis *a)
{
    return (a->taps - 1) * a->dilation;
}
/* Columns per remainder modulo the stride of a line of x that n results need. */
static int64_t columns_of(const struct ku_cpu_conv *v, int64_t n)
{
    return n + reach_of(&v->w) / v->w.stride;
}
static int64_t lines_of(const struct ku_cpu_conv *v, int64_t n)
{
    return least((n - 1) * v->h.stride + reach_of(&v->h) + 1, v->h.src);
}
/* pixels_of, line_of: pixels and elements of a padded line that n results need. */
static int64_t pixels_of(const struct ku_cpu_conv *v, int64_t n)
{
    return (n - 1) * v->w.stride + v->w.taps;
}
static int64_t line_of(const struct ku_cpu_conv *v, int64_t n)
{
    return pixels_of(v, n) * v->k;
}

/* Whether any tap of any result reads position p (counted with padding). */
static bool is_met(const struct ku_cpu_axis *a, int64_t p)
{
    for (int64_t t = 0; t < a->taps; t++)
        if ((p - t * a->dilation) % a->stride == 0)
            return 1;
    return 0;
}
static const char *pixel_at(const struct ku_view *v, int64_t n, int64_t y, int64_t x, int64_t c)
{
    const struct ku_dim *d = v->shape.dim;
    return ku_cpu_at(v, ((n * d[1].count + y) * d[2].count + x) * d[3].count + c);
}
/* Packs pixels of dy; with pairs, two images per unit. */
static void pack_dy(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_view *dy = &k->call.in[1];
    const int per_unit = ku_cpu_has_pairs(k) ? 2 : 1;
    const int64_t c = t->group * k->conv.cols + t->f0, nr = ku_cpu_micro(k)->nr;
    struct ku_conv_row r = {.width = nr,
                            .part = nr,
                            .stride = t->dy_panel,
                            .n_cols = t->n_f,
                            .n = t->n_x,
                            .from_step = k->conv.dst_c,
                            .to_step = k->conv.is_lined ? nr : t->n_units * nr};
    for (int64_t u = 0; u * per_unit < t->n; u++)
        for (int64_t i = 0; i < t->n_y; i++) {
            const int64_t n = t->n0 + u * per_unit, n2 = n + per_unit - 1, y = t->y0 + i;
            r.to =
                t->dys +
                (k->conv.is_lined ? (u * t->n_y + i) * t->n_x : i * t->n_x * t->n_units + u) * nr;
            r.a = pixel_at(dy, n, y, t->x0, c);
            r.b = n2 < t->n0 + t->n ? pixel_at(dy, n2, y, t->x0, c) : NULL;
            k->cpu->ops->pack_split(&r, dy->dtype, per_unit == 2);
        }
}
/* Packs padded lines of x; with pairs, two images per unit. */
static void pack_lines(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int per_unit = ku_cpu_has_pairs(k) ? 2 : 1;
    const int64_t n = line_of(v, t->n_x), bytes = (int64_t)kumi_dtype_bytes(k->product.dtype);
    float *to = t->xs;
    for (int64_t u = 0; u < t->n_units; u++)
        for (int64_t y = t->y; y < t->y + t->n_lines; y++, to += n) {
            struct ku_cpu_line l = {.n = t->n0 + u * per_unit,
                                    .y = y,
                                    .x = t->x0 * v->w.stride - v->w.pad,
                                    .n_x = pixels_of(v, t->n_x),
                                    .c = t->group * v->k};
            const int64_t n_images = least(per_unit, t->n0 + t->n - l.n);
            for (int64_t i = 0; i < n_images; i++, l.n++)
                ku_cpu_pad_line(k, l, (char *)t->row + i * n * bytes);
            k->cpu->ops->pack_rows(to, n, t->row, k->product.dtype, n, n_images, n, per_unit == 2);
        }
}
/* Packs the pixels of line y of x with one remainder modulo the stride. */
static void pack_phase(const struct ku_kernel *k, const struct tile *t, int64_t u, int64_t y,
                       int64_t phase)
{
    const struct ku_cpu_conv *v = &k->conv;
    const struct ku_view *in = &k->call.in[0];
    const int64_t s = v->w.stride, c = t->group * v->k + t->c0;
    const int per_unit = ku_cpu_has_pairs(k) ? 2 : 1;
    const int64_t n = t->n0 + u * per_unit, n2 = n + per_unit - 1;
    int64_t shift = v->w.pad - phase; /* x = q s - shift */
    int64_t q = shift > 0 ? (shift + s - 1) / s : 0, end = v->w.src - 1 + shift;
    end = end < 0 ? 0 : least(end / s + 1, t->x0 + t->n_q);
    q = q > t->x0 ? q : t->x0;
    const int64_t x = q * s - shift, slot = ((y - t->y) * s + phase) * t->n_q + q - t->x0;
    if (q >= end || !is_met(&v->w, phase))
        return;
    const struct ku_conv_row r = {.to = t->xs + (slot * t->n_units + u) * t->width,
                                  .a = pixel_at(in, n, y, x, c),
                                  .b = n2 < t->n0 + t->n ? pixel_at(in, n2, y, x, c) : NULL,
                                  .width = t->width,
                                  .part = t->part,
                                  .stride = t->x_panel,
                                  .n_cols = t->n_c,
                                  .n = end - q,
                                  .from_step = s * v->src_c,
                                  .to_step = t->n_units * t->width};
    k->cpu->ops->pack_split(&r, in->dtype, per_unit == 2);
}
static void pack_x(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int per_unit = ku_cpu_has_pairs(k) ? 2 : 1;
    for (int64_t u = 0; u * per_unit < t->n; u++)
        for (int64_t y = t->y; y < t->y + t->n_lines; y++)
            for (int64_t p = 0; p < v->w.stride && is_met(&v->h, y + v->h.pad); p++)
                pack_phase(k, t, u, y, p);
}
static void pack(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_gemm_micro *micro = ku_cpu_micro(k);
    const int64_t n_x = ku_cpu_tiles(t->n_c, t->part), n_dy = ku_cpu_tiles(t->n_f, micro->nr);
    if (t->n_units * (ku_cpu_has_pairs(k) ? 2 : 1) > t->n + 1) { /* units up to the kernel's step */
        memset(t->xs, 0, (size_t)(n_x * t->x_panel) * sizeof *t->xs);
        memset(t->dys, 0, (size_t)(n_dy * t->dy_panel) * sizeof *t->dys);
    }
    pack_dy(k, t);
    if (k->conv.is_lined)
        pack_lines(k, t);
    else
        pack_x(k, t);
    for (int64_t i = 0; i < n_x && micro->regroup; i++)
        micro->regroup(t->xs + i * t->x_panel, t->x_panel / t->width);
}

/* All rows and columns of one tap over the listed parts. */
static void multiply(const struct ku_kernel *k, const struct tile *t, int64_t tap,
                     const struct ku_gemm_part *part, int64_t n_parts)
{
    const struct ku_gemm_micro *micro = ku_cpu_micro(k);
    const struct ku_cpu_conv *v = &k->conv;
    struct ku_gemm_part p[MOST_PARTS];
    for (int64_t c = 0; c < t->n_c; c += t->part)
        for (int64_t f = 0; f < t->n_f; f += micro->nr) {
            for (int64_t i = 0; i < n_parts; i++) {
                p[i] = part[i];
                p[i].a = (const float *)part[i].a + c / t->part * t->x_panel;
                p[i].b = (const float *)part[i].b + f / micro->nr * t->dy_panel;
            }
            micro->run_parts((int)least(t->part, t->n_c - c), p, n_parts, micro->step, t->width,
                             t->sum + (tap * t->n_c + c) * v->tile_f + f, v->tile_f, 1, NULL, 0);
        }
}
/* Results [*from, *to) along one dim for which the tap is inside x. */
static void inside(const struct ku_cpu_axis *a, int64_t tap, int64_t first, int64_t n,
                   int64_t *from, int64_t *to)
{
    const int64_t shift = a->pad - tap * a->dilation, room = a->src - 1 + shift;
    *from = shift > 0 ? (shift + a->stride - 1) / a->stride : 0;
    *to = room < 0 ? 0 : room / a->stride + 1;
    *from = *from > first ? *from : first;
    *to = least(*to, first + n);
}
static void run_tap(const struct ku_kernel *k, const struct tile *t, int64_t h, int64_t w)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int64_t nr = ku_cpu_micro(k)->nr, z = w * v->w.dilation, line = v->w.stride * t->n_q;
    struct ku_gemm_part part[MOST_PARTS];
    int64_t y, y_end, x, x_end, n = 0;
    inside(&v->h, h, t->y0, t->n_y, &y, &y_end);
    inside(&v->w, w, t->x0, t->n_x, &x, &x_end);
    for (; y < y_end && x < x_end; y++) {
        const int64_t at = y * v->h.stride - v->h.pad + h * v->h.dilation - t->y;
        const int64_t q = at * line + z % v->w.stride * t->n_q + x + z / v->w.stride - t->x0;
        part[n++] =
            (struct ku_gemm_part){t->xs + q * t->n_units * t->width,
                                  t->dys + ((y - t->y0) * t->n_x + x - t->x0) * t->n_units * nr,
                                  (x_end - x) * t->n_units};
        if (n == MOST_PARTS || y == y_end - 1) {
            multiply(k, t, h * v->w.taps + w, part, n);
            n = 0;
        }
    }
}
/* One line of the window, for is_lined: image after image. */
static void run_window_line(const struct ku_kernel *k, const struct tile *t, int64_t h)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int64_t nr = ku_cpu_micro(k)->nr, line = line_of(v, t->n_x);
    struct ku_gemm_part part[MOST_PARTS];
    int64_t first, end, n = 0;
    inside(&v->h, h, t->y0, t->n_y, &first, &end);
    for (int64_t u = 0; u < t->n_units; u++)
        for (int64_t y = first; y < end; y++) {
            const int64_t at = y * v->h.stride - v->h.pad + h * v->h.dilation - t->y;
            part[n++] =
                (struct ku_gemm_part){t->xs + (u * t->n_lines + at) * line,
                                      t->dys + (u * t->n_y + y - t->y0) * t->n_x * nr, t->n_x};
            if (n == MOST_PARTS || (y == end - 1 && u == t->n_units - 1)) {
                multiply(k, t, h, part, n);
                n = 0;
            }
        }
}
static void run_block(const struct ku_kernel *k, struct tile *t, int thread)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int64_t n_pixels = t->n_y * t->n_x, n_cg = ku_cpu_tiles(t->n_c, t->part);
    t->n_units = ku_cpu_units(k, t->n);
    t->y = t->y0 * v->h.stride - v->h.pad;
    t->y = t->y > 0 ? t->y : 0;
    t->n_lines =
        least((t->y0 + t->n_y - 1) * v->h.stride - v->h.pad + reach_of(&v->h) + 1, v->h.src) - t->y;
    t->n_lines = t->n_lines > 0 ? t->n_lines : 0;
    t->n_q = columns_of(v, t->n_x);
    t->x_panel = t->n_lines * v->w.stride * t->n_q * t->n_units * t->width;
    t->dys = t->xs + n_cg * t->x_panel;
    if (v->is_lined) { /* rows are one element apart, pixels stride * k */
        t->dys = t->xs + t->n_units * t->n_lines * line_of(v, t->n_x);
        t->x_panel = t->part, t->width = v->w.stride * v->k;
    }
    t->dy_panel = n_pixels * t->n_units * ku_cpu_micro(k)->nr;
    pack(k, t);
    for (int64_t i = 0; i < taps_of(v); i++) {
        if (v->is_lined)
            run_window_line(k, t, i);
        else
            run_tap(k, t, i / v->w.taps, i % v->w.taps);
        ku_pool_poll(k->cpu->pool, thread);
    }
    ku_pool_poll(k->cpu->pool, thread);
}

/* Writes the tile's sums to the gradient, or to its slice of the workspace. */
static void unpack(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_cpu_conv *v = &k->conv;
    const struct ku_view *out = &k->call.out[0];
    const int64_t taps = v->h.taps * v->w.taps, f = t->group * v->cols + t->f0;
    const int64_t n = v->is_lined ? v->k : t->n_c, at = (f * v->k + t->c0) * taps;
    const int is_final = v->n_slices == 1;
    const struct ku_conv_sums s = {.out = is_final ? ku_cpu_at(out, at)
                                                   : (float *)k->call.workspace +
                                                         t->slice * ku_cpu_count(out) + at,
                                   .sum = t->sum,
                                   .out_ld = v->k * taps,
                                   .n_cols = t->n_f,
                                   .k = n,
                                   .k_all = n,
                                   .taps = taps,
                                   .ld = v->tile_f,
                                   .accumulate = is_final && k->call.accumulate};
    k->cpu->ops->conv_unpack(&s, is_final ? out->dtype : KUMI_F32);
}
static void tile_dw(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int64_t n_f_tiles = ku_cpu_tiles(v->cols, v->tile_f);
    struct tile t = {.f0 = tile % n_f_tiles * v->tile_f};
    tile /= n_f_tiles;
    t.c0 = tile % v->n_blocks * v->block_c, tile /= v->n_blocks;
    t.group = tile % v->groups, t.slice = tile / v->groups;
    t.n_f = least(v->tile_f, v->cols - t.f0);
    t.n_c = least(v->block_c, rows_of(v) - t.c0);
    t.part = part_of(k, t.n_c), t.width = width_of(k, t.part);
    t.sum = ku_cpu_scratch(k, thread);
    t.row = t.sum + MOST_TAPS * LEAST_COLS;
    t.xs = t.row + 2 * LINE_FLOATS;
    memset(t.sum, 0, (size_t)(taps_of(v) * t.n_c * v->tile_f) * sizeof *t.sum);
    const int64_t end = least((t.slice + 1) * v->slice_n, v->n);
    for (t.n0 = t.slice * v->slice_n; t.n0 < end; t.n0 += v->chunk_n)
        for (t.y0 = 0; t.y0 < v->h.dst; t.y0 += v->tile_h)
            for (t.x0 = 0; t.x0 < v->w.dst; t.x0 += v->tile_w) {
                t.n = least(v->chunk_n, end - t.n0);
                t.n_y = least(v->tile_h, v->h.dst - t.y0);
                t.n_x = least(v->tile_w, v->w.dst - t.x0);
                run_block(k, &t, thread);
            }
    unpack(k, &t);
}
static void tile_slices(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *out = &k->call.out[0];
    float *sum = ku_cpu_scratch(k, thread);
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t s = 0; s < k->conv.n_slices; s++)
        k->cpu->ops->sum_into(sum, (float *)k->call.workspace + s * k->count + from, KUMI_F32, n);
    k->cpu->ops->finish(ku_cpu_at(out, from), out->dtype, sum, k->call.accumulate, n);
}

/* Depends on the shape alone, because the workspace does. */
static int64_t slices_of(int64_t n, int64_t n_tiles)
{
    int64_t wanted = n_tiles > 0 ? ku_cpu_tiles(LEAST_TILES, n_tiles) : 1;
    int64_t most = n / LEAST_IMAGES > 0 ? n / LEAST_IMAGES : 1;
    return least(wanted, most);
}
/*
 * Rows and columns of a tile. Packing costs 1 / columns for x (times the strides, because its
 * pixels are denser) and 1 / rows for dy. Lines are not cut into blocks of rows: 64 columns of all
 * their rows fit.
 */
_Static_assert(SUM_FLOATS >= LEAST_COLS * MOST_WINDOW, "a tile of lines is one block");
static void block_of(struct ku_cpu_conv *v)
{
    const int64_t taps = taps_of(v), strides = v->is_lined ? 1 : v->h.stride * v->w.stride;
    int64_t f = LEAST_COLS;
    while (f < v->cols && 2 * f * taps <= SUM_FLOATS && 2 * f * f * taps <= strides * SUM_FLOATS &&
           (!v->is_lined || 2 * f * taps * rows_of(v) <= SUM_FLOATS))
        f *= 2;
    int64_t c = SUM_FLOATS / (taps * f);
    v->tile_f = f;
    v->block_c = ku_cpu_tiles(rows_of(v), ku_cpu_tiles(rows_of(v), c > 0 ? c : 1));
    v->n_blocks = ku_cpu_tiles(rows_of(v), v->block_c);
    KU_ASSERT(!v->is_lined || v->n_blocks == 1);
}
static bool is_few_channels(const struct ku_cpu_conv *v)
{
    const int64_t taps = v->h.taps * v->w.taps;
    return taps > 1 && v->w.dilation == 1 && v->k <= KU_CPU_FEW_CHANNELS &&
           taps * v->k <= MOST_WINDOW;
}
static int64_t n_tiles_of(const struct ku_cpu_conv *v)
{
    return v->groups * v->n_blocks * ku_cpu_tiles(v->cols, v->tile_f);
}
static bool does_fit(const struct ku_kernel *k, const struct ku_cpu_conv *v)
{
    const int64_t units = ku_cpu_units(k, v->chunk_n), nr = ku_cpu_micro(k)->nr;
    const int64_t part = part_of(k, v->block_c);
    int64_t rows = ku_cpu_tiles(v->block_c, part) * width_of(k, part);
    int64_t f = ku_cpu_tiles(least(v->cols, v->tile_f), nr) * nr;
    int64_t lines = lines_of(v, v->tile_h) * v->w.stride * columns_of(v, v->tile_w);
    if (v->is_lined && line_of(v, v->tile_w) > LINE_FLOATS)
        return 0;
    if (v->is_lined)
        lines = lines_of(v, v->tile_h) * line_of(v, v->tile_w), rows = 1;
    return (lines * rows + v->tile_h * v->tile_w * f) * units <= PANEL_UNITS;
}
/* Images that fill a step of the kernel; of fewer, the rest of the step multiplies zeros. */
static int64_t images_of_step(const struct ku_kernel *k)
{
    return (int64_t)ku_cpu_micro(k)->step * (ku_cpu_has_pairs(k) ? 2 : 1);
}
/* Starts with few images and whole lines, then adds lines, then images, while they fit. */
static int choose_block(const struct ku_kernel *k, struct ku_cpu_conv *v)
{
    const int per_unit = ku_cpu_has_pairs(k) ? 2 : 1;
    const int64_t step_n = images_of_step(k), few = CHUNK_UNITS * per_unit;
    v->chunk_n = least(v->slice_n, step_n > few ? step_n : few);
    v->tile_h = 1, v->tile_w = v->w.dst;
    while (v->tile_w > 1 && !does_fit(k, v))
        v->tile_w = (v->tile_w + 1) / 2;
    while (v->chunk_n > per_unit && !does_fit(k, v))
        v->chunk_n -= per_unit;
    if (!does_fit(k, v))
        return 0;
    for (int64_t *grow = &v->tile_h;;) {
        const int64_t most = grow == &v->tile_h ? v->h.dst : v->slice_n;
        struct ku_cpu_conv more = *v;
        *(grow == &v->tile_h ? &more.tile_h : &more.chunk_n) += grow == &v->tile_h ? 1 : step_n;
        if (*grow >= most || !does_fit(k, &more)) {
            if (grow == &v->chunk_n || v->tile_h < v->h.dst)
                return 1;
            grow = &v->chunk_n;
            continue;
        }
        *grow += grow == &v->tile_h ? 1 : step_n;
    }
}

/* Slices, and blocks of channels whose panels fit; 0: those of one channel do not. */
static bool choose_tiles(const struct ku_kernel *k, struct ku_cpu_conv *v)
{
    block_of(v);
    v->n_slices = slices_of(v->n, n_tiles_of(v));
    if (images_of_step(k) > LEAST_IMAGES) /* fewer slices than the workspace has room for */
        v->n_slices = least(v->n_slices, v->n / images_of_step(k) + !(v->n / images_of_step(k)));
    v->slice_n = ku_cpu_tiles(v->n, v->n_slices);
    while (!choose_block(k, v)) {
        if (v->block_c == 1 || v->is_lined)
            return 0;
        v->block_c = (v->block_c + 1) / 2;
    }
    v->n_blocks = ku_cpu_tiles(rows_of(v), v->block_c);
    return 1;
}

int ku_cpu_bind_conv_dw(struct ku_kernel *k)
{
    struct ku_cpu_conv *v = &k->conv;
    if (v->h.taps * v->w.taps > MOST_TAPS)
        return 0;
    v->is_lined = is_few_channels(v);
    if (!choose_tiles(k, v)) {
        if (ku_cpu_micro(k)->regroup == NULL)
            return 0;
        /* AMX: a pixel takes full tiles of channels and of images; a wide window has many pixels */
        k->product.slim = &k->cpu->pairs->gemm;
        if (!choose_tiles(k, v))
            return 0;
    }
    ku_cpu_phase(k, tile_dw, v->n_slices * n_tiles_of(v));
    if (v->n_slices > 1) {
        k->count = ku_cpu_count(&k->call.out[0]);
        k->per_tile = KU_CPU_TILE_COUNT;
        ku_cpu_phase(k, tile_slices, ku_cpu_tiles(k->count, k->per_tile));
    }
    return 1;
}

size_t ku_cpu_workspace_conv_slices(const struct ku_op_case *c)
{
    const struct ku_dim *x = c->in[0].shape.dim, *dw = c->out[0].shape.dim;
    struct ku_cpu_conv v = {.groups = c->attr->groups, .k = dw[1].count};
    v.cols = dw[0].count / v.groups;
    v.h = (struct ku_cpu_axis){.taps = dw[2].count, .stride = c->attr->stride_h};
    v.w = (struct ku_cpu_axis){
        .taps = dw[3].count, .stride = c->attr->stride_w, .dilation = c->attr->dilation_w};
    if (ku_shape_count(&c->out[0].shape) == 0 || x[0].count == 0)
        return 0;
    v.is_lined = is_few_channels(&v);
    block_of(&v);
    int64_t n = slices_of(x[0].count, n_tiles_of(&v));
    return n > 1 ? (size_t)(n * ku_shape_count(&c->out[0].shape)) * sizeof(float) : 0;
}
