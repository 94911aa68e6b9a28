/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Convolution: chooses the algorithm of a call.
 *
 *     1 x 1, stride 1, no padding    matrix product over pixels       gemm/linear.c
 *     few channels                   runs along a line                line.c
 *     other forward, input gradient  implicit GEMM over images        slide.c
 *     weight gradient                one product per tap              weight_gradient.c
 *     window too large for scratch   the definition, device/ref       tile_definition
 */
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"
#include "device/ref/ref.h"

enum { MAX_TAPS = 1024 /* along one dim */, MAX_WINDOW = 1 << 16 /* taps */, LEAST_RUN = 48 };

struct definition {
    struct ku_pool *pool;
    int thread;
};
static void poll_pool(void *ctx)
{
    const struct definition *d = ctx;
    ku_pool_poll(d->pool, d->thread);
}
static void tile_definition(const struct ku_kernel *k, int64_t tile, int thread)
{
    struct definition d = {k->cpu->pool, thread};
    struct ku_ref_poll poll = {.hook = poll_pool, .ctx = &d};
    (void)tile;
    if (k->call.op == KU_OP_conv2d)
        ku_ref_conv2d(&k->call, &poll);
    else if (k->call.op == KU_OP_conv2d_dx)
        ku_ref_conv2d_dx(&k->call, &poll);
    else
        ku_ref_conv2d_dw(&k->call, &poll);
}

void ku_cpu_pad_line(const struct ku_kernel *k, struct ku_cpu_line l, char *to)
{
    const struct ku_cpu_conv *v = &k->conv;
    const struct ku_view *x = &k->call.in[0];
    const size_t bytes = (size_t)v->k * kumi_dtype_bytes(x->dtype);
    int64_t from = l.x < 0 ? -l.x : 0, end = v->w.src - l.x < l.n_x ? v->w.src - l.x : l.n_x;
    if (from >= end)
        from = end = l.n_x;
    memset(to, 0, (size_t)from * bytes);
    const char *at =
        ku_cpu_at(x, (((l.n * v->h.src + l.y) * v->w.src) + l.x + from) * v->src_c + l.c);
    if (v->groups == 1)
        memcpy(to + (size_t)from * bytes, at, (size_t)(end - from) * bytes);
    else
        for (int64_t i = from; i < end; i++)
            memcpy(to + (size_t)i * bytes,
                   at + (size_t)((i - from) * v->src_c) * kumi_dtype_bytes(x->dtype), bytes);
    memset(to + (size_t)end * bytes, 0, (size_t)(l.n_x - end) * bytes);
}

/* y[pixels, f] = x[pixels, c] w[f, c] as a matrix product. */
static int bind_pixels(struct ku_kernel *k)
{
    const struct ku_window *w = &k->window;
    struct ku_cpu_product *p = &k->product;
    const struct ku_call *c = &k->call;
    int64_t pixels = w->n * w->in_h * w->in_w;
    if (c->op == KU_OP_conv2d_dw) {
        const int is_y_first = w->f < w->c;
        p->k = pixels, p->m = is_y_first ? w->f : w->c, p->n = is_y_first ? w->c : w->f;
        p->a = c->in[is_y_first].data, p->b = c->in[!is_y_first].data;
        p->is_transposed = !is_y_first;
        p->a_row = 1, p->a_col = p->m, p->b_row = p->n, p->b_col = 1;
        return ku_cpu_bind_product(k);
    }
    const int is_back = c->op == KU_OP_conv2d_dx;
    p->m = pixels, p->k = is_back ? w->f : w->c, p->n = is_back ? w->c : w->f;
    p->a = c->in[0].data, p->a_row = p->k, p->a_col = 1;
    p->b = c->in[1].data;
    p->b_row = is_back ? p->n : 1, p->b_col = is_back ? 1 : p->k;
    if (c->n_in == 3 && !is_back)
        p->bias = c->in[2].data, p->bias_dtype = c->in[2].dtype;
    return ku_cpu_bind_product(k);
}

static struct ku_cpu_axis axis_of(int64_t in, int64_t out, int64_t taps, int64_t stride,
                                  int64_t pad, int64_t dilation, int is_back)
{
    return (struct ku_cpu_axis){.src = is_back ? out : in,
                                .dst = is_back ? in : out,
                                .taps = taps,
                                .stride = stride,
                                .pad = pad,
                                .dilation = dilation,
                                .is_back = is_back};
}

/*
 * Takes the kernel of half width if it covers the columns with fewer lanes; no AMX for few
 * channels.
 */
static void choose_micro(struct ku_kernel *k)
{
    const struct ku_gemm_micro *wide = ku_cpu_micro(k),
                               *slim = ku_cpu_has_pairs(k) ? k->cpu->slim_bf16 : k->cpu->slim_f32;
    if (slim && ku_cpu_tiles(k->conv.cols, slim->nr) % (wide->nr / slim->nr) != 0)
        k->product.slim = slim;
    if (wide->regroup && k->conv.k <= KU_CPU_FEW_CHANNELS)
        k->product.slim = &k->cpu->pairs->gemm;
}

static int bind_conv(struct ku_kernel *k, const struct ku_view *x, const struct ku_view *y)
{
    const struct ku_window *w = &k->window;
    struct ku_cpu_conv *v = &k->conv;
    const int is_back = k->call.op == KU_OP_conv2d_dx, is_dw = k->call.op == KU_OP_conv2d_dw;
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "second operand", &k->call.in[1], k->call.in[0].dtype));
    k->window = ku_window_of(&k->attr, &x->shape, &y->shape);
    k->product.dtype = k->call.in[0].dtype;
    if (w->kernel_h * w->kernel_w * w->stride_h * w->stride_w * w->groups == 1 &&
        w->pad_h + w->pad_w == 0)
        return bind_pixels(k);
    if (ku_cpu_count(&k->call.out[0]) == 0)
        return KUMI_OK;
    *v = (struct ku_cpu_conv){.n = w->n,
                              .src_c = is_back ? w->f : w->c,
                              .dst_c = is_back ? w->c : w->f,
                              .groups = w->groups,
                              .k = is_back ? w->group_f : w->group_c,
                              .cols = is_back ? w->group_c : w->group_f};
    v->h = axis_of(w->in_h, w->out_h, w->kernel_h, w->stride_h, w->pad_h, w->dilation_h, is_back);
    v->w = axis_of(w->in_w, w->out_w, w->kernel_w, w->stride_w, w->pad_w, w->dilation_w, is_back);
    choose_micro(k);
    const int64_t taps = w->kernel_h * w->kernel_w;
    const int is_large = w->kernel_h > MAX_TAPS || w->kernel_w > MAX_TAPS || taps > MAX_WINDOW;
    v->is_patched = taps > 1 && w->kernel_w * v->k < LEAST_RUN;
    if (is_large || !(is_dw ? ku_cpu_bind_conv_dw(k) : ku_cpu_bind_line(k) || ku_cpu_bind_slide(k)))
        ku_cpu_phase(k, tile_definition, 1);
    return KUMI_OK;
}
size_t ku_cpu_workspace_conv(const struct ku_op_case *c)
{
    const struct ku_attrs *a = c->attr;
    if (a->kernel_h * a->kernel_w * a->stride_h * a->stride_w * a->groups == 1 &&
        a->pad_h + a->pad_w == 0)
        return ku_cpu_workspace_product(c);
    return c->op == KU_OP_conv2d_dw ? ku_cpu_workspace_conv_slices(c)
                                    : ku_cpu_workspace_conv_panels(c);
}
int ku_cpu_bind_conv2d(struct ku_kernel *k)
{
    if (k->call.n_in == 3)
        KU_TRY(ku_cpu_check_float(k, "bias", &k->call.in[2]));
    return bind_conv(k, &k->call.in[0], &k->call.out[0]);
}
int ku_cpu_bind_conv2d_dx(struct ku_kernel *k)
{
    return bind_conv(k, &k->call.out[0], &k->call.in[0]);
}
int ku_cpu_bind_conv2d_dw(struct ku_kernel *k)
{
    return bind_conv(k, &k->call.in[0], &k->call.in[1]);
}
