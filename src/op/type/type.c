/* SPDX-License-Identifier: Apache-2.0 */
/* Type inference: one function for each way in which result types follow from operand types. */
#include <string.h>

#include "base/math/exact.h"
#include "op/type.h"
#include "op/loss_scaler.h"

static bool dims_are_equal(const struct ku_shape *a, int i, const struct ku_shape *b, int j, int n)
{
    for (int k = 0; k < n; k++) {
        const struct ku_dim *x = &a->dim[i + k], *y = &b->dim[j + k];
        if (x->count != y->count || x->seen != y->seen || x->name != y->name)
            return 0;
    }
    return 1;
}
/*
 * Appends dims [first, first + n) of src. ndim counts on past KU_MAX_DIMS, which ku_shape_check
 * detects.
 */
static void take(struct ku_shape *s, const struct ku_shape *src, int first, int n)
{
    for (int k = 0; k < n; k++) {
        if (s->ndim < KU_MAX_DIMS)
            s->dim[s->ndim] = src->dim[first + k];
        s->ndim++;
    }
}

/* The text of a graph may give any numbers of contracted and resulting dims. */
static int check_dims(const char *op, const struct ku_attrs *a)
{
    if (a->contract < 1 || a->contract > KU_MAX_DIMS || a->outs < 1 || a->outs > KU_MAX_DIMS)
        return KU_ERR(KUMI_EINVAL, "op: %s: contract=%lld outs=%lld; 1 to %d dims each", op,
                      (long long)a->contract, (long long)a->outs, KU_MAX_DIMS);
    return KUMI_OK;
}

INFER(same)
{
    (void)a;
    out[0] = in[0];
    for (int i = 1; i < n_in; i++) /* skips the control port (i64) */
        if (in[i].dtype != KUMI_I64 && in[i].shape.ndim == in[0].shape.ndim &&
            !ku_shape_is_equal(&in[i].shape, &in[0].shape))
            return misfit("elementwise", "operands differ in shape", &in[i]);
    return KUMI_OK;
}

INFER(elementwise2)
{
    (void)a, (void)n_in;
    if (!ku_shape_is_equal(&in[0].shape, &in[1].shape) || in[0].dtype != in[1].dtype)
        return misfit("elementwise", "both operands need one shape and dtype", &in[1]);
    out[0] = in[0];
    return KUMI_OK;
}

INFER(glu_dx)
{
    (void)a, (void)n_in;
    for (int i = 1; i < 3; i++)
        if (!ku_shape_is_equal(&in[i].shape, &in[0].shape) || in[i].dtype != in[0].dtype)
            return misfit("glu_dx", "dy, gate and up need one shape and dtype", &in[i]);
    out[0] = in[1];
    out[1] = in[2];
    return KUMI_OK;
}

INFER(cast)
{
    (void)n_in;
    out[0] = in[0];
    out[0].dtype = wanted(a, in[0].dtype);
    return KUMI_OK;
}

INFER(widen)
{
    (void)a, (void)n_in;
    if (!ku_shape_is_equal(&in[0].shape, &in[1].shape))
        return misfit("widen", "parameter and gradient differ in shape", &in[1]);
    out[0] = in[0];
    out[0].dtype = wide(in[0].dtype);
    return KUMI_OK;
}

INFER(stochastic_round)
{
    (void)n_in;
    if (in[0].dtype != KUMI_F32 || (a->dtype != KUMI_BF16 && a->dtype != KUMI_F16))
        return misfit("stochastic_round", "takes f32, to dtype bf16 or f16", &in[0]);
    out[0] = in[0];
    out[0].dtype = (enum kumi_dtype)a->dtype;
    return KUMI_OK;
}

INFER(rename)
{
    struct ku_shape *s = &out[0].shape;
    out[0] = in[0];
    for (int d = 0; n_in > 1 && d < s->ndim; d++)
        if (in[1].shape.ndim != s->ndim || in[1].shape.dim[d].count != s->dim[d].count)
            return misfit("rename", "operands differ in their counts", &in[1]);
    if (n_in > 1)
        *s = in[1].shape;
    else if (s->ndim < 1)
        return misfit("rename", "a scalar has no dims", &in[0]);
    else
        s->dim[s->ndim - 1].name = (char)a->row_name;
    return KUMI_OK;
}

INFER(derive)
{
    (void)a, (void)n_in;
    if (!ku_shape_is_equal(&in[0].shape, &in[1].shape))
        return misfit("derive", "source and result differ in shape", &in[1]);
    out[0] = in[1];
    return KUMI_OK;
}

INFER(embedding)
{
    (void)a, (void)n_in;
    const struct ku_shape *table = &in[0].shape, *ids = &in[1].shape;
    if (table->ndim < 2)
        return misfit("embedding", "table needs [rows, width..]", &in[0]);
    if (in[1].dtype != KUMI_I32)
        return misfit("embedding", "ids are i32", &in[1]);
    out[0].dtype = in[0].dtype;
    out[0].shape = *ids;
    take(&out[0].shape, table, 1, table->ndim - 1);
    return KUMI_OK;
}

INFER(embedding_dw)
{
    (void)n_in;
    const struct ku_shape *ids = &in[0].shape, *dy = &in[1].shape;
    if (dy->ndim <= ids->ndim || !dims_are_equal(ids, 0, dy, 0, ids->ndim))
        return misfit("embedding_dw", "dy needs the dims of ids first", &in[1]);
    out[0].dtype = wanted(a, wide(in[1].dtype));
    out[0].shape.ndim = 1;
    out[0].shape.dim[0] = (struct ku_dim){a->rows, a->rows_seen, (char)a->row_name};
    take(&out[0].shape, dy, ids->ndim, dy->ndim - ids->ndim);
    return KUMI_OK;
}

INFER(add_rows)
{
    (void)a, (void)n_in;
    const struct ku_shape *x = &in[0].shape, *w = &in[1].shape;
    int lead = x->ndim - w->ndim; /* dims of x before t */
    if (lead < 0 || w->ndim < 2 || !dims_are_equal(x, lead + 1, w, 1, w->ndim - 1))
        return misfit("add_rows", "table needs [rows, the dims of x behind t]", &in[1]);
    if (x->dim[lead].count > w->dim[0].seen)
        return misfit("add_rows", "table has fewer rows than x has positions", &in[1]);
    out[0] = in[0];
    return KUMI_OK;
}

INFER(sinusoid)
{
    (void)n_in, (void)in;
    if (a->rows < 1 || a->d_model < 1)
        return KU_ERR(KUMI_EINVAL, "sinusoid: %lld positions of width %lld; at least 1 of each",
                      (long long)a->rows, (long long)a->d_model);
    out[0].dtype = wanted(a, KUMI_F32);
    out[0].shape.ndim = 2;
    out[0].shape.dim[0] = (struct ku_dim){a->rows, a->rows, 'p'};
    out[0].shape.dim[1] = (struct ku_dim){a->d_model, a->d_model, 'c'};
    return KUMI_OK;
}

INFER(add_rows_dw)
{
    (void)n_in;
    const struct ku_shape *dy = &in[0].shape;
    KU_TRY(check_dims("add_rows_dw", a));
    int lead = dy->ndim - (int)a->outs - 1;
    if (lead < 0)
        return misfit("add_rows_dw", "dy has too few dims", &in[0]);
    out[0].dtype = wanted(a, wide(in[0].dtype));
    out[0].shape.ndim = 1;
    out[0].shape.dim[0] = (struct ku_dim){a->rows, a->rows_seen, (char)a->row_name};
    take(&out[0].shape, dy, lead + 1, dy->ndim - lead - 1);
    return KUMI_OK;
}

/*
 * First dim of the weight's contracted (weight_k) and resulting (weight_f) dims: [k.., f..], or
 * [f.., k..] with trans.
 */
static int weight_k(const struct ku_attrs *a)
{
    return a->trans ? (int)a->outs : 0;
}
static int weight_f(const struct ku_attrs *a)
{
    return a->trans ? 0 : (int)a->contract;
}

INFER(linear)
{
    const struct ku_shape *x = &in[0].shape, *w = &in[1].shape;
    KU_TRY(check_dims("linear", a));
    int k = (int)a->contract, f = (int)a->outs, lead = x->ndim - k;
    if (lead < 0 || w->ndim != k + f)
        return misfit("linear", "weight needs the contracted and the resulting dims", &in[1]);
    if (!dims_are_equal(x, lead, w, weight_k(a), k))
        return misfit("linear", "the contracted dims of x and weight differ", &in[1]);
    if (in[0].dtype != in[1].dtype)
        return misfit("linear", "x and weight differ in dtype", &in[1]);
    out[0].dtype = wanted(a, in[0].dtype);
    take(&out[0].shape, x, 0, lead);
    take(&out[0].shape, w, weight_f(a), f);
    if (n_in == 3 && (in[2].shape.ndim != f || !dims_are_equal(&in[2].shape, 0, w, weight_f(a), f)))
        return misfit("linear", "bias needs the resulting dims", &in[2]);
    out[1] = out[0];
    return KUMI_OK;
}

INFER(bias_add)
{
    const struct ku_shape *x = &in[0].shape;
    KU_TRY(check_dims("bias_add", a));
    const int f = (int)a->outs, lead = x->ndim - f;
    if (lead < 0)
        return misfit("bias_add", "sums have the dims of the bias", &in[0]);
    if (n_in == 2 && (in[1].shape.ndim != f || !dims_are_equal(x, lead, &in[1].shape, 0, f)))
        return misfit("bias_add", "bias needs the last dims of the sums", &in[1]);
    out[0] = in[0];
    out[0].dtype = wanted(a, in[0].dtype);
    return KUMI_OK;
}

INFER(linear_dx)
{
    (void)n_in;
    const struct ku_shape *dy = &in[0].shape, *w = &in[1].shape;
    KU_TRY(check_dims("linear_dx", a));
    int k = (int)a->contract, f = (int)a->outs, lead = dy->ndim - f;
    if (lead < 0 || w->ndim != k + f || !dims_are_equal(dy, lead, w, weight_f(a), f))
        return misfit("linear_dx", "dy and weight do not fit", &in[0]);
    out[0].dtype = wanted(a, in[0].dtype);
    take(&out[0].shape, dy, 0, lead);
    take(&out[0].shape, w, weight_k(a), k);
    return KUMI_OK;
}

INFER(linear_dw)
{
    (void)n_in;
    const struct ku_shape *x = &in[0].shape, *dy = &in[1].shape;
    KU_TRY(check_dims("linear_dw", a));
    int k = (int)a->contract, f = (int)a->outs, lead = x->ndim - k;
    if (lead < 0 || dy->ndim != lead + f || !dims_are_equal(x, 0, dy, 0, lead))
        return misfit("linear_dw", "x and dy do not fit", &in[1]);
    out[0].dtype = wanted(a, wide(in[1].dtype));
    if (a->trans)
        take(&out[0].shape, dy, lead, f);
    take(&out[0].shape, x, lead, k);
    if (!a->trans)
        take(&out[0].shape, dy, lead, f);
    return KUMI_OK;
}

INFER(linear_db)
{
    (void)n_in;
    const struct ku_shape *dy = &in[0].shape;
    KU_TRY(check_dims("linear_db", a));
    int lead = dy->ndim - (int)a->outs;
    if (lead < 0)
        return misfit("linear_db", "dy has too few dims", &in[0]);
    out[0].dtype = wanted(a, wide(in[0].dtype));
    take(&out[0].shape, dy, lead, (int)a->outs);
    return KUMI_OK;
}

INFER(layer_norm)
{
    (void)a, (void)n_in;
    const struct ku_shape *x = &in[0].shape;
    if (x->ndim < 1 || x->dim[x->ndim - 1].count < 1)
        return misfit("layer_norm", "x needs a last dim of at least one element", &in[0]);
    for (int i = 1; i < 3; i++)
        if (in[i].shape.ndim != 1 || !dims_are_equal(x, x->ndim - 1, &in[i].shape, 0, 1))
            return misfit("layer_norm", "gain and bias need x's last dim", &in[i]);
    out[0] = in[0];
    out[1].dtype = wide(in[0].dtype);
    take(&out[1].shape, x, 0, x->ndim - 1);
    out[2] = out[1];
    return KUMI_OK;
}

INFER(rms_norm)
{
    (void)a, (void)n_in;
    const struct ku_shape *x = &in[0].shape;
    if (x->ndim < 1 || x->dim[x->ndim - 1].count < 1)
        return misfit("rms_norm", "x needs a last dim of at least one element", &in[0]);
    if (in[1].shape.ndim != 1 || !dims_are_equal(x, x->ndim - 1, &in[1].shape, 0, 1))
        return misfit("rms_norm", "gain needs x's last dim", &in[1]);
    out[0] = in[0];
    out[1].dtype = wide(in[0].dtype);
    take(&out[1].shape, x, 0, x->ndim - 1);
    return KUMI_OK;
}

INFER(rms_norm_dg)
{
    (void)n_in;
    if (in[0].shape.ndim < 1)
        return misfit("rms_norm_dg", "dy needs a last dim", &in[0]);
    out[0].dtype = wanted(a, wide(in[0].dtype));
    take(&out[0].shape, &in[0].shape, in[0].shape.ndim - 1, 1);
    return KUMI_OK;
}

INFER(layer_norm_dgb)
{
    (void)n_in;
    if (in[0].shape.ndim < 1)
        return misfit("layer_norm_dgb", "dy needs a last dim", &in[0]);
    out[0].dtype = wanted(a, wide(in[0].dtype));
    take(&out[0].shape, &in[0].shape, in[0].shape.ndim - 1, 1);
    out[1] = out[0];
    return KUMI_OK;
}

/* Checks the operands after packed qkv: segments, if present, and the control port. */
static int check_packed(const char *op, const struct ku_type *qkv, int n_rest,
                        const struct ku_type *rest)
{
    if (rest[n_rest - 1].dtype != KUMI_I64)
        return misfit(op, "the control port must be the last operand", &rest[n_rest - 1]);
    if (n_rest == 2 && (rest[0].dtype != KUMI_I32 || rest[0].shape.ndim != 2 ||
                        !dims_are_equal(&rest[0].shape, 0, &qkv->shape, 0, 2)))
        return misfit(op, "segments are i32 [samples, tokens]", &rest[0]);
    return KUMI_OK;
}

INFER(attention)
{
    (void)a;
    const struct ku_shape *x = &in[0].shape;
    if (x->ndim != 5 || x->dim[2].count != 3 || x->dim[4].count < 1)
        return misfit("attention", "takes qkv as [samples, tokens, 3, heads, width >= 1]", &in[0]);
    KU_TRY(check_packed("attention", &in[0], n_in - 1, in + 1));
    out[0].dtype = in[0].dtype;
    take(&out[0].shape, x, 0, 2);
    take(&out[0].shape, x, 3, 2);
    out[1].dtype = wide(in[0].dtype);
    take(&out[1].shape, x, 0, 1);
    take(&out[1].shape, x, 3, 1);
    take(&out[1].shape, x, 1, 1);
    return KUMI_OK;
}

INFER(attention_dx)
{
    (void)a;
    if (in[1].shape.ndim != 5 || in[0].shape.ndim != 4)
        return misfit("attention_dx", "takes do and qkv", &in[1]);
    KU_TRY(check_packed("attention_dx", &in[1], n_in - 4, in + 4));
    out[0] = in[1];
    return KUMI_OK;
}

INFER(softmax_xent)
{
    (void)a, (void)n_in;
    const struct ku_shape *x = &in[0].shape, *y = &in[1].shape;
    if (in[1].dtype != KUMI_I32 || x->ndim != y->ndim + 1 || !dims_are_equal(x, 0, y, 0, y->ndim))
        return misfit("softmax_xent", "targets are i32 in the logits' leading dims", &in[1]);
    out[0].dtype = wide(in[0].dtype);
    out[0].shape = *y;
    out[1] = out[0];
    return KUMI_OK;
}

/* Targets and other values per position of logits[..,v]. */
static int check_positions(const char *op, const struct ku_type *logits, const struct ku_type *y)
{
    const struct ku_shape *x = &logits->shape;
    if (x->ndim != y->shape.ndim + 1 || !dims_are_equal(x, 0, &y->shape, 0, y->shape.ndim))
        return misfit(op, "operands have the logits' leading dims", y);
    return KUMI_OK;
}

INFER(xent_max)
{
    (void)a, (void)n_in;
    if (in[0].shape.ndim == 0)
        return misfit("xent_max", "logits have a dim of classes", &in[0]);
    out[0].dtype = wide(in[0].dtype);
    take(&out[0].shape, &in[0].shape, 0, in[0].shape.ndim - 1);
    return KUMI_OK;
}

INFER(xent_sums)
{
    const struct ku_dim sums = {.name = '3', .count = 3, .seen = 3};
    (void)a, (void)n_in;
    KU_TRY(check_positions("xent_sums", &in[0], &in[1]));
    KU_TRY(check_positions("xent_sums", &in[0], &in[2]));
    out[0].dtype = KUMI_F64;
    out[0].shape = in[1].shape;
    out[0].shape.dim[out[0].shape.ndim++] = sums;
    return KUMI_OK;
}

INFER(xent_finish)
{
    const struct ku_shape *s = &in[2].shape;
    (void)a, (void)n_in;
    KU_TRY(check_positions("xent_finish", &in[0], &in[1]));
    KU_TRY(check_positions("xent_finish", &in[0], &in[3]));
    if (s->ndim != in[1].shape.ndim + 1 || s->dim[s->ndim - 1].count != 3)
        return misfit("xent_finish", "takes three sums per position", &in[2]);
    out[0].dtype = wide(in[0].dtype);
    out[0].shape = in[3].shape;
    out[1] = out[0];
    return KUMI_OK;
}

INFER(softmax_xent_dx)
{
    (void)a, (void)n_in;
    out[0] = in[1];
    return KUMI_OK;
}

INFER(top_k)
{
    (void)n_in;
    const struct ku_shape *x = &in[0].shape, *y = &in[1].shape;
    if (in[1].dtype != KUMI_I32 || x->ndim != y->ndim + 1 || !dims_are_equal(x, 0, y, 0, y->ndim))
        return misfit("top_k", "targets are i32 in the logits' leading dims", &in[1]);
    if (a->top < 1)
        return misfit("top_k", "top is at least 1", &in[0]);
    out[0].dtype = wide(in[0].dtype);
    out[0].shape = *y;
    return KUMI_OK;
}

INFER(select)
{
    (void)a, (void)n_in;
    const struct ku_shape *x = &in[0].shape;
    if (x->ndim < 2 || in[1].shape.ndim != 1 || in[1].dtype != KUMI_I32 ||
        !dims_are_equal(x, 0, &in[1].shape, 0, 1))
        return misfit("select", "takes x [samples, tokens, ..] and an i32 index per sample",
                      &in[1]);
    out[0].dtype = in[0].dtype;
    take(&out[0].shape, x, 0, 1);
    take(&out[0].shape, x, 2, x->ndim - 2);
    return KUMI_OK;
}

static struct ku_type words(enum kumi_dtype dtype, int64_t n)
{
    return (struct ku_type){dtype, ku_shape_of("w", &n)};
}

INFER(exact)
{
    (void)a, (void)n_in, (void)in;
    out[0] = words(KUMI_I64, KU_EXACT_WORDS);
    return KUMI_OK;
}
INFER(count)
{
    (void)a, (void)n_in, (void)in;
    out[0] = words(KUMI_I64, 1);
    return KUMI_OK;
}
INFER(max_all)
{
    (void)a, (void)n_in, (void)in;
    out[0] = words(KUMI_F64, 1);
    return KUMI_OK;
}
INFER(expand)
{
    (void)a, (void)n_in;
    out[0] = in[1];
    out[0].dtype = in[0].dtype;
    return KUMI_OK;
}
INFER(scalar)
{
    (void)n_in, (void)in;
    out[0].dtype = wanted(a, KUMI_F32);
    return KUMI_OK;
}
INFER(stats)
{
    (void)n_in, (void)in;
    out[0] = words(KUMI_I64, a->words);
    return KUMI_OK;
}
static int infer_stats(const struct ku_attrs *a, const char *op, const struct ku_type *in,
                       struct ku_type *out)
{
    if (in->dtype != KUMI_I64 || in->shape.ndim != 1 || a->index < 0 ||
        a->index >= in->shape.dim[0].count - KU_EXACT_WORDS)
        return misfit(op, "stats needs the i64 of an exact sum and one per parameter", in);
    *out = *in;
    return KUMI_OK;
}
INFER(sumsq)
{
    (void)n_in;
    return infer_stats(a, "sumsq", &in[1], &out[0]);
}
INFER(convert)
{
    out[0] = in[0];
    if (n_in > 2 && (in[2].dtype != in[0].dtype || !ku_shape_is_equal(&in[2].shape, &in[0].shape)))
        return misfit("convert", "the addend differs from the sum in type", &in[2]);
    if (a->concat > 0 && (in[0].shape.ndim == KU_MAX_DIMS || n_in > 1))
        return misfit("convert", "has no free dim for the micro-batches", &in[0]);
    if (a->concat > 0) {
        out[0].shape = (struct ku_shape){.ndim = 1, .dim = {{a->concat, a->concat, '0'}}};
        take(&out[0].shape, &in[0].shape, 0, in[0].shape.ndim);
    }
    return n_in > 1 ? infer_stats(a, "convert", &in[1], &out[1]) : KUMI_OK;
}
INFER(loss_scalars)
{
    (void)a, (void)n_in, (void)in;
    out[0] = words(KUMI_F64, KU_REPORT_WORDS);
    return KUMI_OK;
}
static int infer_scaler(const char *op, const struct ku_type *in)
{
    const struct ku_type wanted = words(KUMI_F64, KU_SCALER_WORDS);
    if (in->dtype != KUMI_F64 || !ku_shape_is_equal(&in->shape, &wanted.shape))
        return misfit(op, "a loss scaler's state is f64[8]", in);
    return KUMI_OK;
}
INFER(loss_scaler)
{
    (void)a, (void)n_in;
    out[0] = in[0];
    return infer_scaler("loss_scaler", &in[0]);
}
INFER(clip_value)
{
    (void)a, (void)n_in;
    out[0] = in[0];
    return KUMI_OK;
}
INFER(step_scalars)
{
    (void)a;
    if (n_in > 4)
        KU_TRY(infer_scaler("step_scalars", &in[4]));
    out[0] = words(KUMI_F64, KU_REPORT_WORDS);
    out[1] = in[3];
    return KUMI_OK;
}

/* Operands: n_state state tensors that change in place, the gradient and the report. */
static int infer_optimizer(const struct ku_attrs *a, const struct ku_type *in, int n_state,
                           struct ku_type *out)
{
    for (int i = 0; i <= n_state; i++)
        if (!ku_shape_is_equal(&in[i].shape, &in[0].shape))
            return misfit("optimizer", "state and gradient differ from the parameter in shape",
                          &in[i]);
    for (int i = 0; i < n_state; i++)
        out[i] = in[i];
    out[n_state] = in[0];
    out[n_state].dtype = wanted(a, in[0].dtype);
    return KUMI_OK;
}
INFER(adam)
{
    (void)n_in;
    return infer_optimizer(a, in, 3, out);
}
INFER(sgd)
{
    (void)n_in;
    return infer_optimizer(a, in, 2, out);
}
INFER(update_rule)
{
    return infer_optimizer(a, in, n_in - 2, out);
}
INFER(ema)
{
    (void)a, (void)n_in;
    if (!ku_shape_is_equal(&in[1].shape, &in[0].shape))
        return misfit("ema", "average and parameter differ in shape", &in[1]);
    out[0] = in[0];
    return KUMI_OK;
}

static int resize_last(const char *op, const struct ku_attrs *a, int sign, const struct ku_type *in,
                       struct ku_type *out)
{
    out[0] = in[0];
    const int64_t most = (int64_t)1 << 48; /* the limit of a shape */
    if (in[0].shape.ndim < 1 || a->before < 0 || a->behind < 0 || a->before > most ||
        a->behind > most)
        return misfit(op, "needs a last dim, and no negative counts", &in[0]);
    struct ku_dim *d = &out[0].shape.dim[in[0].shape.ndim - 1];
    d->count = d->seen = d->count + sign * (a->before + a->behind);
    return d->count < 0 ? misfit(op, "has fewer elements than are cropped", &in[0]) : KUMI_OK;
}
INFER(pad_last)
{
    (void)n_in;
    return resize_last("pad_last", a, 1, in, out);
}
INFER(crop_last)
{
    (void)n_in;
    return resize_last("crop_last", a, -1, in, out);
}

/* Checks that trust holds two exact sums per tensor, tensor by tensor. */
static int check_trust(const struct ku_attrs *a, const struct ku_type *trust)
{
    if (trust->dtype != KUMI_I64 || trust->shape.ndim != 1 || a->index < 0 ||
        a->index >= trust->shape.dim[0].count / (2 * KU_EXACT_WORDS))
        return misfit("layer-wise optimizer", "trust needs two exact sums per tensor", trust);
    return KUMI_OK;
}
static int check_norms(const struct ku_attrs *a, const struct ku_type *norms)
{
    if (norms->dtype != KUMI_F64 || norms->shape.ndim != 1 || a->index < 0 ||
        a->index >= norms->shape.dim[0].count / 2)
        return misfit("layer-wise optimizer", "norms needs two f64 per tensor", norms);
    return KUMI_OK;
}
INFER(trust_sums)
{
    (void)n_in;
    if (!ku_shape_is_equal(&in[0].shape, &in[1].shape))
        return misfit("trust_sums", "parameter and gradient differ in shape", &in[1]);
    KU_TRY(check_trust(a, &in[2]));
    out[0] = in[2];
    return KUMI_OK;
}
INFER(trust_norms)
{
    (void)a, (void)n_in;
    if (in[0].dtype != KUMI_I64 || in[0].shape.ndim != 1 ||
        in[0].shape.dim[0].count % KU_EXACT_WORDS != 0)
        return misfit("trust_norms", "takes whole exact sums", &in[0]);
    out[0] = words(KUMI_F64, in[0].shape.dim[0].count / KU_EXACT_WORDS);
    return KUMI_OK;
}
INFER(lamb_moments)
{
    struct ku_type all[4];
    (void)n_in;
    KU_TRY(infer_optimizer(a, in, 3, all));
    KU_TRY(check_trust(a, &in[5]));
    out[0] = in[1];
    out[1] = in[2];
    out[2] = in[5];
    return KUMI_OK;
}
INFER(lamb)
{
    struct ku_type all[4];
    (void)n_in;
    KU_TRY(infer_optimizer(a, in, 2, all)); /* the moments have the parameter's shape */
    KU_TRY(check_norms(a, &in[4]));
    out[0] = in[0];
    out[1] = all[2];
    return KUMI_OK;
}
INFER(lars)
{
    (void)n_in;
    KU_TRY(check_norms(a, &in[4]));
    return infer_optimizer(a, in, 2, out);
}
