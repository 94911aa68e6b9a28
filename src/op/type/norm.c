/* SPDX-License-Identifier: Apache-2.0 */
/* Type inference of batch norm. */
#include "op/type.h"

/*
 * Shape [count, c]. The first dim is named by its count: '3'.
 */
static struct ku_shape rows_of(int64_t count, struct ku_dim c)
{
    struct ku_dim rows = {count, count, (char)('0' + count)};
    return (struct ku_shape){.ndim = 2, .dim = {rows, c}};
}
static struct ku_shape vector_of(struct ku_dim c)
{
    return (struct ku_shape){.ndim = 1, .dim = {c}};
}
static struct ku_dim channels(const struct ku_shape *x)
{
    return x->dim[x->ndim - 1];
}

static int check_x(const char *op, const struct ku_type *x)
{
    if (x->shape.ndim < 2)
        return misfit(op, "x needs samples and a last dim of channels", x);
    char name = channels(&x->shape).name;
    if (name == '0' || name == '2' || name == '3')
        return misfit(op, "the dim of channels needs a name of its own", x);
    return KUMI_OK;
}
static int check_vectors(const char *op, const struct ku_shape *x, const struct ku_type *in, int n)
{
    struct ku_shape c = vector_of(channels(x));
    for (int i = 0; i < n; i++)
        if (!ku_shape_is_equal(&in[i].shape, &c))
            return misfit(op, "statistics, gain and bias need x's channels", &in[i]);
    return KUMI_OK;
}
static int check_like(const char *op, const struct ku_type *x, const struct ku_type *t)
{
    if (ku_shape_is_equal(&x->shape, &t->shape) && x->dtype == t->dtype)
        return KUMI_OK;
    return misfit(op, "needs x's shape and dtype", t);
}

INFER(batch_norm_sums)
{
    (void)a, (void)n_in;
    KU_TRY(check_x("batch_norm_sums", &in[0]));
    out[0] = (struct ku_type){KUMI_F64, rows_of(3, channels(&in[0].shape))};
    return KUMI_OK;
}

/* Attribute dtype gives the dtype of the statistics: f64 for x in f64, else f32. */
INFER(batch_norm_moments)
{
    const struct ku_shape *s = &in[0].shape;
    if (s->ndim != 2 || s->dim[0].count != 3 || in[0].dtype != KUMI_F64)
        return misfit("batch_norm_moments", "takes [3, channels] of f64", &in[0]);
    if (n_in > 1 && n_in != 4)
        return misfit("batch_norm_moments", "takes no running tensors or three", &in[0]);
    enum kumi_dtype dtype = a->dtype >= 0 ? (enum kumi_dtype)a->dtype : KUMI_F32;
    if (n_in == 4)
        KU_TRY(check_vectors("batch_norm_moments", s, in + 1, 2));
    out[0] = (struct ku_type){dtype, vector_of(s->dim[1])};
    out[1] = out[0];
    out[2] = (struct ku_type){dtype, rows_of(2, s->dim[1])};
    return KUMI_OK;
}

INFER(batch_norm)
{
    (void)a;
    KU_TRY(check_x("batch_norm", &in[0]));
    KU_TRY(check_vectors("batch_norm", &in[0].shape, in + 1, 4));
    if (n_in > 5)
        KU_TRY(check_like("batch_norm", &in[0], &in[5]));
    out[0] = in[0];
    return KUMI_OK;
}

INFER(batch_norm_dsums)
{
    KU_TRY(check_x("batch_norm_dsums", &in[1]));
    KU_TRY(check_like("batch_norm_dsums", &in[1], &in[0]));
    KU_TRY(check_vectors("batch_norm_dsums", &in[1].shape, in + 2, 2));
    if (n_in > 4)
        KU_TRY(check_like("batch_norm_dsums", &in[1], &in[4]));
    struct ku_dim c = channels(&in[1].shape);
    enum kumi_dtype dtype = a->dtype >= 0 ? (enum kumi_dtype)a->dtype : wide(in[0].dtype);
    out[0] = (struct ku_type){dtype, vector_of(c)};
    out[1] = out[0];
    out[2] = (struct ku_type){KUMI_F64, rows_of(3, c)};
    out[3] = in[0];
    return KUMI_OK;
}

INFER(batch_norm_dx)
{
    (void)a, (void)n_in;
    KU_TRY(check_x("batch_norm_dx", &in[1]));
    KU_TRY(check_like("batch_norm_dx", &in[1], &in[0]));
    KU_TRY(check_vectors("batch_norm_dx", &in[1].shape, in + 2, 3));
    out[0] = in[0];
    return KUMI_OK;
}

INFER(batch_norm_track)
{
    (void)a, (void)n_in;
    if (in[0].shape.ndim != 1 || !ku_shape_is_equal(&in[0].shape, &in[1].shape) ||
        in[2].shape.ndim != 3)
        return misfit("batch_norm_track", "takes mean and variance [c], and [k, 2, c]", &in[2]);
    out[0] = in[0];
    out[1] = in[1];
    return KUMI_OK;
}
