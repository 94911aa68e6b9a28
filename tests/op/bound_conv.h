/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_OP_BOUND_CONV_H
#define TESTS_OP_BOUND_CONV_H

#include "op/bound.h"
#include "op/window.h"

/*
 * Convolution and averages are sums of k products: (k + 1) eps sum|a b|, k the terms that are not
 * padding (zeros add nothing). A pair of an image's pixel and a result's is visited once, with its
 * place in the window.
 */
struct meeting {
    int64_t in, out, place; /* pixels, counted over all samples; element of the window */
};
typedef void meeting_fn(const struct bound *b, const struct ku_window *w, struct meeting at);
static inline void each_meeting(const struct bound *b, const struct ku_window *w, meeting_fn *fn)
{
    for (int64_t q = 0; q < w->n * w->out_h * w->out_w; q++)
        for (int64_t k = 0; k < w->kernel_h * w->kernel_w; k++) {
            int64_t y =
                q / w->out_w % w->out_h * w->stride_h - w->pad_h + k / w->kernel_w * w->dilation_h;
            int64_t x = q % w->out_w * w->stride_w - w->pad_w + k % w->kernel_w * w->dilation_w;
            if (y >= 0 && y < w->in_h && x >= 0 && x < w->in_w)
                fn(b, w,
                   (struct meeting){(q / w->out_w / w->out_h * w->in_h + y) * w->in_w + x, q, k});
        }
}
static inline int64_t weight_of(const struct ku_window *w, int64_t f, int64_t i, int64_t place)
{
    return (f * w->group_c + i) * w->kernel_h * w->kernel_w + place;
}

static inline void meet_conv2d(const struct bound *b, const struct ku_window *w, struct meeting m)
{
    for (int64_t f = 0; f < w->f; f++)
        for (int64_t i = 0; i < w->group_c; i++)
            b->e[0][m.out * w->f + f] +=
                fabs(in_at(b, 0, m.in * w->c + f / w->group_f * w->group_c + i) *
                     in_at(b, 1, weight_of(w, f, i, m.place)));
}
static inline void meet_conv2d_dx(const struct bound *b, const struct ku_window *w,
                                  struct meeting m)
{
    for (int64_t f = 0; f < w->f; f++)
        for (int64_t i = 0; i < w->group_c; i++)
            b->e[0][m.in * w->c + f / w->group_f * w->group_c + i] +=
                fabs(in_at(b, 0, m.out * w->f + f) * in_at(b, 1, weight_of(w, f, i, m.place)));
}
static inline void meet_conv2d_dw(const struct bound *b, const struct ku_window *w,
                                  struct meeting m)
{
    for (int64_t f = 0; f < w->f; f++)
        for (int64_t i = 0; i < w->group_c; i++)
            b->e[0][weight_of(w, f, i, m.place)] +=
                fabs(in_at(b, 0, m.in * w->c + f / w->group_f * w->group_c + i) *
                     in_at(b, 1, m.out * w->f + f));
}
/* Sizes of the sums so far, times their number of roundings. */
static inline void scale_errors(const struct bound *b, double n_terms)
{
    for (int64_t i = 0; i < count_of(&b->w->out[0]); i++)
        b->e[0][i] *= (n_terms + 2) * b->eps;
}
static inline void bound_conv2d(const struct bound *b)
{
    struct ku_window w = ku_window_of(&b->w->attr, &b->w->in[0].shape, &b->w->out[0].shape);
    each_meeting(b, &w, meet_conv2d);
    for (int64_t i = 0; i < count_of(&b->w->out[0]) && b->w->n_in > 2; i++)
        b->e[0][i] += fabs(in_at(b, 2, i % w.f));
    scale_errors(b, (double)(w.kernel_h * w.kernel_w * w.group_c));
}
static inline void bound_conv2d_dx(const struct bound *b)
{
    struct ku_window w = ku_window_of(&b->w->attr, &b->w->out[0].shape, &b->w->in[0].shape);
    each_meeting(b, &w, meet_conv2d_dx);
    scale_errors(b, (double)(w.kernel_h * w.kernel_w * w.group_f));
}
static inline void bound_conv2d_dw(const struct bound *b)
{
    struct ku_window w = ku_window_of(&b->w->attr, &b->w->in[0].shape, &b->w->in[1].shape);
    each_meeting(b, &w, meet_conv2d_dw);
    scale_errors(b, (double)(w.n * w.out_h * w.out_w));
}

/* How many elements result q averages. */
static inline double pool_divisor(const struct bound *b, const struct ku_window *w, int64_t q)
{
    int64_t n = 0, y0 = q / w->out_w % w->out_h * w->stride_h - w->pad_h,
            x0 = q % w->out_w * w->stride_w - w->pad_w;
    for (int64_t y = y0; y < y0 + w->kernel_h; y++)
        for (int64_t x = x0; x < x0 + w->kernel_w; x++)
            n += b->w->attr.count_pad || (y >= 0 && y < w->in_h && x >= 0 && x < w->in_w);
    return (double)n;
}
static inline void meet_avg_pool(const struct bound *b, const struct ku_window *w, struct meeting m)
{
    for (int64_t c = 0; c < w->c; c++)
        b->e[0][m.out * w->c + c] += fabs(in_at(b, 0, m.in * w->c + c)) / pool_divisor(b, w, m.out);
}
static inline void meet_avg_pool_dx(const struct bound *b, const struct ku_window *w,
                                    struct meeting m)
{
    for (int64_t c = 0; c < w->c; c++)
        b->e[0][m.in * w->c + c] += fabs(in_at(b, 0, m.out * w->c + c)) / pool_divisor(b, w, m.out);
}
static inline void meet_max_pool_dx(const struct bound *b, const struct ku_window *w,
                                    struct meeting m)
{
    const uint16_t *place = b->w->in[1].data;
    for (int64_t c = 0; c < w->c; c++)
        if (place[m.out * w->c + c] == m.place)
            b->e[0][m.in * w->c + c] += fabs(in_at(b, 0, m.out * w->c + c));
}
static inline void bound_avg_pool(const struct bound *b)
{
    struct ku_window w = ku_window_of(&b->w->attr, &b->w->in[0].shape, &b->w->out[0].shape);
    each_meeting(b, &w, meet_avg_pool);
    scale_errors(b, (double)(w.kernel_h * w.kernel_w));
}
static inline void bound_pool_dx(const struct bound *b)
{
    struct ku_window w = ku_window_of(&b->w->attr, &b->w->out[0].shape, &b->w->in[0].shape);
    each_meeting(b, &w, b->w->op == KU_OP_avg_pool_dx ? meet_avg_pool_dx : meet_max_pool_dx);
    scale_errors(b, (double)(w.kernel_h * w.kernel_w));
}

static inline bound_fn *bound_of_conv(int op)
{
    switch (op) {
    case KU_OP_conv2d:
        return bound_conv2d;
    case KU_OP_conv2d_dx:
        return bound_conv2d_dx;
    case KU_OP_conv2d_dw:
        return bound_conv2d_dw;
    case KU_OP_avg_pool:
        return bound_avg_pool;
    case KU_OP_avg_pool_dx:
    case KU_OP_max_pool_dx:
        return bound_pool_dx;
    default:
        return NULL;
    }
}

#endif
