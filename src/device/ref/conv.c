/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution and pooling of images [n,y,x,c] (op/window.h). */
#include <math.h>

#include "device/ref/ref.h"
#include "op/window.h"

/* A pixel or a result: sample n, row y, column x. */
struct place {
    int64_t n, y, x;
};
static struct place place_of(int64_t flat, int64_t h, int64_t w)
{
    return (struct place){flat / w / h, flat / w % h, flat % w};
}
static void place_next(struct place *p, int64_t h, int64_t w)
{
    p->x = p->x + 1 < w ? p->x + 1 : 0;
    p->y += p->x == 0;
    if (p->y == h)
        p->n++, p->y = 0;
}

/* Offset of a tap, an element of the window, from the pixel (y stride, x stride). */
struct tap {
    int64_t y, x;
};
static struct tap tap_of(const struct ku_window *w, int64_t k)
{
    return (struct tap){k / w->kernel_w * w->dilation_h - w->pad_h,
                        k % w->kernel_w * w->dilation_w - w->pad_w};
}

/* The flat index of the pixel under a tap of result q; -1 in the padding. */
static int64_t pixel_at(const struct ku_window *w, struct place q, struct tap tap)
{
    int64_t y = q.y * w->stride_h + tap.y, x = q.x * w->stride_w + tap.x;
    return y < 0 || y >= w->in_h || x < 0 || x >= w->in_w ? -1 : (q.n * w->in_h + y) * w->in_w + x;
}

/*
 * conv2d: y[n,oy,ox,f] = bias[f] + sum_(i,h,w) x[n, oy stride - pad + h dilation, .., g C + i]
 * w[f,i,h,w], where f is in group g of C input channels; x is zero outside.
 */
void ku_ref_conv2d(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0], *weight = &c->in[1], *y = &c->out[0];
    struct ku_window w = ku_window_of(c->attr, &x->shape, &y->shape);
    int64_t area = w.kernel_h * w.kernel_w;
    for (int64_t p = 0; p < w.n * w.out_h * w.out_w; p++) {
        const struct place q = place_of(p, w.out_h, w.out_w);
        for (int64_t f = 0; f < w.f; f++) {
            double sum = 0;
            int64_t c0 = f / w.group_f * w.group_c;
            for (int64_t k = 0; k < area; k++) {
                int64_t at = pixel_at(&w, q, tap_of(&w, k));
                for (int64_t i = 0; i < w.group_c && at >= 0; i++)
                    sum += ku_ref_get(x, at * w.c + c0 + i) *
                           ku_ref_get(weight, (f * w.group_c + i) * area + k);
            }
            if (c->n_in > 2)
                sum += ku_ref_get(&c->in[2], f);
            ku_ref_put(y, p * w.f + f, sum);
            ku_ref_worked(poll, area * w.group_c);
        }
    }
}

/* The flat index of the result whose window has a tap on pixel p; -1: none. */
static int64_t result_at(const struct ku_window *w, struct place p, struct tap tap)
{
    int64_t y = p.y - tap.y, x = p.x - tap.x;
    if (y < 0 || x < 0 || y % w->stride_h != 0 || x % w->stride_w != 0)
        return -1;
    y /= w->stride_h, x /= w->stride_w;
    return y >= w->out_h || x >= w->out_w ? -1 : (p.n * w->out_h + y) * w->out_w + x;
}

/*
 * conv2d_dx: dx[p,c] = sum_(f,h,w) dy[q,f] w[f,i,h,w] over the results q whose tap (h, w) is on
 * pixel p.
 */
void ku_ref_conv2d_dx(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *dy = &c->in[0], *weight = &c->in[1], *dx = &c->out[0];
    struct ku_window w = ku_window_of(c->attr, &dx->shape, &dy->shape);
    int64_t area = w.kernel_h * w.kernel_w;
    for (int64_t p = 0; p < w.n * w.in_h * w.in_w; p++) {
        const struct place here = place_of(p, w.in_h, w.in_w);
        for (int64_t ch = 0; ch < w.c; ch++) {
            double sum = 0;
            int64_t f0 = ch / w.group_c * w.group_f, i = ch % w.group_c;
            for (int64_t k = 0; k < area; k++) {
                int64_t at = result_at(&w, here, tap_of(&w, k));
                for (int64_t f = f0; f < f0 + w.group_f && at >= 0; f++)
                    sum += ku_ref_get(dy, at * w.f + f) *
                           ku_ref_get(weight, (f * w.group_c + i) * area + k);
            }
            ku_ref_put(dx, p * w.c + ch, sum);
            ku_ref_worked(poll, area * w.group_f);
        }
    }
}

/* conv2d_dw: dw[f,i,h,w] = sum over results q of dy[q,f] x[pixel under tap (h, w) of q, i]. */
void ku_ref_conv2d_dw(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0], *dy = &c->in[1];
    struct ku_window w = ku_window_of(c->attr, &x->shape, &dy->shape);
    int64_t area = w.kernel_h * w.kernel_w, n_results = w.n * w.out_h * w.out_w;
    for (int64_t e = 0; e < w.f * w.group_c * area; e++) {
        int64_t k = e % area, i = e / area % w.group_c, f = e / area / w.group_c;
        int64_t ch = f / w.group_f * w.group_c + i;
        const struct tap tap = tap_of(&w, k);
        struct place q = {0, 0, 0};
        double sum = 0;
        for (int64_t p = 0; p < n_results; p++, place_next(&q, w.out_h, w.out_w)) {
            int64_t at = pixel_at(&w, q, tap);
            if (at >= 0)
                sum += ku_ref_get(dy, p * w.f + f) * ku_ref_get(x, at * w.c + ch);
        }
        ku_ref_result(c, 0, e, sum);
        ku_ref_worked(poll, n_results);
    }
}

/*
 * max_pool: the max element of the window inside x, and its index i kernel_w + j in the window. The
 * first of equal elements; the last NaN if there is one (as PyTorch).
 */
void ku_ref_max_pool(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0];
    struct ku_window w = ku_window_of(c->attr, &x->shape, &c->out[0].shape);
    int64_t area = w.kernel_h * w.kernel_w;
    for (int64_t e = 0; e < w.n * w.out_h * w.out_w * w.c; e++) {
        const struct place q = place_of(e / w.c, w.out_h, w.out_w);
        int64_t most_at = -1;
        double most = (double)-INFINITY;
        for (int64_t k = 0; k < area; k++) {
            int64_t at = pixel_at(&w, q, tap_of(&w, k));
            double each = at >= 0 ? ku_ref_get(x, at * w.c + e % w.c) : most;
            if (at >= 0 && (most_at < 0 || each > most || isnan(each)))
                most = each, most_at = k;
        }
        ku_ref_put(&c->out[0], e, most);
        ((uint16_t *)c->out[1].data)[e] = (uint16_t)most_at;
        ku_ref_worked(poll, area);
    }
}

/* max_pool_dx: dx[p,c] = sum of dy[q,c] over the results q whose max is pixel p */
void ku_ref_max_pool_dx(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *dy = &c->in[0];
    const uint16_t *place = c->in[1].data;
    struct ku_window w = ku_window_of(c->attr, &c->out[0].shape, &dy->shape);
    int64_t area = w.kernel_h * w.kernel_w;
    for (int64_t e = 0; e < w.n * w.in_h * w.in_w * w.c; e++) {
        const struct place here = place_of(e / w.c, w.in_h, w.in_w);
        double sum = 0;
        for (int64_t k = 0; k < area; k++) {
            int64_t at = result_at(&w, here, tap_of(&w, k));
            if (at >= 0 && place[at * w.c + e % w.c] == k)
                sum += ku_ref_get(dy, at * w.c + e % w.c);
        }
        ku_ref_put(&c->out[0], e, sum);
        ku_ref_worked(poll, area);
    }
}

/* The number of elements that the mean of result q divides by. */
static double divisor(const struct ku_call *c, const struct ku_window *w, struct place q)
{
    int64_t count = 0;
    for (int64_t k = 0; k < w->kernel_h * w->kernel_w; k++)
        count += c->attr->count_pad || pixel_at(w, q, tap_of(w, k)) >= 0;
    return (double)count;
}

/*
 * avg_pool: the sum over the window inside x, divided by the number of its elements: all with
 * count_pad, else those inside.
 */
void ku_ref_avg_pool(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0];
    struct ku_window w = ku_window_of(c->attr, &x->shape, &c->out[0].shape);
    int64_t area = w.kernel_h * w.kernel_w;
    for (int64_t e = 0; e < w.n * w.out_h * w.out_w * w.c; e++) {
        const struct place q = place_of(e / w.c, w.out_h, w.out_w);
        double sum = 0;
        for (int64_t k = 0; k < area; k++) {
            int64_t at = pixel_at(&w, q, tap_of(&w, k));
            sum += at >= 0 ? ku_ref_get(x, at * w.c + e % w.c) : 0;
        }
        ku_ref_put(&c->out[0], e, sum / divisor(c, &w, q));
        ku_ref_worked(poll, area);
    }
}

/*
 * avg_pool_dx: dx[p,c] = sum of dy[q,c] / divisor of q over the results q whose window contains p
 */
void ku_ref_avg_pool_dx(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *dy = &c->in[0];
    struct ku_window w = ku_window_of(c->attr, &c->out[0].shape, &dy->shape);
    int64_t area = w.kernel_h * w.kernel_w;
    for (int64_t e = 0; e < w.n * w.in_h * w.in_w * w.c; e++) {
        const struct place here = place_of(e / w.c, w.in_h, w.in_w);
        double sum = 0;
        for (int64_t k = 0; k < area; k++) {
            int64_t at = result_at(&w, here, tap_of(&w, k));
            if (at >= 0)
                sum += ku_ref_get(dy, at * w.c + e % w.c) /
                       divisor(c, &w, place_of(at, w.out_h, w.out_w));
        }
        ku_ref_put(&c->out[0], e, sum);
        ku_ref_worked(poll, area);
    }
}

/* flatten: y[n, (c h + i) w + j] = x[n,i,j,c]; unflatten: the inverse */
static void turn(const struct ku_call *c, const struct ku_view *image, int is_back,
                 struct ku_ref_poll *poll)
{
    const struct ku_dim *d = image->shape.dim;
    int64_t area = d[1].count * d[2].count, ch = d[3].count, width = area * ch;
    for (int64_t e = 0; e < d[0].count * width; e++) {
        int64_t in_row = e % width, flat = e - in_row + in_row % ch * area + in_row / ch;
        ku_ref_put(&c->out[0], is_back ? e : flat, ku_ref_get(&c->in[0], is_back ? flat : e));
        ku_ref_worked(poll, 1);
    }
}
void ku_ref_flatten(const struct ku_call *c, struct ku_ref_poll *poll)
{
    turn(c, &c->in[0], 0, poll);
}
void ku_ref_unflatten(const struct ku_call *c, struct ku_ref_poll *poll)
{
    turn(c, &c->out[0], 1, poll);
}

/* pad_last, crop_last: copies rows of one width to rows of another. */
static void resize_last(const struct ku_call *c, struct ku_ref_poll *poll, int64_t first)
{
    struct ku_ref_rows from = ku_ref_rows(&c->in[0]), to = ku_ref_rows(&c->out[0]);
    for (int64_t r = 0; r < to.n; r++) {
        for (int64_t j = 0; j < to.width; j++) {
            int64_t k = j + first;
            int is_inside = k >= 0 && k < from.width;
            ku_ref_put(&c->out[0], r * to.width + j,
                       is_inside ? ku_ref_get(&c->in[0], r * from.width + k) : 0);
        }
        ku_ref_worked(poll, to.width);
    }
}
void ku_ref_pad_last(const struct ku_call *c, struct ku_ref_poll *poll)
{
    resize_last(c, poll, -c->attr->before);
}
void ku_ref_crop_last(const struct ku_call *c, struct ku_ref_poll *poll)
{
    resize_last(c, poll, c->attr->before);
}
