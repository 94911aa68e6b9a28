/* SPDX-License-Identifier: Apache-2.0 */
/* Ops on one element at a time, and copies of rows. */
#include <math.h>

#include "base/math/random.h"
#include "device/ref/ref.h"

/*
 * GELU, tanh form: 0.5 x (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3), which
 * keeps relative accuracy where 1 + tanh u cancels; for the same reason erfc instead of 1 + erf.
 */
static const double SQRT_2_OVER_PI = 0.79788456080286535588, CUBIC = 0.044715,
                    SQRT_HALF = 0.70710678118654752440, RSQRT_2_PI = 0.39894228040143267794;

double ku_ref_activate(int act, double x)
{
    switch ((enum ku_act)act) {
    case KU_ACT_NONE:
        return x;
    case KU_ACT_RELU:
        return x > 0 || isnan(x) ? x : 0;
    case KU_ACT_GELU_TANH:
        return x / (1 + exp(-2 * SQRT_2_OVER_PI * (x + CUBIC * x * x * x)));
    case KU_ACT_GELU_ERF:
        return 0.5 * x * erfc(-x * SQRT_HALF);
    case KU_ACT_SILU:
        return x / (1 + exp(-x));
    }
    return x;
}

double ku_ref_slope(int act, double x)
{
    switch ((enum ku_act)act) {
    case KU_ACT_NONE:
        return 1;
    case KU_ACT_RELU:
        return x > 0;
    case KU_ACT_GELU_TANH: {
        double u = SQRT_2_OVER_PI * (x + CUBIC * x * x * x);
        double du = SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
        double up = 1 / (1 + exp(-2 * u)), down = 1 / (1 + exp(2 * u));
        return up + 2 * x * du * up * down;
    }
    case KU_ACT_GELU_ERF:
        return 0.5 * erfc(-x * SQRT_HALF) + x * RSQRT_2_PI * exp(-0.5 * x * x);
    case KU_ACT_SILU:
        return (1 + x / (1 + exp(x))) / (1 + exp(-x));
    }
    return 1;
}

int64_t ku_ref_global_index(const struct ku_view *v, int64_t i, const int64_t *whole)
{
    int64_t at[KU_MAX_DIMS] = {0}, index = 0;
    for (int d = v->shape.ndim - 1; d >= 0; d--) {
        at[d] = i % v->shape.dim[d].count;
        i /= v->shape.dim[d].count;
    }
    for (int d = 0; d < v->shape.ndim; d++)
        index = index * whole[d] + v->start[d] + at[d];
    return ku_runs_at(&v->of, index);
}

double ku_ref_keep(const struct ku_call *c, uint64_t index)
{
    const int64_t *control = c->in[c->n_in - 1].data;
    uint32_t word = ku_random_u32((uint64_t)control[KU_CONTROL_SEED],
                                  (uint32_t)control[KU_CONTROL_STEP], c->stream, index);
    return (double)ku_random_uniform(word) >= c->attr->p ? 1 / (1 - c->attr->p) : 0;
}

typedef double element_fn(const struct ku_call *c, int64_t i);
static void each(const struct ku_call *c, struct ku_ref_poll *poll, element_fn *fn)
{
    int64_t n = ku_ref_count(&c->out[0]);
    for (int64_t i = 0; i < n; i++) {
        ku_ref_put(&c->out[0], i, fn(c, i));
        ku_ref_worked(poll, 1);
    }
}
#define EACH(name, value)                                                                          \
    static double element_##name(const struct ku_call *c, int64_t i)                               \
    {                                                                                              \
        return value;                                                                              \
    }                                                                                              \
    void ku_ref_##name(const struct ku_call *c, struct ku_ref_poll *poll)                          \
    {                                                                                              \
        each(c, poll, element_##name);                                                             \
    }
#define IN(k) ku_ref_get(&c->in[k], i)

EACH(act, ku_ref_activate((int)c->attr->act, IN(0)))
EACH(act_dx, IN(0) * ku_ref_slope((int)c->attr->act, IN(1)))
EACH(glu, ku_ref_activate((int)c->attr->act, IN(0)) * IN(1))
EACH(add, IN(0) + IN(1))
EACH(mul, IN(0) * IN(1))
EACH(cast, IN(0))
EACH(rename, IN(0))
EACH(derive, IN(0))
/* expand: the element of input 0, in the shape of input 1 */
EACH(expand, ((void)i, ku_ref_get(&c->in[0], 0)))
/* dropout: 0, or x / (1 - p); the index is flat over the logical tensor with padding */
EACH(dropout, ku_ref_keep(c, (uint64_t)ku_ref_global_index(&c->out[0], i, c->out[0].logical)) == 0
                  ? 0
                  : IN(0) / (1 - c->attr->p))

/* Whether local element i is padding. */
static bool is_padding(const struct ku_view *v, int64_t i)
{
    for (int d = v->shape.ndim - 1; d >= 0; i /= v->shape.dim[d--].count)
        if (i % v->shape.dim[d].count >= v->shape.dim[d].seen)
            return 1;
    return 0;
}

/* glu_dx: dgate = dy up act'(gate), dup = dy act(gate) */
void ku_ref_glu_dx(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const int act = (int)c->attr->act;
    for (int64_t i = 0; i < ku_ref_count(&c->out[0]); i++) {
        double dy = IN(0), gate = IN(1), up = IN(2);
        ku_ref_put(&c->out[0], i, dy * up * ku_ref_slope(act, gate));
        ku_ref_put(&c->out[1], i, dy * ku_ref_activate(act, gate));
        ku_ref_worked(poll, 2);
    }
}

/* fill: `value`; padding is zero */
EACH(fill, is_padding(&c->out[0], i) ? 0 : c->attr->value)

/*
 * random_normal: value + std z, z standard normal by the element's flat index in the logical tensor
 * without padding, so that padding changes no value; padding is zero. (Only the first dim can be
 * both split and padded, and no index depends on its extent.)
 */
static double element_random(const struct ku_call *c, int64_t i, int is_uniform)
{
    const struct ku_view *y = &c->out[0];
    const int64_t *control = c->in[1].data;
    int64_t whole[KU_MAX_DIMS] = {0};
    if (is_padding(y, i))
        return 0;
    for (int d = 0; d < y->shape.ndim; d++)
        whole[d] = y->shape.dim[d].count == y->logical[d] ? y->shape.dim[d].seen : y->logical[d];
    uint64_t seed = (uint64_t)control[KU_CONTROL_SEED];
    uint64_t index = (uint64_t)ku_ref_global_index(y, i, whole);
    float z = is_uniform ? ku_random_uniform(ku_random_u32(seed, 0, c->stream, index)) * 2 - 1
                         : ku_random_normal(seed, 0, c->stream, index);
    return c->attr->value + c->attr->std * (is_uniform ? sqrt(3.0) : 1) * (double)z;
}
static double element_normal(const struct ku_call *c, int64_t i)
{
    return element_random(c, i, 0);
}
void ku_ref_random_normal(const struct ku_call *c, struct ku_ref_poll *poll)
{
    each(c, poll, element_normal);
}

/* random_uniform: value + std sqrt(3) (2 u - 1), u uniform in [0, 1) by the same index */
static double element_uniform(const struct ku_call *c, int64_t i)
{
    return element_random(c, i, 1);
}
void ku_ref_random_uniform(const struct ku_call *c, struct ku_ref_poll *poll)
{
    each(c, poll, element_uniform);
}

/*
 * embedding: y[i] = 0 + table[ids[i]]. A shard of the table (rows from start[0] on) without the row
 * gives zeros: its part of the sum over ranks.
 */
void ku_ref_embedding(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *table = &c->in[0];
    const int32_t *ids = c->in[1].data;
    int64_t width = ku_ref_extent(table, 1, table->shape.ndim);
    for (int64_t i = 0; i < ku_ref_count(&c->in[1]); i++) {
        int64_t row = ids[i] - table->start[0];
        int has_row = row >= 0 && row < table->shape.dim[0].count;
        for (int64_t j = 0; j < width; j++)
            ku_ref_put(&c->out[0], i * width + j,
                       has_row ? 0 + ku_ref_get(table, row * width + j) : 0);
        ku_ref_worked(poll, width);
    }
}

/* embedding_dw: dtable[v] = sum of dy[i] over the tokens with ids[i] = v, in ascending i */
void ku_ref_embedding_dw(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *dy = &c->in[1], *dw = &c->out[0];
    const int32_t *ids = c->in[0].data;
    int64_t n = ku_ref_count(&c->in[0]), width = ku_ref_extent(dw, 1, dw->shape.ndim);
    for (int64_t v = 0; v < dw->shape.dim[0].count; v++) {
        int64_t first = 0;
        while (first < n && ids[first] - dw->start[0] != v)
            first++;
        for (int64_t j = 0; j < width; j++) {
            double sum = 0;
            for (int64_t i = first; i < n; i++)
                if (ids[i] - dw->start[0] == v)
                    sum += ku_ref_get(dy, i * width + j);
            ku_ref_result(c, 0, v * width + j, sum);
        }
        ku_ref_worked(poll, first < n ? n * width : n);
    }
}

/* add_rows: y[.., t, ..] = x[.., t, ..] + table[t], t global */
void ku_ref_add_rows(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0], *table = &c->in[1];
    int lead = x->shape.ndim - table->shape.ndim;
    int64_t width = ku_ref_extent(x, lead + 1, x->shape.ndim), n_t = x->shape.dim[lead].count;
    for (int64_t i = 0; i < ku_ref_count(x); i++) {
        int64_t row = x->start[lead] + i / width % n_t - table->start[0];
        ku_ref_put(&c->out[0], i, ku_ref_get(x, i) + ku_ref_get(table, row * width + i % width));
        ku_ref_worked(poll, 2);
    }
}

/* scale: y = x * value */
void ku_ref_scale(const struct ku_call *c, struct ku_ref_poll *poll)
{
    for (int64_t i = 0; i < ku_ref_count(&c->in[0]); i++)
        ku_ref_put(&c->out[0], i, ku_ref_get(&c->in[0], i) * c->attr->value);
    ku_ref_worked(poll, ku_ref_count(&c->in[0]));
}

/* sinusoid: [p, 2i] = sin(p 10000^(-2i/d)), [p, 2i+1] = cos of the same */
void ku_ref_sinusoid(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *y = &c->out[0];
    int64_t width = y->shape.dim[1].count;
    for (int64_t i = 0; i < ku_ref_count(y); i++) {
        int64_t p = y->start[0] + i / width, j = y->start[1] + i % width;
        double w = pow(10000, -(double)(j / 2 * 2) / (double)c->attr->d_model);
        ku_ref_put(y, i, j % 2 ? cos((double)p * w) : sin((double)p * w));
        ku_ref_worked(poll, 8);
    }
}

/* add_rows_dw: dtable[t] = sum over samples of dy[.., t, ..]; rows without a position are 0 */
void ku_ref_add_rows_dw(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *dy = &c->in[0], *dw = &c->out[0];
    int lead = dy->shape.ndim - (int)c->attr->outs - 1;
    int64_t n = ku_ref_extent(dy, 0, lead), n_t = dy->shape.dim[lead].count;
    int64_t width = ku_ref_extent(dw, 1, dw->shape.ndim);
    for (int64_t i = 0; i < ku_ref_count(dw); i++) {
        int64_t t = i / width + dw->start[0] - dy->start[lead];
        double sum = 0;
        for (int64_t s = 0; s < n && t >= 0 && t < n_t; s++)
            sum += ku_ref_get(dy, (s * n_t + t) * width + i % width);
        ku_ref_result(c, 0, i, sum);
        ku_ref_worked(poll, n + 1);
    }
}

/* select: y[n] = x[n, index[n]]; zeros if this shard of x does not have the position */
void ku_ref_select(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0];
    const int32_t *index = c->in[1].data;
    int64_t n_t = x->shape.dim[1].count, width = ku_ref_extent(x, 2, x->shape.ndim);
    for (int64_t i = 0; i < ku_ref_count(&c->out[0]); i++) {
        int64_t n = i / width, t = index[n] - x->start[1];
        int has_row = t >= 0 && t < n_t;
        ku_ref_put(&c->out[0], i, has_row ? ku_ref_get(x, (n * n_t + t) * width + i % width) : 0);
        ku_ref_worked(poll, 1);
    }
}
