/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Type inference of convolution and pooling. Images are [n,y,x,c], weights [f,i,h,w] as in files.
 */
#include "op/type.h"
#include "op/window.h"

static bool is_dense(const struct ku_shape *s, int first)
{
    for (int d = first; d < s->ndim; d++)
        if (s->dim[d].seen != s->dim[d].count)
            return 0;
    return 1;
}
static bool is_image(const struct ku_type *t)
{
    return t->shape.ndim == 4 && is_dense(&t->shape, 1);
}
static struct ku_dim extent(const struct ku_dim *like, int64_t count)
{
    return (struct ku_dim){count, count, like->name};
}

/* So that sums and products of them do not overflow. */
enum { MOST = 1 << 15, MOST_PIXELS = 1 << 24 };
static int check_window(const char *op, const struct ku_attrs *a)
{
    const struct {
        const char *name;
        int64_t h, w, min, max;
    } row[] = {{"kernel", a->kernel_h, a->kernel_w, 1, MOST},
               {"stride", a->stride_h, a->stride_w, 1, MOST},
               {"padding", a->pad_h, a->pad_w, 0, MOST},
               {"dilation", a->dilation_h, a->dilation_w, 1, MOST},
               {"image", a->in_h, a->in_w, 0, MOST_PIXELS}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (row[i].h < row[i].min || row[i].w < row[i].min || row[i].h > row[i].max ||
            row[i].w > row[i].max)
            return KU_ERR(KUMI_EINVAL, "op: %s: %s %lldx%lld; %lld to %lld each", op, row[i].name,
                          (long long)row[i].h, (long long)row[i].w, (long long)row[i].min,
                          (long long)row[i].max);
    return KUMI_OK;
}

/* slide: y's extents from x's; slide_back: x's extents from y's. */
static int slide(const char *op, const struct ku_attrs *a, const struct ku_type *x,
                 struct ku_shape *y)
{
    if (!is_image(x))
        return misfit(op, "takes images as [samples, rows, columns, channels], unpadded", x);
    KU_TRY(check_window(op, a));
    *y = x->shape;
    if (y->dim[1].count != a->in_h || y->dim[2].count != a->in_w)
        return KU_ERR(KUMI_EINVAL, "op: %s: in_h=%lld in_w=%lld for an image of %lldx%lld", op,
                      (long long)a->in_h, (long long)a->in_w, (long long)y->dim[1].count,
                      (long long)y->dim[2].count);
    int64_t h = ku_window_extent(a->in_h, a->kernel_h, a->stride_h, a->pad_h, a->dilation_h);
    int64_t w = ku_window_extent(a->in_w, a->kernel_w, a->stride_w, a->pad_w, a->dilation_w);
    if (h < 1 || w < 1)
        return misfit(op, "the window does not fit into the padded image", x);
    y->dim[1] = extent(&y->dim[1], h);
    y->dim[2] = extent(&y->dim[2], w);
    return KUMI_OK;
}
static int slide_back(const char *op, const struct ku_attrs *a, const struct ku_type *dy,
                      struct ku_shape *x)
{
    struct ku_type like = *dy;
    struct ku_shape y;
    if (!is_image(dy))
        return misfit(op, "takes images as [samples, rows, columns, channels], unpadded", dy);
    like.shape.dim[1] = extent(&dy->shape.dim[1], a->in_h);
    like.shape.dim[2] = extent(&dy->shape.dim[2], a->in_w);
    KU_TRY(slide(op, a, &like, &y));
    if (!ku_shape_is_equal(&y, &dy->shape))
        return misfit(op, "dy's extents differ from what the window gives", dy);
    *x = like.shape;
    return KUMI_OK;
}

/* Weights [f, i, h, w] of c = i * groups channels. */
static int check_weight(const char *op, const struct ku_attrs *a, const struct ku_type *w)
{
    const struct ku_dim *d = w->shape.dim;
    if (w->shape.ndim != 4 || !is_dense(&w->shape, 0) || d[1].name != 'i' || d[2].name != 'h' ||
        d[3].name != 'w')
        return misfit(op, "weight is [outputs, i inputs of a group, h rows, w columns]", w);
    if (d[2].count != a->kernel_h || d[3].count != a->kernel_w)
        return misfit(op, "the weight's extents differ from the window's", w);
    if (a->groups < 1 || a->groups > d[0].count || d[0].count % a->groups != 0)
        return KU_ERR(KUMI_EINVAL,
                      "op: %s: %lld outputs in %lld groups; give a divisor of both channels", op,
                      (long long)d[0].count, (long long)a->groups);
    return KUMI_OK;
}

INFER(conv2d)
{
    const struct ku_dim *f = &in[1].shape.dim[0];
    KU_TRY(slide("conv2d", a, &in[0], &out[0].shape));
    KU_TRY(check_weight("conv2d", a, &in[1]));
    if (in[1].shape.dim[1].count * a->groups != in[0].shape.dim[3].count)
        return misfit("conv2d", "the weight's inputs times groups are not x's channels", &in[1]);
    if (in[0].dtype != in[1].dtype)
        return misfit("conv2d", "x and weight differ in dtype", &in[1]);
    if (n_in == 3 && (in[2].shape.ndim != 1 || in[2].shape.dim[0].count != f->count))
        return misfit("conv2d", "bias needs an element per output", &in[2]);
    out[0].dtype = a->dtype >= 0 ? (enum kumi_dtype)a->dtype : in[0].dtype;
    out[0].shape.dim[3] = *f;
    return KUMI_OK;
}

INFER(conv2d_dx)
{
    (void)n_in;
    const struct ku_dim *w = in[1].shape.dim;
    KU_TRY(slide_back("conv2d_dx", a, &in[0], &out[0].shape));
    KU_TRY(check_weight("conv2d_dx", a, &in[1]));
    if (w[0].count != in[0].shape.dim[3].count)
        return misfit("conv2d_dx", "dy and weight differ in outputs", &in[1]);
    out[0].dtype = in[0].dtype;
    out[0].shape.dim[3] = extent(&in[0].shape.dim[3], w[1].count * a->groups);
    return KUMI_OK;
}

INFER(conv2d_dw)
{
    (void)n_in;
    const struct ku_dim *x = in[0].shape.dim, *dy = in[1].shape.dim;
    struct ku_shape y;
    KU_TRY(slide("conv2d_dw", a, &in[0], &y));
    if (!is_image(&in[1]) || x[0].count != dy[0].count || y.dim[1].count != dy[1].count ||
        y.dim[2].count != dy[2].count)
        return misfit("conv2d_dw", "dy's extents differ from what the window gives", &in[1]);
    if (a->groups < 1 || x[3].count % a->groups != 0 || dy[3].count % a->groups != 0)
        return KU_ERR(KUMI_EINVAL, "op: conv2d_dw: %lld groups; give a divisor of both channels",
                      (long long)a->groups);
    out[0].dtype = wanted(a, wide(in[1].dtype));
    int64_t count[4] = {dy[3].count, x[3].count / a->groups, a->kernel_h, a->kernel_w};
    out[0].shape = ku_shape_of("fihw", count);
    out[0].shape.dim[0].name = dy[3].name;
    return KUMI_OK;
}

static int check_pool(const char *op, const struct ku_attrs *a)
{
    if (a->dilation_h != 1 || a->dilation_w != 1 || a->groups != 1)
        return KU_ERR(KUMI_EINVAL, "op: %s: dilation and groups are of convolutions", op);
    if (a->pad_h > a->kernel_h / 2 || a->pad_w > a->kernel_w / 2)
        return KU_ERR(KUMI_EINVAL,
                      "op: %s: padding %lldx%lld; at most half of the kernel %lldx%lld", op,
                      (long long)a->pad_h, (long long)a->pad_w, (long long)a->kernel_h,
                      (long long)a->kernel_w);
    if (a->kernel_h * a->kernel_w > 65536) /* indices are u16 */
        return KU_ERR(KUMI_EINVAL, "op: %s: kernel %lldx%lld; at most 65536 elements", op,
                      (long long)a->kernel_h, (long long)a->kernel_w);
    return KUMI_OK;
}
INFER(avg_pool)
{
    (void)n_in;
    KU_TRY(slide("pool", a, &in[0], &out[0].shape));
    KU_TRY(check_pool("pool", a));
    out[0].dtype = in[0].dtype;
    return KUMI_OK;
}
INFER(max_pool)
{
    KU_TRY(ku_infer_avg_pool(a, n_in, in, out));
    out[1] = out[0];
    out[1].dtype = KUMI_U16;
    return KUMI_OK;
}
INFER(pool_dx)
{
    KU_TRY(slide_back("pool_dx", a, &in[0], &out[0].shape));
    KU_TRY(check_pool("pool_dx", a));
    if (n_in == 2 && (in[1].dtype != KUMI_U16 || !ku_shape_is_equal(&in[1].shape, &in[0].shape)))
        return misfit("max_pool_dx", "argmax indices must be u16 in the shape of dy", &in[1]);
    out[0].dtype = in[0].dtype;
    return KUMI_OK;
}

INFER(flatten)
{
    (void)n_in;
    if (!is_image(&in[0]) || in[0].shape.dim[1].count != a->in_h ||
        in[0].shape.dim[2].count != a->in_w)
        return misfit("flatten", "takes images as [samples, rows, columns, channels], unpadded",
                      &in[0]);
    const struct ku_dim *d = in[0].shape.dim;
    out[0] = in[0];
    out[0].shape.ndim = 2;
    out[0].shape.dim[1] = extent(&d[3], d[1].count * d[2].count * d[3].count);
    return KUMI_OK;
}
INFER(unflatten)
{
    (void)n_in;
    const struct ku_dim *d = in[0].shape.dim;
    int64_t area;
    if (in[0].shape.ndim != 2 || a->in_h < 1 || a->in_w < 1 ||
        __builtin_mul_overflow(a->in_h, a->in_w, &area) || d[1].count % area != 0)
        return misfit("unflatten", "takes [samples, channels x in_h x in_w]", &in[0]);
    out[0] = in[0];
    out[0].shape.ndim = 4;
    out[0].shape.dim[1] = (struct ku_dim){a->in_h, a->in_h, 'y'};
    out[0].shape.dim[2] = (struct ku_dim){a->in_w, a->in_w, 'x'};
    out[0].shape.dim[3] = extent(&d[1], d[1].count / area);
    return KUMI_OK;
}
