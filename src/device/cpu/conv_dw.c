/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv2d_dw: for every tap a product of x, moved by the tap, and dy, contracted over the pixels at
 * which the tap lies inside of x: padding is never multiplied.
 *
 * A tile is a slice of the images, up to block_c channels of x and TILE_COLS of dy, all taps; its
 * sums stay in the scratch. It takes some images and lines at a time and packs both operands as
 * panels [pixel][image][channel]: pixels of x by their remainder by the stride first, so that what
 * a tap meets along a line lies together. A part of the contraction is a line of pixels times the
 * images. Where x has few channels (three colours) its rows are whole windows instead.
 *
 * Slices are a function of the shape alone; so is the order within them. Several slices leave f32
 * sums in the workspace, which a second phase adds in order.
 */
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"

enum {
    TILE_COLS = 64,
    SUM_FLOATS = 80 << 10,   /* wanted of a tile's sums: 320 KiB */
    PANEL_UNITS = 150 << 10, /* wanted of both operands' panels: 600 KiB */
    MOST_TAPS = 2048,        /* whose sums of one channel are 512 KiB */
    LEAST_TILES = 8,         /* fewer tiles than these are cut into slices */
    LEAST_IMAGES = 4,        /* of a slice */
    CHUNK_UNITS = 4,         /* of images taken at a time, if their lines are many */
    MOST_PARTS = 16,
    MOST_WINDOW = 1024,  /* elements of a window as rows */
    PATCH_CHANNELS = 8 /* that many or fewer do not fill the rows of a product */
};
_Static_assert((MOST_TAPS * TILE_COLS + PANEL_UNITS + 2 * MOST_WINDOW) * 4 < KU_CPU_SCRATCH_BYTES,
               "a tile's parts fit the thread's scratch");

struct tile {
    int64_t slice, group, c0, n_c, f0, n_f;
    int64_t n0, n, n_units;   /* images, and units of a pixel */
    int64_t y0, n_y, x0, n_x; /* results */
    int64_t y, n_lines, n_q;  /* of x that they meet: first line, lines, columns by the stride */
    int64_t width;            /* of a panel of x */
    int64_t x_panel, dy_panel;
    float *sum, *xs, *dys, *row;
};
static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t taps_of(const struct ku_cpu_conv *v)
{
    return v->is_patched ? 1 : v->h.taps * v->w.taps;
}
static int64_t rows_of(const struct ku_cpu_conv *v)
{
    return v->is_patched ? v->h.taps * v->w.taps * v->k : v->k;
}
/* Rows of a product: as equal as possible; matrix tiles want their side. */
static int64_t width_of(const struct ku_kernel *k, int64_t n_c)
{
    const struct ku_gemm_micro *micro = ku_cpu_micro(k);
    return micro->regroup ? micro->mr : ku_cpu_tiles(n_c, ku_cpu_tiles(n_c, micro->mr));
}
static int64_t reach_of(const struct ku_cpu_axis *a)
{
    return (a->taps - 1) * a->dilation;
}
/* Columns of a line of x, by the stride, that n results meet. */
static int64_t columns_of(const struct ku_cpu_conv *v, int64_t n)
{
    return v->is_patched ? n : n + reach_of(&v->w) / v->w.stride;
}
static int64_t lines_of(const struct ku_cpu_conv *v, int64_t n)
{
    return v->is_patched ? n : least((n - 1) * v->h.stride + reach_of(&v->h) + 1, v->h.src);
}
static int64_t phases_of(const struct ku_cpu_conv *v)
{
    return v->is_patched ? 1 : v->w.stride;
}

/* -- panels -------------------------------------------------------------------------------- */

/* Whether some tap of some result lies at p (with padding). */
static int is_met(const struct ku_cpu_axis *a, int64_t p)
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
/* One pixel of one image, or of two, to panels; `next` lies where the second begins. */
static void pack_dy(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_view *dy = &k->call.in[1];
    const int per_unit = ku_cpu_has_pairs(k) ? 2 : 1;
    struct ku_conv_row r = {
        .width = ku_cpu_micro(k)->nr, .stride = t->dy_panel, .n_cols = t->n_f};
    const int64_t c = t->group * k->conv.cols + t->f0;
    for (int64_t u = 0; u * per_unit < t->n; u++)
        for (int64_t i = 0; i < t->n_y * t->n_x; i++) {
            const int64_t n = t->n0 + u * per_unit, y = t->y0 + i / t->n_x, x = t->x0 + i % t->n_x;
            r.to = t->dys + (i * t->n_units + u) * r.width;
            r.a = pixel_at(dy, n, y, x, c);
            r.b = (u + 1) * per_unit <= t->n ? pixel_at(dy, n + per_unit - 1, y, x, c) : NULL;
            k->cpu->ops->pack_split(&r, dy->dtype, per_unit == 2);
        }
}
/* The window of a result, zeros in the padding. */
static void copy_window(const struct ku_kernel *k, const struct tile *t, int64_t n, int64_t oy,
                        int64_t ox, char *to)
{
    const struct ku_cpu_conv *v = &k->conv;
    const size_t bytes = (size_t)v->k * kumi_dtype_bytes(k->product.dtype);
    for (int64_t h = 0; h < v->h.taps; h++)
        for (int64_t w = 0; w < v->w.taps; w++, to += bytes) {
            int64_t y = oy * v->h.stride - v->h.pad + h * v->h.dilation;
            int64_t x = ox * v->w.stride - v->w.pad + w * v->w.dilation;
            if (y < 0 || y >= v->h.src || x < 0 || x >= v->w.src)
                memset(to, 0, bytes);
            else
                memcpy(to, pixel_at(&k->call.in[0], n, y, x, t->group * v->k), bytes);
        }
}
static void pack_windows(const struct ku_kernel *k, const struct tile *t)
{
    const int pairs = ku_cpu_has_pairs(k), per_unit = pairs ? 2 : 1;
    struct ku_conv_row r = {.width = t->width, .stride = t->x_panel, .n_cols = t->n_c};
    char *row[2] = {(char *)t->row, (char *)(t->row + MOST_WINDOW)};
    for (int64_t u = 0; u * per_unit < t->n; u++)
        for (int64_t i = 0; i < t->n_y * t->n_x; i++) {
            const int64_t n = t->n0 + u * per_unit, y = t->y0 + i / t->n_x, x = t->x0 + i % t->n_x;
            const int two = pairs && n + 1 < t->n0 + t->n;
            for (int j = 0; j <= two; j++)
                copy_window(k, t, n + j, y, x, row[j]);
            r.to = t->xs + (i * t->n_units + u) * r.width;
            r.a = row[0];
            r.b = two ? row[1] : NULL;
            k->cpu->ops->pack_split(&r, k->product.dtype, pairs);
        }
}
static void pack_x(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_cpu_conv *v = &k->conv;
    const struct ku_view *in = &k->call.in[0];
    const int per_unit = ku_cpu_has_pairs(k) ? 2 : 1;
    struct ku_conv_row r = {.width = t->width, .stride = t->x_panel, .n_cols = t->n_c};
    const int64_t c = t->group * v->k + t->c0, line = v->w.stride * t->n_q;
    for (int64_t u = 0; u * per_unit < t->n; u++)
        for (int64_t y = t->y; y < t->y + t->n_lines; y++) {
            const int64_t n = t->n0 + u * per_unit, n2 = n + per_unit - 1;
            const int has_two = n2 < t->n0 + t->n;
            for (int64_t x = 0; x < v->w.src && is_met(&v->h, y + v->h.pad); x++) {
                const int64_t z = x + v->w.pad, phase = z % v->w.stride;
                const int64_t q = z / v->w.stride - t->x0;
                if (q < 0 || q >= t->n_q || !is_met(&v->w, z))
                    continue;
                r.to = t->xs + (((y - t->y) * line + phase * t->n_q + q) * t->n_units + u) * r.width;
                r.a = pixel_at(in, n, y, x, c);
                r.b = has_two ? pixel_at(in, n2, y, x, c) : NULL;
                k->cpu->ops->pack_split(&r, in->dtype, per_unit == 2);
            }
        }
}
static void pack(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_gemm_micro *micro = ku_cpu_micro(k);
    const int64_t n_x = ku_cpu_tiles(t->n_c, t->width), n_dy = ku_cpu_tiles(t->n_f, micro->nr);
    if (t->n_units * (ku_cpu_has_pairs(k) ? 2 : 1) > t->n + 1) { /* up to the kernel's step */
        memset(t->xs, 0, (size_t)(n_x * t->x_panel) * sizeof *t->xs);
        memset(t->dys, 0, (size_t)(n_dy * t->dy_panel) * sizeof *t->dys);
    }
    pack_dy(k, t);
    if (k->conv.is_patched)
        pack_windows(k, t);
    else
        pack_x(k, t);
    for (int64_t i = 0; i < n_x && micro->regroup; i++)
        micro->regroup(t->xs + i * t->x_panel, t->x_panel / t->width);
}

/* -- products ------------------------------------------------------------------------------ */

/* Rows of all channels, by the parts that one tap meets. */
static void multiply(const struct ku_kernel *k, const struct tile *t, int64_t tap,
                     const struct ku_gemm_part *part, int64_t n_parts)
{
    const struct ku_gemm_micro *micro = ku_cpu_micro(k);
    struct ku_gemm_part p[MOST_PARTS];
    for (int64_t c = 0; c < t->n_c; c += t->width)
        for (int64_t f = 0; f < t->n_f; f += micro->nr) {
            for (int64_t i = 0; i < n_parts; i++) {
                p[i] = part[i];
                p[i].a = (const float *)part[i].a + c / t->width * t->x_panel;
                p[i].b = (const float *)part[i].b + f / micro->nr * t->dy_panel;
            }
            micro->run_parts((int)least(t->width, t->n_c - c), p, n_parts, micro->step, t->width,
                             t->sum + (tap * t->n_c + c) * TILE_COLS + f, TILE_COLS, 1, p[0].a, 0);
        }
}
/* Results [from, to) of the block whose tap lies inside, along one dim. */
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
        part[n++] = (struct ku_gemm_part){
            t->xs + q * t->n_units * t->width,
            t->dys + ((y - t->y0) * t->n_x + x - t->x0) * t->n_units * nr, (x_end - x) * t->n_units};
        if (n == MOST_PARTS || y == y_end - 1) {
            multiply(k, t, h * v->w.taps + w, part, n);
            n = 0;
        }
    }
}
static void run_block(const struct ku_kernel *k, struct tile *t, int thread)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int64_t n_pixels = t->n_y * t->n_x, n_cg = ku_cpu_tiles(t->n_c, t->width);
    t->n_units = ku_cpu_units(k, t->n);
    t->y = t->y0 * v->h.stride - v->h.pad;
    t->y = t->y > 0 ? t->y : 0;
    t->n_lines = least((t->y0 + t->n_y - 1) * v->h.stride - v->h.pad + reach_of(&v->h) + 1,
                       v->h.src) - t->y;
    t->n_lines = t->n_lines > 0 ? t->n_lines : 0;
    t->n_q = columns_of(v, t->n_x);
    t->x_panel = (v->is_patched ? n_pixels : t->n_lines * phases_of(v) * t->n_q) * t->n_units *
                 t->width;
    t->dy_panel = n_pixels * t->n_units * ku_cpu_micro(k)->nr;
    t->dys = t->xs + n_cg * t->x_panel;
    pack(k, t);
    if (v->is_patched) {
        const struct ku_gemm_part all = {t->xs, t->dys, n_pixels * t->n_units};
        multiply(k, t, 0, &all, 1);
    } else {
        for (int64_t i = 0; i < taps_of(v); i++) {
            run_tap(k, t, i / v->w.taps, i % v->w.taps);
            ku_pool_poll(k->cpu->pool, thread);
        }
    }
    ku_pool_poll(k->cpu->pool, thread);
}

/* The tile's sums to the gradient, or to its slice of the workspace. */
static void unpack(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_cpu_conv *v = &k->conv;
    const struct ku_view *out = &k->call.out[0];
    const int64_t taps = v->h.taps * v->w.taps, f = t->group * v->cols + t->f0;
    const int64_t n = v->is_patched ? v->k : t->n_c, at = (f * v->k + t->c0) * taps;
    const int is_final = v->n_slices == 1;
    const struct ku_conv_sums s = {
        .out = is_final ? ku_cpu_at(out, at)
                        : (float *)k->call.workspace + t->slice * ku_cpu_count(out) + at,
        .sum = t->sum,
        .out_ld = v->k * taps,
        .n_cols = t->n_f,
        .k = n,
        .k_all = n,
        .taps = taps,
        .ld = TILE_COLS,
        .accumulate = is_final && k->call.accumulate};
    k->cpu->ops->conv_unpack(&s, is_final ? out->dtype : KUMI_F32);
}
static void tile_dw(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_cpu_conv *v = &k->conv;
    const int64_t n_f_tiles = ku_cpu_tiles(v->cols, TILE_COLS);
    struct tile t = {.f0 = tile % n_f_tiles * TILE_COLS};
    tile /= n_f_tiles;
    t.c0 = tile % v->n_blocks * v->block_c, tile /= v->n_blocks;
    t.group = tile % v->groups, t.slice = tile / v->groups;
    t.n_f = least(TILE_COLS, v->cols - t.f0);
    t.n_c = least(v->block_c, rows_of(v) - t.c0);
    t.width = width_of(k, t.n_c);
    t.sum = ku_cpu_scratch(k, thread);
    t.row = t.sum + MOST_TAPS * TILE_COLS;
    t.xs = t.row + 2 * MOST_WINDOW;
    memset(t.sum, 0, (size_t)(taps_of(v) * t.n_c * TILE_COLS) * sizeof *t.sum);
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

/* -- tiles --------------------------------------------------------------------------------- */

/* By the shape alone: the workspace follows. */
static int64_t slices_of(int64_t n, int64_t n_tiles)
{
    int64_t wanted = n_tiles > 0 ? ku_cpu_tiles(LEAST_TILES, n_tiles) : 1;
    int64_t most = n / LEAST_IMAGES > 0 ? n / LEAST_IMAGES : 1;
    return least(wanted, most);
}
static int64_t n_tiles_of(int64_t groups, int64_t taps, int64_t k, int64_t cols)
{
    int64_t most = SUM_FLOATS / (taps * TILE_COLS);
    return groups * ku_cpu_tiles(k, most > 0 ? most : 1) * ku_cpu_tiles(cols, TILE_COLS);
}
static int does_fit(const struct ku_kernel *k, const struct ku_cpu_conv *v)
{
    const int64_t units = ku_cpu_units(k, v->chunk_n), nr = ku_cpu_micro(k)->nr;
    int64_t rows = ku_cpu_tiles(v->block_c, ku_cpu_micro(k)->mr) * width_of(k, v->block_c);
    int64_t f = ku_cpu_tiles(least(v->cols, TILE_COLS), nr) * nr;
    int64_t lines = lines_of(v, v->tile_h) * phases_of(v) * columns_of(v, v->tile_w);
    return (lines * rows + v->tile_h * v->tile_w * f) * units <= PANEL_UNITS;
}
/* Few images and whole lines; then lines, then images, as many as fit. */
static int choose_block(const struct ku_kernel *k, struct ku_cpu_conv *v)
{
    const int per_unit = ku_cpu_has_pairs(k) ? 2 : 1;
    v->chunk_n = least(v->slice_n, CHUNK_UNITS * per_unit);
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
        *(grow == &v->tile_h ? &more.tile_h : &more.chunk_n) += grow == &v->tile_h ? 1 : per_unit;
        if (*grow >= most || !does_fit(k, &more)) {
            if (grow == &v->chunk_n || v->tile_h < v->h.dst)
                return 1;
            grow = &v->chunk_n;
            continue;
        }
        *grow += grow == &v->tile_h ? 1 : per_unit;
    }
}

int ku_cpu_bind_conv_dw(struct ku_kernel *k)
{
    struct ku_cpu_conv *v = &k->conv;
    const int64_t taps = v->h.taps * v->w.taps;
    if (taps > MOST_TAPS)
        return 0;
    v->is_patched = taps > 1 && v->k <= PATCH_CHANNELS && taps * v->k <= MOST_WINDOW;
    v->n_slices = slices_of(v->n, n_tiles_of(v->groups, taps, v->k, v->cols));
    v->slice_n = ku_cpu_tiles(v->n, v->n_slices);
    v->block_c = SUM_FLOATS / (taps_of(v) * TILE_COLS);
    v->block_c = v->block_c > 0 ? least(v->block_c, rows_of(v)) : 1;
    v->block_c = ku_cpu_tiles(rows_of(v), ku_cpu_tiles(rows_of(v), v->block_c));
    while (!choose_block(k, v)) {
        if (v->block_c == 1)
            return 0;
        v->block_c = (v->block_c + 1) / 2;
    }
    v->n_blocks = ku_cpu_tiles(rows_of(v), v->block_c);
    ku_cpu_phase(k, tile_dw,
                 v->n_slices * v->groups * v->n_blocks * ku_cpu_tiles(v->cols, TILE_COLS));
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
    const int64_t taps = dw[2].count * dw[3].count, groups = c->attr->groups;
    int64_t n = slices_of(x[0].count,
                          n_tiles_of(groups, taps, dw[1].count, dw[0].count / groups));
    return n > 1 ? (size_t)(n * ku_shape_count(&c->out[0].shape)) * sizeof(float) : 0;
}
