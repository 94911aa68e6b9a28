/* SPDX-License-Identifier: Apache-2.0 */
/*
 * max_pool, avg_pool, their gradients, flatten, unflatten, pad_last and crop_last. A tile is a run
 * of lines of the result. For each pixel the elements of its window inside the source are listed in
 * the thread's scratch; the loop over channels follows the list.
 */
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"

/* Results [from, to) along one dim whose windows contain position p (dilation 1). */
struct span {
    int64_t from, to;
};
static struct span results_of(int64_t p, int64_t pad, int64_t kernel, int64_t stride, int64_t n)
{
    int64_t first = p + pad - kernel + 1, last = (p + pad) / stride;
    struct span s = {first > 0 ? (first + stride - 1) / stride : 0, last < n ? last + 1 : n};
    return s;
}
/* Positions [from, to) along one dim in the window of result o. */
static struct span inside_of(int64_t o, int64_t pad, int64_t kernel, int64_t stride, int64_t n)
{
    int64_t first = o * stride - pad;
    return (struct span){first > 0 ? first : 0, first + kernel < n ? first + kernel : n};
}

/* The source pixels of one result pixel: at[] element offsets, number[] as in ku_pool_pixel. */
struct list {
    int64_t *at;
    int32_t *number;
    int64_t n;
};
static struct list list_at(const struct ku_kernel *k, int thread)
{
    const struct ku_window *w = &k->window;
    int64_t *at = (int64_t *)(void *)ku_cpu_scratch(k, thread);
    return (struct list){at, (int32_t *)(void *)(at + w->kernel_h * w->kernel_w), 0};
}

static int32_t divisor(const struct ku_kernel *k, int64_t oy, int64_t ox)
{
    const struct ku_window *w = &k->window;
    struct span y = inside_of(oy, w->pad_h, w->kernel_h, w->stride_h, w->in_h);
    struct span x = inside_of(ox, w->pad_w, w->kernel_w, w->stride_w, w->in_w);
    return (int32_t)(k->attr.count_pad ? w->kernel_h * w->kernel_w
                                       : (y.to - y.from) * (x.to - x.from));
}

/* Lists the elements of the window of result (n, oy, ox). */
static void list_window(const struct ku_kernel *k, int64_t n, int64_t oy, int64_t ox,
                        struct list *l)
{
    const struct ku_window *w = &k->window;
    const int is_max = k->call.op == KU_OP_max_pool;
    const int32_t n_mean = is_max ? 0 : divisor(k, oy, ox);
    struct span y = inside_of(oy, w->pad_h, w->kernel_h, w->stride_h, w->in_h);
    struct span x = inside_of(ox, w->pad_w, w->kernel_w, w->stride_w, w->in_w);
    l->n = 0;
    for (int64_t i = y.from; i < y.to; i++)
        for (int64_t j = x.from; j < x.to; j++) {
            int64_t place =
                (i - oy * w->stride_h + w->pad_h) * w->kernel_w + j - ox * w->stride_w + w->pad_w;
            l->at[l->n] = ((n * w->in_h + i) * w->in_w + j) * w->c;
            l->number[l->n++] = is_max ? (int32_t)place : n_mean;
        }
}

/* Lists the results whose windows contain pixel (n, y, x). */
static void list_results(const struct ku_kernel *k, int64_t n, int64_t y, int64_t x, struct list *l)
{
    const struct ku_window *w = &k->window;
    const int is_max = k->call.op == KU_OP_max_pool_dx;
    struct span rows = results_of(y, w->pad_h, w->kernel_h, w->stride_h, w->out_h);
    struct span cols = results_of(x, w->pad_w, w->kernel_w, w->stride_w, w->out_w);
    l->n = 0;
    /* results in descending order give window elements in ascending order */
    for (int64_t i = rows.to - 1; i >= rows.from; i--)
        for (int64_t j = cols.to - 1; j >= cols.from; j--) {
            int64_t place =
                (y + w->pad_h - i * w->stride_h) * w->kernel_w + x + w->pad_w - j * w->stride_w;
            l->at[l->n] = ((n * w->out_h + i) * w->out_w + j) * w->c;
            l->number[l->n++] = is_max ? (int32_t)place : divisor(k, i, j);
        }
}

static void tile_pool(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_window *w = &k->window;
    const struct ku_isa_ops *ops = k->cpu->ops;
    const struct ku_call *c = &k->call;
    const int is_forward = c->op == KU_OP_max_pool || c->op == KU_OP_avg_pool;
    const int64_t h = is_forward ? w->out_h : w->in_h, width = is_forward ? w->out_w : w->in_w;
    struct list l = list_at(k, thread);
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t row = from; row < from + n; row++) {
        for (int64_t j = 0; j < width; j++) {
            int64_t to = (row * width + j) * w->c;
            if (is_forward)
                list_window(k, row / h, row % h, j, &l);
            else
                list_results(k, row / h, row % h, j, &l);
            struct ku_pool_pixel p = {
                ku_cpu_at(&c->out[0], to), c->in[0].data, w->c, l.n, l.at, l.number};
            if (c->op == KU_OP_max_pool)
                ops->pool_max(&p, c->in[0].dtype, ku_cpu_at(&c->out[1], to));
            else if (c->op == KU_OP_max_pool_dx)
                ops->pool_pick(&p, c->in[0].dtype, c->in[1].data);
            else
                ops->pool_mean(&p, c->in[0].dtype);
        }
        ku_pool_poll(k->cpu->pool, thread);
    }
}

/*
 * Pooling with a 1 x 1 window: copies every stride-th pixel, or writes pixels back between zeros.
 */
static void tile_every(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_window *w = &k->window;
    const struct ku_view *in = &k->call.in[0], *out = &k->call.out[0];
    const int is_forward = k->call.op == KU_OP_avg_pool;
    const int64_t h = is_forward ? w->out_h : w->in_h, width = is_forward ? w->out_w : w->in_w;
    const size_t bytes = (size_t)w->c * kumi_dtype_bytes(in->dtype),
                 step = bytes * (size_t)w->stride_w;
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t row = from; row < from + n; row++) {
        const int64_t y = row % h, line = is_forward ? y * w->stride_h : y / w->stride_h;
        const int64_t lines = is_forward ? w->in_h : w->out_h;
        const int64_t src = (row / h * lines + line) * (is_forward ? w->in_w : w->out_w);
        char *to = ku_cpu_at(out, row * width * w->c);
        if (!is_forward)
            memset(to, 0, (size_t)width * bytes);
        if (!is_forward && (y % w->stride_h != 0 || line >= lines))
            continue;
        const char *of = ku_cpu_at(in, src * w->c);
        for (int64_t i = 0; i < w->out_w; i++)
            memcpy(to + (size_t)i * (is_forward ? bytes : step),
                   of + (size_t)i * (is_forward ? step : bytes), bytes);
    }
    ku_pool_poll(k->cpu->pool, thread);
}

static int bind_pool(struct ku_kernel *k, const struct ku_view *x, const struct ku_view *y)
{
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "output 0", &k->call.out[0], k->call.in[0].dtype));
    k->window = ku_window_of(&k->attr, &x->shape, &y->shape);
    const struct ku_shape *to = &k->call.out[0].shape;
    int64_t per_row = to->dim[2].count * to->dim[3].count;
    k->count = to->dim[0].count * to->dim[1].count;
    k->per_tile = KU_CPU_TILE_COUNT / (per_row + 1) + 1;
    const struct ku_window *w = &k->window;
    const int is_mean = k->call.op == KU_OP_avg_pool || k->call.op == KU_OP_avg_pool_dx;
    const int is_one = w->kernel_h * w->kernel_w == 1 && w->pad_h + w->pad_w == 0;
    ku_cpu_phase(k, is_mean && is_one ? tile_every : tile_pool,
                 per_row > 0 ? ku_cpu_tiles(k->count, k->per_tile) : 0);
    return KUMI_OK;
}
int ku_cpu_bind_max_pool(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check(k, "output 1", &k->call.out[1], KUMI_U16));
    return bind_pool(k, &k->call.in[0], &k->call.out[0]);
}
int ku_cpu_bind_max_pool_dx(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check(k, "places", &k->call.in[1], KUMI_U16));
    return bind_pool(k, &k->call.out[0], &k->call.in[0]);
}
int ku_cpu_bind_avg_pool(struct ku_kernel *k)
{
    return bind_pool(k, &k->call.in[0], &k->call.out[0]);
}
int ku_cpu_bind_avg_pool_dx(struct ku_kernel *k)
{
    return bind_pool(k, &k->call.out[0], &k->call.in[0]);
}

/* A tile is a sample: transposes its image [area][c] to [c][area], or back. */
static void tile_turn(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *from = &k->call.in[0];
    const size_t bytes = kumi_dtype_bytes(from->dtype);
    const int64_t n_rows = k->count, n_cols = k->width; /* of the source */
    const char *src = ku_cpu_at(from, tile * n_rows * n_cols);
    char *dst = ku_cpu_at(&k->call.out[0], tile * n_rows * n_cols);
    (void)thread;
    if (n_rows == 1 || n_cols == 1)
        memcpy(dst, src, (size_t)(n_rows * n_cols) * bytes);
    else if (bytes == 4)
        for (int64_t j = 0; j < n_cols; j++)
            for (int64_t i = 0; i < n_rows; i++)
                memcpy(dst + (j * n_rows + i) * 4, src + (i * n_cols + j) * 4, 4);
    else
        for (int64_t j = 0; j < n_cols; j++)
            for (int64_t i = 0; i < n_rows; i++)
                memcpy(dst + (j * n_rows + i) * 2, src + (i * n_cols + j) * 2, 2);
}
static int bind_turn(struct ku_kernel *k, const struct ku_view *image, int is_back)
{
    const struct ku_dim *d = image->shape.dim;
    int64_t area = d[1].count * d[2].count;
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "output 0", &k->call.out[0], k->call.in[0].dtype));
    k->count = is_back ? d[3].count : area;
    k->width = is_back ? area : d[3].count;
    ku_cpu_phase(k, tile_turn, d[0].count);
    return KUMI_OK;
}
int ku_cpu_bind_flatten(struct ku_kernel *k)
{
    return bind_turn(k, &k->call.in[0], 0);
}
int ku_cpu_bind_unflatten(struct ku_kernel *k)
{
    return bind_turn(k, &k->call.out[0], 1);
}

static void tile_resize_last(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0], *y = &k->call.out[0];
    const size_t each = kumi_dtype_bytes(x->dtype);
    int64_t in_width = x->shape.dim[x->shape.ndim - 1].count, from, n;
    int is_pad = k->call.op == KU_OP_pad_last;
    int64_t before = k->attr.before;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from; r < from + n; r++) {
        char *to = ku_cpu_at(y, r * k->width);
        const char *of = ku_cpu_at(x, r * in_width);
        if (!is_pad) {
            memcpy(to, of + (size_t)before * each, (size_t)k->width * each);
            continue;
        }
        memset(to, 0, (size_t)k->width * each);
        memcpy(to + (size_t)before * each, of, (size_t)in_width * each);
    }
}
static int bind_resize_last(struct ku_kernel *k)
{
    const struct ku_shape *s = &k->call.out[0].shape;
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "y", &k->call.out[0], k->call.in[0].dtype));
    k->width = s->dim[s->ndim - 1].count;
    k->count = ku_cpu_extent(s, 0, s->ndim - 1);
    k->per_tile = k->width < KU_CPU_TILE_COUNT ? KU_CPU_TILE_COUNT / (k->width ? k->width : 1) : 1;
    if (k->width)
        ku_cpu_phase(k, tile_resize_last, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}
int ku_cpu_bind_pad_last(struct ku_kernel *k)
{
    return bind_resize_last(k);
}
int ku_cpu_bind_crop_last(struct ku_kernel *k)
{
    return bind_resize_last(k);
}
