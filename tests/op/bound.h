/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_OP_BOUND_H
#define TESTS_OP_BOUND_H

#include "device/step_scalars.h"
#include "op/schedule.h"
#include "op/attention.h"
#include "op/call.h"

/*
 * How far a device's arithmetic may be from the truth, element by element, from the op's own
 * condition and the unit roundoff eps of the precision that the device computes in (Higham,
 * Accuracy and Stability of Numerical Algorithms, 2002, chapter 3): a sum of k products in any
 * order is off by at most (k + 1) eps sum|a b|; an elementary function costs at most ELEMENTARY
 * roundings; what is rounded before it enters another function moves that by its derivative. The
 * last rounding, to the result's dtype, is added by the caller. Ops without a function here round
 * once and must give the bits of ref.
 */
struct bound {
    const struct op_call *c, *w; /* as run, and widened */
    const struct op_result *truth;
    double eps;
    double *e[KU_MAX_OUT]; /* to be filled; zero at entry */
};
typedef void bound_fn(const struct bound *b);

enum { ELEMENTARY = 32 /* a polynomial of degree 10 by Horner's rule, range reduction, scaling */ };

/* Half the distance from 1 to its neighbour; what is lost below the least normal number. */
static inline double unit_of(enum kumi_dtype d)
{
    return d == KUMI_F64    ? 0x1p-53
           : d == KUMI_F32  ? 0x1p-24
           : d == KUMI_BF16 ? 0x1p-8
           : d == KUMI_F16  ? 0x1p-11
                            : 0;
}
static inline double least_of(enum kumi_dtype d)
{
    return d == KUMI_F16 ? 0x1p-25 : d == KUMI_F64 ? 0 : 0x1p-126; /* f32 kernels may flush */
}

static inline double in_at(const struct bound *b, int k, int64_t i)
{
    return ((const double *)b->w->in[k].data)[i];
}
static inline double truth_at(const struct bound *b, int k, int64_t i)
{
    return ((const double *)b->truth->out[k].data)[i];
}
static inline int64_t extent(const struct ku_view *v, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++)
        n *= v->shape.dim[d].count;
    return n;
}

/* -- products ---------------------------------------------------------------------------------- */

struct product {
    int64_t m, k, f;
    int trans;
};
static inline int64_t weight_at(const struct product *p, int64_t k, int64_t f)
{
    return p->trans ? f * p->k + k : k * p->f + f;
}

/*
 * GELU as x s(v): its argument v carries 6 roundings and moves the result by v s(v) s(-v); v is
 * 2 u in the tanh form, x itself in SiLU; in the erf form the same with x^2 for the slope of log
 * erfc.
 */
static inline double act_moved(int act, double x)
{
    if (act == KU_ACT_SILU)
        return fabs(x);
    return act == KU_ACT_GELU_TANH ? fabs(1.6 * x * (1 + 0.0447 * x * x)) : x * x;
}
static inline double act_half(int act, double x) /* s(v) */
{
    if (act == KU_ACT_SILU)
        return 1 / (1 + exp(-x));
    return act == KU_ACT_GELU_TANH ? 1 / (1 + exp(-1.5957691216 * (x + 0.044715 * x * x * x)))
                                   : 0.5 * erfc(-x * 0.70710678118654752);
}
static inline double act_error(int act, double x, double eps)
{
    if (act == KU_ACT_NONE || act == KU_ACT_RELU)
        return 0;
    double up = act_half(act, x), down = act_half(act, -x);
    return eps * fabs(x) * up * (ELEMENTARY + 8 * act_moved(act, x) * down);
}
/* The slope is s + x v' s (1 - s) (tanh), s + x phi(x) (erf). */
static inline double act_slope_error(int act, double x, double eps)
{
    if (act == KU_ACT_NONE || act == KU_ACT_RELU)
        return 0;
    double up = act_half(act, x), down = act_half(act, -x), moved = act_moved(act, x);
    double bump = act == KU_ACT_GELU_TANH || act == KU_ACT_SILU ? 3 * moved * up * down
                                                                : fabs(x) * 0.4 * exp(-x * x / 2);
    const double least = 0x1p-126; /* of the logistic function as computed */
    return eps * (ELEMENTARY * (up + bump) + 8 * moved * (up * down + bump)) + least;
}

/*
 * Sums of slices are f32 (f64 of f64 results), rounded once and once per level of their tree, also
 * where the device computes in a wider dtype.
 */
static inline double slices_error(const struct bound *b, double size)
{
    const enum kumi_dtype d = b->c->out[0].dtype == KUMI_F64 ? KUMI_F64 : KUMI_F32;
    return b->w->attr.slices ? (1 + ceil(log2((double)b->w->attr.slices))) * unit_of(d) * size : 0;
}
static inline void bound_linear(const struct bound *b)
{
    const struct ku_attrs *a = &b->w->attr;
    const struct ku_view *x = &b->w->in[0], *y = &b->w->out[0];
    int lead = x->shape.ndim - (int)a->contract;
    struct product p = {extent(x, 0, lead), extent(x, lead, x->shape.ndim),
                        extent(y, lead, y->shape.ndim), a->trans != 0};
    const double most_slope = 1.13; /* of GELU; ReLU's is 1 */
    for (int64_t m = 0; m < p.m; m++)
        for (int64_t f = 0; f < p.f; f++) {
            double sum = 0, size = b->w->n_in > 2 ? fabs(in_at(b, 2, f)) : 0;
            sum = b->w->n_in > 2 ? in_at(b, 2, f) : 0;
            for (int64_t k = 0; k < p.k; k++) {
                double term = in_at(b, 0, m * p.k + k) * in_at(b, 1, weight_at(&p, k, f));
                sum += term, size += fabs(term);
            }
            int64_t i = m * p.f + f;
            double e = (double)(p.k + 2) * b->eps * size + slices_error(b, size);
            double rounded = e + unit_of(b->c->out[0].dtype) * (fabs(sum) + e);
            b->e[0][i] = a->act == KU_ACT_NONE
                             ? e
                             : most_slope * rounded + act_error((int)a->act, sum, b->eps);
            if (b->w->n_out > 1)
                b->e[1][i] = e;
        }
}

static inline void bound_linear_dx(const struct bound *b)
{
    const struct ku_view *dy = &b->w->in[0], *dx = &b->w->out[0];
    int lead = dy->shape.ndim - (int)b->w->attr.outs;
    struct product p = {extent(dy, 0, lead), extent(dx, lead, dx->shape.ndim),
                        extent(dy, lead, dy->shape.ndim), b->w->attr.trans != 0};
    for (int64_t m = 0; m < p.m; m++)
        for (int64_t k = 0; k < p.k; k++) {
            double size = 0;
            for (int64_t f = 0; f < p.f; f++)
                size += fabs(in_at(b, 0, m * p.f + f) * in_at(b, 1, weight_at(&p, k, f)));
            b->e[0][m * p.k + k] = (double)(p.f + 1) * b->eps * size + slices_error(b, size);
        }
}

static inline void bound_linear_dw(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[0], *dy = &b->w->in[1];
    int lead = x->shape.ndim - (int)b->w->attr.contract;
    struct product p = {extent(x, 0, lead), extent(x, lead, x->shape.ndim),
                        extent(dy, lead, dy->shape.ndim), b->w->attr.trans != 0};
    for (int64_t k = 0; k < p.k; k++)
        for (int64_t f = 0; f < p.f; f++) {
            double size = 0;
            for (int64_t m = 0; m < p.m; m++)
                size += fabs(in_at(b, 0, m * p.k + k) * in_at(b, 1, m * p.f + f));
            b->e[0][weight_at(&p, k, f)] = (double)(p.m + 1) * b->eps * size;
        }
}

/* -- sums ----------------------------------------------------------------------------------------
 */

static inline void bound_linear_db(const struct bound *b)
{
    const struct ku_view *dy = &b->w->in[0];
    int lead = dy->shape.ndim - (int)b->w->attr.outs;
    int64_t n = extent(dy, 0, lead), width = extent(dy, lead, dy->shape.ndim);
    for (int64_t i = 0; i < n * width; i++)
        b->e[0][i % width] +=
            (double)n * b->eps * fabs(in_at(b, 0, i)) + slices_error(b, fabs(in_at(b, 0, i)));
}

static inline void bound_bias_add(const struct bound *b)
{
    const int64_t n = count_of(&b->w->in[0]), width = b->w->n_in > 1 ? count_of(&b->w->in[1]) : 1;
    for (int64_t i = 0; i < n; i++)
        b->e[0][i] = b->eps * fabs(in_at(b, 0, i) + (b->w->n_in > 1 ? in_at(b, 1, i % width) : 0));
}

static inline void bound_embedding_dw(const struct bound *b)
{
    const int32_t *id = b->w->in[0].data;
    const struct ku_view *dw = &b->w->out[0];
    int64_t n = count_of(&b->w->in[0]), width = extent(dw, 1, dw->shape.ndim);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++)
            b->e[0][id[i] * width + j] += (double)n * b->eps * fabs(in_at(b, 1, i * width + j));
}

static inline void bound_add_rows_dw(const struct bound *b)
{
    const struct ku_view *dy = &b->w->in[0], *dw = &b->w->out[0];
    int64_t width = extent(dw, 1, dw->shape.ndim);
    int lead = dy->shape.ndim - (int)b->w->attr.outs - 1;
    int64_t n = extent(dy, 0, lead), n_t = dy->shape.dim[lead].count;
    for (int64_t i = 0; i < count_of(dy); i++)
        b->e[0][i % (n_t * width)] += (double)n * b->eps * fabs(in_at(b, 0, i));
}

/* -- element by element ---------------------------------------------------------------------------
 */

static inline void bound_act(const struct bound *b)
{
    for (int64_t i = 0; i < count_of(&b->w->out[0]); i++)
        b->e[0][i] = act_error((int)b->w->attr.act, in_at(b, 0, i), b->eps);
}
static inline void bound_act_dx(const struct bound *b)
{
    for (int64_t i = 0; i < count_of(&b->w->out[0]); i++)
        b->e[0][i] =
            fabs(in_at(b, 0, i)) * act_slope_error((int)b->w->attr.act, in_at(b, 1, i), b->eps) +
            b->eps * fabs(truth_at(b, 0, i));
}
/* 1 / (1 - p) rounded, times x rounded. */
static inline void bound_dropout(const struct bound *b)
{
    for (int64_t i = 0; i < count_of(&b->w->out[0]); i++)
        b->e[0][i] = 2 * b->eps * fabs(truth_at(b, 0, i));
}

/* -- layer norm
 * -------------------------------------------------------------------------------------- */

/*
 * The mean is off by mu = (c + 1) eps sum|x| / c. The variance, from rounded differences to that
 * mean, by (c + 4) eps var + 2 mu^2; rstd by half of that relative to var + eps, and 4 roundings.
 */
static inline void bound_layer_norm(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[0];
    int64_t c = x->shape.dim[x->shape.ndim - 1].count, n = c ? count_of(x) / c : 0;
    for (int64_t r = 0; r < n; r++) {
        double size = 0, var = 0, mean = truth_at(b, 1, r), rstd = truth_at(b, 2, r);
        for (int64_t j = 0; j < c; j++) {
            double v = in_at(b, 0, r * c + j);
            size += fabs(v), var += (v - mean) * (v - mean);
        }
        double dc = (double)c, mu = (dc + 1) * b->eps * size / dc;
        var /= dc;
        double off = 0.5 * ((dc + 4) * b->eps * var + 2 * mu * mu) * rstd * rstd + 4 * b->eps;
        b->e[1][r] = mu;
        b->e[2][r] = off * rstd;
        for (int64_t j = 0; j < c; j++) {
            double d = fabs(in_at(b, 0, r * c + j) - mean), g = fabs(in_at(b, 1, j)) * rstd;
            b->e[0][r * c + j] = g * (mu + d * (off + 5 * b->eps)) +
                                 b->eps * (fabs(in_at(b, 2, j)) + fabs(truth_at(b, 0, r * c + j)));
        }
    }
}

/* rstd (g - mean(g) - xhat mean(g xhat)): three terms of 4, c + 4 and c + 8 roundings. */
static inline void bound_layer_norm_dx(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[1];
    int64_t c = x->shape.dim[x->shape.ndim - 1].count, n = c ? count_of(x) / c : 0;
    for (int64_t r = 0; r < n; r++) {
        double mean = in_at(b, 3, r), rstd = in_at(b, 4, r), g = 0, gx = 0;
        for (int64_t j = 0; j < c; j++) {
            double each = fabs(in_at(b, 0, r * c + j) * in_at(b, 2, j));
            g += each / (double)c;
            gx += each * fabs(in_at(b, 1, r * c + j) - mean) * rstd / (double)c;
        }
        for (int64_t j = 0; j < c; j++) {
            double each = fabs(in_at(b, 0, r * c + j) * in_at(b, 2, j));
            double xhat = fabs(in_at(b, 1, r * c + j) - mean) * rstd;
            b->e[0][r * c + j] =
                rstd * b->eps * (4 * each + (double)(c + 4) * g + xhat * (double)(c + 8) * gx);
        }
    }
}

static inline void bound_layer_norm_dgb(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[1];
    int64_t c = x->shape.dim[x->shape.ndim - 1].count, n = c ? count_of(x) / c : 0;
    for (int64_t i = 0; i < n * c; i++) {
        double dy = fabs(in_at(b, 0, i));
        double xhat = fabs(in_at(b, 1, i) - in_at(b, 2, i / c)) * in_at(b, 3, i / c);
        b->e[0][i % c] += (double)(n + 4) * b->eps * dy * xhat + slices_error(b, dy * xhat);
        b->e[1][i % c] += (double)n * b->eps * dy + slices_error(b, dy);
    }
}

/* The mean of squares is off by (c + 2) eps of itself; rstd by half of that, and 4 roundings. */
static inline double rms_off(const struct bound *b, int64_t c)
{
    return (0.5 * (double)(c + 2) + 4) * b->eps;
}
static inline void bound_rms_norm(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[0];
    int64_t c = x->shape.dim[x->shape.ndim - 1].count;
    for (int64_t i = 0; i < count_of(x); i++) {
        b->e[1][i / c] = rms_off(b, c) * truth_at(b, 1, i / c);
        b->e[0][i] = (rms_off(b, c) + 3 * b->eps) * fabs(truth_at(b, 0, i));
    }
}
/* rstd (g - xhat mean(g xhat)): terms of 4 and c + 8 roundings. */
static inline void bound_rms_norm_dx(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[1];
    int64_t c = x->shape.dim[x->shape.ndim - 1].count, n = c ? count_of(x) / c : 0;
    for (int64_t r = 0; r < n; r++) {
        double rstd = in_at(b, 3, r), gx = 0;
        for (int64_t j = r * c; j < (r + 1) * c; j++)
            gx += fabs(in_at(b, 0, j) * in_at(b, 2, j % c) * in_at(b, 1, j)) * rstd / (double)c;
        for (int64_t j = r * c; j < (r + 1) * c; j++)
            b->e[0][j] = rstd * b->eps *
                         (4 * fabs(in_at(b, 0, j) * in_at(b, 2, j % c)) +
                          fabs(in_at(b, 1, j)) * rstd * (double)(c + 8) * gx);
    }
}
static inline void bound_rms_norm_dg(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[1];
    int64_t c = x->shape.dim[x->shape.ndim - 1].count, n = c ? count_of(x) / c : 0;
    for (int64_t i = 0; i < n * c; i++) {
        const double size = fabs(in_at(b, 0, i) * in_at(b, 1, i)) * in_at(b, 2, i / c);
        b->e[0][i % c] += (double)(n + 4) * b->eps * size + slices_error(b, size);
    }
}

/* Cosine and sine of an angle whose product in f64 is off by 2^-53 of it, and its reduction by
 * as much again (f64 is ref itself); then 3 roundings. */
static inline void bound_rope(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[0];
    const int64_t d = x->shape.dim[x->shape.ndim - 1].count;
    const double most_angle = b->eps > 0x1p-53 ? 1e6 : 0; /* positions in the table */
    for (int64_t i = 0; i < count_of(x); i++) {
        const int64_t other = i % d < d / 2 ? i + d / 2 : i - d / 2;
        b->e[0][i] = (4 * b->eps + 4 * 0x1p-53 * most_angle) *
                     (fabs(in_at(b, 0, i)) + fabs(in_at(b, 0, other)));
    }
}

static inline void bound_glu(const struct bound *b)
{
    for (int64_t i = 0; i < count_of(&b->w->out[0]); i++)
        b->e[0][i] = act_error((int)b->w->attr.act, in_at(b, 0, i), b->eps) * fabs(in_at(b, 1, i)) +
                     b->eps * fabs(truth_at(b, 0, i));
}
static inline void bound_glu_dx(const struct bound *b)
{
    const int act = (int)b->w->attr.act;
    for (int64_t i = 0; i < count_of(&b->w->out[0]); i++) {
        double dy = fabs(in_at(b, 0, i)), up = fabs(in_at(b, 2, i)), gate = in_at(b, 1, i);
        b->e[0][i] =
            dy * up * act_slope_error(act, gate, b->eps) + 2 * b->eps * fabs(truth_at(b, 0, i));
        b->e[1][i] = dy * act_error(act, gate, b->eps) + b->eps * fabs(truth_at(b, 1, i));
    }
}

/* -- softmax
 * -------------------------------------------------------------------------------------------- */

/* The sum of n exponentials e^(s - max), s off by up to `moved`, and its logarithm. */
static inline double lse_error(double n, double most, double log_sum, double moved, double eps)
{
    return moved + eps * (n + 2 * ELEMENTARY + 4 * (fabs(most) + fabs(log_sum)));
}

static inline void bound_softmax_xent(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[0];
    const struct ku_dim *v = &x->shape.dim[x->shape.ndim - 1];
    for (int64_t r = 0; r < (v->count ? count_of(x) / v->count : 0); r++) {
        double most = -1e300, moved = 0, lse = truth_at(b, 1, r);
        for (int64_t j = 0; j < v->seen; j++)
            most = fmax(most, in_at(b, 0, r * v->count + j));
        for (int64_t j = 0; j < v->seen; j++) {
            double s = in_at(b, 0, r * v->count + j);
            moved += exp(s - lse) * b->eps * fabs(s - most);
        }
        b->e[1][r] = lse_error((double)v->seen, most, lse - most, moved, b->eps);
        b->e[0][r] = b->e[1][r] + b->eps * fabs(lse); /* lse is rounded before the logit is taken */
        for (int64_t j = 0; j < v->seen; j++)         /* smoothing: pieces of 1,024 add up in f32 */
            b->e[0][r] += b->w->attr.smoothing * 1024 * b->eps *
                          fabs(in_at(b, 0, r * v->count + j)) / (double)v->seen;
    }
}

static inline void bound_xent_sums(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[0];
    const struct ku_dim *v = &x->shape.dim[x->shape.ndim - 1];
    for (int64_t r = 0; r < (v->count ? count_of(x) / v->count : 0); r++)
        for (int64_t j = 0; j < v->seen; j++) { /* pieces of 1,024 add up in f32 */
            double s = in_at(b, 0, r * v->count + j), away = fabs(s - in_at(b, 1, r));
            b->e[0][3 * r] += exp(-away) * b->eps * (away + 1024 + ELEMENTARY);
            b->e[0][3 * r + 2] += b->w->attr.smoothing != 0 ? 1024 * b->eps * fabs(s) : 0;
        }
}
static inline void bound_xent_finish(const struct bound *b)
{
    for (int64_t r = 0; r < count_of(&b->w->in[1]); r++) { /* in f64 */
        double classes = (double)(b->w->attr.rows_seen ? b->w->attr.rows_seen : 1);
        double each = 0x1p-53 * (ELEMENTARY + 4);
        b->e[1][r] = each * (fabs(in_at(b, 1, r)) + fabs(log(in_at(b, 2, 3 * r))) + 1);
        b->e[0][r] = b->e[1][r] +
                     each * (fabs(in_at(b, 2, 3 * r + 1)) + fabs(in_at(b, 2, 3 * r + 2)) / classes);
    }
}

static inline void bound_softmax_xent_dx(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[1];
    int64_t width = x->shape.dim[x->shape.ndim - 1].count;
    for (int64_t i = 0; i < count_of(x); i++) {
        double log_p = in_at(b, 1, i) - in_at(b, 3, i / width);
        double scale = fabs(in_at(b, 0, i / width)) * b->eps;
        double seen = (double)x->shape.dim[x->shape.ndim - 1].seen;
        double each =
            b->w->attr.smoothing / (b->w->attr.rows_seen ? (double)b->w->attr.rows_seen : seen);
        b->e[0][i] = truth_at(b, 0, i) == 0
                         ? 0
                         : scale * (exp(log_p) * (fabs(log_p) + ELEMENTARY + 2) + 2 * each) +
                               2 * b->eps * fabs(truth_at(b, 0, i));
    }
}

/* -- attention
 * ------------------------------------------------------------------------------------------- */

struct attention {
    const struct bound *b;
    struct ku_attention a;
    int64_t sample, head; /* of queries */
    double scale;
};
static inline int64_t attn_q(const struct attention *a, const struct ku_attn_rows *rows, int64_t i)
{
    return ku_attn_at(rows, a->sample, i, a->head);
}
static inline int64_t attn_k(const struct attention *a, const struct ku_attn_rows *rows, int64_t j)
{
    return ku_attn_at(rows, a->sample, j, a->head / a->a.group);
}
static inline double attn_in(const struct attention *a, const struct ku_attn_rows *rows, int64_t at)
{
    return in_at(a->b, rows->operand, at);
}
/* q.k scale, and the sum of its terms' sizes. */
static inline double attn_score(const struct attention *a, int64_t i, int64_t j, double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t e = 0; e < a->a.width; e++) {
        double term = attn_in(a, &a->a.q, attn_q(a, &a->a.q, i) + e) *
                      attn_in(a, &a->a.k, attn_k(a, &a->a.k, j) + e) * a->scale;
        sum += term, *size += fabs(term);
    }
    return sum;
}
static inline int attn_sees(const struct attention *a, int64_t i, int64_t j)
{
    const struct ku_view *in = a->b->w->in;
    const int32_t *at = a->a.positions < 0 ? NULL : in[a->a.positions].data;
    const int64_t own = i + ku_attn_offset(&a->a, at, a->sample);
    const int32_t *number = NULL;
    if (a->a.segments >= 0)
        number = (const int32_t *)in[a->a.segments].data + a->sample * a->a.n_keys;
    return !(a->b->w->attr.causal && j > own) &&
           !(a->a.lengths >= 0 && j >= ((const int32_t *)in[a->a.lengths].data)[a->sample]) &&
           (number == NULL || number[j] == number[own]);
}
static inline double attn_keep(const struct attention *a, int64_t i, int64_t j)
{
    const struct op_call *w = a->b->w;
    const struct ku_view *q = &w->in[a->a.q.operand], *k = &w->in[a->a.k.operand];
    const int64_t *control = w->in[w->n_in - 1].data;
    const int dim = a->a.k_heads;
    if (w->attr.p == 0)
        return 1;
    int64_t row = ((q->start[0] + a->sample) * k->logical[dim] + k->start[dim]) * a->a.group;
    uint32_t word = ku_random_u32(
        (uint64_t)control[KU_CONTROL_SEED], (uint32_t)control[KU_CONTROL_STEP], w->stream,
        (uint64_t)(((row + a->head) * a->a.n_queries + i) * a->a.n_keys + j));
    return (double)ku_random_uniform(word) < w->attr.p ? 0 : 1 / (1 - w->attr.p);
}
static inline struct attention attention_of(const struct bound *b)
{
    const struct ku_shape *shape[KU_MAX_IN];
    for (int i = 0; i < b->w->n_in; i++)
        shape[i] = &b->w->in[i].shape;
    struct attention a = {.b = b, .a = ku_attention_of(b->w->op, &b->w->attr, b->w->n_in, shape)};
    double scale = b->w->attr.scale;
    a.scale = scale != 0 ? scale : 1 / sqrt((double)a.a.width);
    return a;
}

/* Probabilities and adjoints of scores may be rounded to bf16 where they enter a product. */
static inline double attn_inner(const struct attention *a)
{
    return a->b->c->in[a->a.q.operand].dtype == KUMI_BF16 ? unit_of(KUMI_BF16) : 0;
}
/*
 * Scores are off by (d + 3) eps sum|q k|; the log-sum-exp by their mean under p; a probability by
 * both, relatively; running maxima rescale at most once per key.
 */
static inline void bound_attention_query(const struct attention *a, int64_t i)
{
    const struct bound *b = a->b;
    const double d = (double)a->a.width, n = (double)a->a.n_keys;
    const double eps = b->eps, sums = (2 * n + 4 * ELEMENTARY) * eps;
    int64_t at_lse = ku_attn_lse_at(&a->a, a->sample, a->head) + i;
    double lse = truth_at(b, 1, at_lse), moved = 0, most = -1e300, size;
    const double inner = attn_inner(a);
    for (int64_t j = 0; j < a->a.n_keys; j++)
        if (attn_sees(a, i, j))
            most = fmax(most, attn_score(a, i, j, &size));
    if (most == -1e300)
        return; /* sees nothing: 0 and -infinity, exactly */
    for (int64_t j = 0; j < a->a.n_keys; j++) {
        double s = attn_score(a, i, j, &size);
        if (attn_sees(a, i, j))
            moved += exp(s - lse) * eps * ((d + 3) * size + 2 * fabs(s - most));
    }
    b->e[1][at_lse] = lse_error(n, most, lse - most, moved, eps) + sums;
    for (int64_t j = 0; j < a->a.n_keys; j++) {
        if (!attn_sees(a, i, j))
            continue;
        double s = attn_score(a, i, j, &size), p = exp(s - lse) * attn_keep(a, i, j);
        double off = eps * ((d + 3) * size + 2 * fabs(s - most)) + moved + sums;
        for (int64_t e = 0; e < a->a.width; e++)
            b->e[0][attn_q(a, &a->a.o, i) + e] +=
                p * fabs(attn_in(a, &a->a.v, attn_k(a, &a->a.v, j) + e)) * (off + inner);
    }
}
static inline void bound_attention(const struct bound *b)
{
    struct attention a = attention_of(b);
    for (a.sample = 0; a.sample < a.a.n_samples; a.sample++)
        for (a.head = 0; a.head < a.a.n_heads * a.a.group; a.head++)
            for (int64_t i = 0; i < a.a.n_queries; i++)
                bound_attention_query(&a, i);
}

/*
 * p = e^(s - lse) relative to itself as above; ds = p (z do.v - do.o) scale adds d + 4 roundings of
 * both products; then sums over queries, of all heads that read a key, or over keys.
 */
static inline void bound_attention_pair(const struct attention *a, int64_t i, int64_t j)
{
    const struct bound *b = a->b;
    const struct ku_attention *g = &a->a;
    const double n =
        (double)(g->n_keys > g->n_queries * g->group ? g->n_keys : g->n_queries * g->group);
    const double eps = b->eps, z = attn_keep(a, i, j), sums = (n + 2) * eps;
    const int64_t q = attn_q(a, &g->q, i), k = attn_k(a, &g->k, j), v = attn_k(a, &g->v, j);
    const int64_t d_o = attn_q(a, &g->d_o, i), d = g->width;
    double size, s = attn_score(a, i, j, &size), dv = 0, dv_size = 0, od = 0, od_size = 0;
    double lse = in_at(b, g->lse, ku_attn_lse_at(g, a->sample, a->head) + i), p = exp(s - lse);
    double off = eps * ((double)(d + 3) * size + fabs(s) + 2 * fabs(s - lse) + ELEMENTARY + 4);
    for (int64_t e = 0; e < d; e++) {
        double x = attn_in(a, &g->d_o, d_o + e);
        double by_v = z * x * attn_in(a, &g->v, v + e), by_o = x * attn_in(a, &g->o, d_o + e);
        dv += by_v, dv_size += fabs(by_v);
        od += by_o, od_size += fabs(by_o);
    }
    double ds = fabs(p * (dv - od) * a->scale);
    double ds_off = ds * (off + attn_inner(a)) +
                    p * fabs(a->scale) * (double)(d + 4) * eps * (dv_size + od_size);
    double *dq = b->e[0], *dk = b->e[b->w->n_out > 1], *to_v = b->e[b->w->n_out > 1 ? 2 : 0];
    for (int64_t e = 0; e < d; e++) {
        dq[q + e] += fabs(attn_in(a, &g->k, k + e)) * (ds_off + sums * ds);
        dk[k + e] += fabs(attn_in(a, &g->q, q + e)) * (ds_off + sums * ds);
        to_v[v + e] += p * z * fabs(attn_in(a, &g->d_o, d_o + e)) * (off + attn_inner(a) + sums);
    }
}
static inline void bound_attention_dx(const struct bound *b)
{
    struct attention a = attention_of(b);
    for (a.sample = 0; a.sample < a.a.n_samples; a.sample++)
        for (a.head = 0; a.head < a.a.n_heads * a.a.group; a.head++)
            for (int64_t i = 0; i < a.a.n_queries; i++)
                for (int64_t j = 0; j < a.a.n_keys; j++)
                    if (attn_sees(&a, i, j))
                        bound_attention_pair(&a, i, j);
}

/* -- optimizers
 * ---------------------------------------------------------------------------------------------- */

static inline double beta1_of(const struct bound *b, double t)
{
    return ku_schedule_momentum(&b->w->attr, b->w->attr.beta1, (int64_t)t - 1);
}

/* Constants, products and sums of a moment are at most 8 roundings of its terms, 12 of squares. */
static inline void bound_adam(const struct bound *b)
{
    const struct ku_attrs *a = &b->w->attr;
    const double *r = b->w->in[4].data, eps = b->eps;
    if (r[KU_REPORT_APPLY] == 0)
        return;
    double t = r[KU_REPORT_UPDATE], beta1 = beta1_of(b, t);
    double rate = r[KU_REPORT_LR] / (a->bias_correction ? 1 - pow(beta1, t) : 1);
    double root_scale = 1 / sqrt(a->bias_correction ? 1 - pow(a->beta2, t) : 1);
    for (int64_t i = 0; i < count_of(&b->w->in[0]); i++) {
        double p = in_at(b, 0, i), g = fabs(in_at(b, 3, i)) * r[KU_REPORT_SCALE];
        if (b->w->op == KU_OP_adam)
            g += a->weight_decay * fabs(p);
        double m = fabs(truth_at(b, 1, i)), v = truth_at(b, 2, i);
        double em = 8 * eps * (beta1 * fabs(in_at(b, 1, i)) + (1 - beta1) * g);
        double ev = 12 * eps * (a->beta2 * in_at(b, 2, i) + (1 - a->beta2) * g * g);
        double root = sqrt(v) * root_scale, below = root + a->eps;
        double root_off = v > 0 ? root * (0.5 * ev / v + 4 * eps) : 0;
        b->e[1][i] = em;
        b->e[2][i] = ev;
        b->e[0][i] = 3 * eps * fabs(p) + rate * (em + m * (root_off / below + 6 * eps)) / below;
        if (b->w->n_out > 3)
            b->e[3][i] = b->e[0][i] + unit_of(b->c->out[0].dtype) * fabs(truth_at(b, 0, i));
    }
}

static inline void bound_sgd(const struct bound *b)
{
    const struct ku_attrs *a = &b->w->attr;
    const double *r = b->w->in[3].data, eps = b->eps;
    const double mu = ku_schedule_momentum(a, a->momentum, (int64_t)r[KU_REPORT_UPDATE] - 1);
    if (r[KU_REPORT_APPLY] == 0)
        return;
    for (int64_t i = 0; i < count_of(&b->w->in[0]); i++) {
        double p = fabs(in_at(b, 0, i));
        double g = fabs(in_at(b, 2, i)) * r[KU_REPORT_SCALE] + a->weight_decay * p;
        double m = g + mu * fabs(in_at(b, 1, i));
        b->e[1][i] = 8 * eps * m;
        b->e[0][i] = eps * p + 12 * eps * r[KU_REPORT_LR] * (g + m);
        if (b->w->n_out > 2)
            b->e[2][i] = b->e[0][i] + unit_of(b->c->out[0].dtype) * fabs(truth_at(b, 0, i));
    }
}

/* As sgd, of a gradient that the ratio, rounded once, has scaled. */
static inline void bound_lars(const struct bound *b)
{
    const struct ku_attrs *a = &b->w->attr;
    const double *r = b->w->in[3].data, eps = b->eps;
    const double mu = ku_schedule_momentum(a, a->momentum, (int64_t)r[KU_REPORT_UPDATE] - 1);
    const double ratio = ku_trust_lars(a, b->w->in[4].data, r[KU_REPORT_SCALE]);
    if (r[KU_REPORT_APPLY] == 0)
        return;
    for (int64_t i = 0; i < count_of(&b->w->in[0]); i++) {
        double p = fabs(in_at(b, 0, i));
        double d = ratio * (fabs(in_at(b, 2, i)) * r[KU_REPORT_SCALE] + a->weight_decay * p);
        double m = d + mu * fabs(in_at(b, 1, i));
        b->e[1][i] = 10 * eps * m;
        b->e[0][i] = eps * p + 14 * eps * r[KU_REPORT_LR] * (d + m);
        if (b->w->n_out > 2)
            b->e[2][i] = b->e[0][i] + unit_of(b->c->out[0].dtype) * fabs(truth_at(b, 0, i));
    }
}

/* LAMB's update from moments that are off by em and ev: the update, and how far off it is. */
struct lamb_error {
    double update, off;
};
static inline struct lamb_error lamb_error(const struct bound *b, const double *r, double p,
                                           double m, double em, double v, double ev)
{
    const struct ku_attrs *a = &b->w->attr;
    const double t = r[KU_REPORT_UPDATE], eps = b->eps;
    const double c1 = a->bias_correction ? 1 - pow(beta1_of(b, t), t) : 1;
    const double c2 = a->bias_correction ? 1 - pow(a->beta2, t) : 1;
    double root = sqrt(v / c2), below = root + a->eps, decay = a->weight_decay * fabs(p);
    double root_off = v > 0 ? root * (0.5 * ev / v + 4 * eps) : 0;
    double move = fabs(m) / c1 / below;
    return (struct lamb_error){m / c1 / below + a->weight_decay * p,
                               em / c1 / below + move * (root_off / below + 6 * eps) +
                                   2 * eps * (move + decay)};
}

/* Moments as adam's; a sum of squares is off by 2 u off + off^2 of each update. */
static inline void bound_lamb_moments(const struct bound *b)
{
    const struct ku_attrs *a = &b->w->attr;
    const double *r = b->w->in[4].data, eps = b->eps, beta1 = beta1_of(b, r[KU_REPORT_UPDATE]);
    double sum_off = 0, sum_p = 0, sum_u = 0;
    if (r[KU_REPORT_APPLY] == 0)
        return;
    for (int64_t i = 0; i < count_of(&b->w->in[0]); i++) {
        double p = in_at(b, 0, i), g = fabs(in_at(b, 3, i)) * r[KU_REPORT_SCALE];
        b->e[0][i] = 8 * eps * (beta1 * fabs(in_at(b, 1, i)) + (1 - beta1) * g);
        b->e[1][i] = 12 * eps * (a->beta2 * in_at(b, 2, i) + (1 - a->beta2) * g * g);
        struct lamb_error l =
            lamb_error(b, r, p, truth_at(b, 0, i), b->e[0][i], truth_at(b, 1, i), b->e[1][i]);
        sum_off += 2 * fabs(l.update) * l.off + l.off * l.off;
        sum_p += p * p, sum_u += l.update * l.update;
    }
    /* blocks add up in f64, and what was there is rounded with them */
    b->e[2][2 * a->index] = 1e-12 * (sum_p + 100);
    b->e[2][2 * a->index + 1] = sum_off + 1e-12 * (sum_u + 100);
}
static inline void bound_lamb(const struct bound *b)
{
    const double *r = b->w->in[3].data, eps = b->eps;
    const double rate = r[KU_REPORT_LR] * ku_trust_lamb(&b->w->attr, b->w->in[4].data);
    if (r[KU_REPORT_APPLY] == 0)
        return;
    for (int64_t i = 0; i < count_of(&b->w->in[0]); i++) {
        double p = in_at(b, 0, i);
        struct lamb_error l = lamb_error(b, r, p, in_at(b, 1, i), 0, in_at(b, 2, i), 0);
        b->e[0][i] = eps * fabs(p) + rate * (l.off + 3 * eps * fabs(l.update));
        if (b->w->n_out > 1)
            b->e[1][i] = b->e[0][i] + unit_of(b->c->out[0].dtype) * fabs(truth_at(b, 0, i));
    }
}

#include "op/bound_norm.h"
#include "op/bound_rules.h"

static inline bound_fn *bound_of(int op)
{
    static bound_fn *const table[KU_N_OPS] = {
        [KU_OP_linear] = bound_linear,
        [KU_OP_linear_dx] = bound_linear_dx,
        [KU_OP_linear_dw] = bound_linear_dw,
        [KU_OP_linear_db] = bound_linear_db,
        [KU_OP_bias_add] = bound_bias_add,
        [KU_OP_embedding_dw] = bound_embedding_dw,
        [KU_OP_add_rows_dw] = bound_add_rows_dw,
        [KU_OP_act] = bound_act,
        [KU_OP_act_dx] = bound_act_dx,
        [KU_OP_dropout] = bound_dropout,
        [KU_OP_scale] = bound_dropout, /* the factor is rounded, too */
        [KU_OP_layer_norm] = bound_layer_norm,
        [KU_OP_layer_norm_dx] = bound_layer_norm_dx,
        [KU_OP_layer_norm_dgb] = bound_layer_norm_dgb,
        [KU_OP_rms_norm] = bound_rms_norm,
        [KU_OP_rms_norm_dx] = bound_rms_norm_dx,
        [KU_OP_rms_norm_dg] = bound_rms_norm_dg,
        [KU_OP_rope] = bound_rope,
        [KU_OP_rope_dx] = bound_rope,
        [KU_OP_glu] = bound_glu,
        [KU_OP_glu_dx] = bound_glu_dx,
        [KU_OP_batch_norm_sums] = bound_batch_norm_sums,
        [KU_OP_batch_norm] = bound_batch_norm,
        [KU_OP_batch_norm_dsums] = bound_batch_norm_dsums,
        [KU_OP_batch_norm_dx] = bound_batch_norm_dx,
        [KU_OP_softmax_xent] = bound_softmax_xent,
        [KU_OP_softmax_xent_dx] = bound_softmax_xent_dx,
        [KU_OP_xent_sums] = bound_xent_sums,
        [KU_OP_xent_finish] = bound_xent_finish,
        [KU_OP_attention] = bound_attention,
        [KU_OP_attention_dx] = bound_attention_dx,
        [KU_OP_attention_kv] = bound_attention,
        [KU_OP_attention_kv_dx] = bound_attention_dx,
        [KU_OP_adamw] = bound_adam,
        [KU_OP_adam] = bound_adam,
        [KU_OP_sgd] = bound_sgd,
        [KU_OP_adagrad] = bound_adagrad,
        [KU_OP_lion] = bound_lion,
        [KU_OP_rmsprop] = bound_rmsprop,
        [KU_OP_rmsprop_momentum] = bound_rmsprop,
        [KU_OP_rmsprop_centered] = bound_rmsprop,
        [KU_OP_rmsprop_both] = bound_rmsprop,
        [KU_OP_ema] = bound_ema,
        [KU_OP_factor_norms] = bound_factor_norms,
        [KU_OP_variance_norms] = bound_variance_norms,
        [KU_OP_adafactor] = bound_adafactor,
        [KU_OP_adafactor_vector] = bound_adafactor,
        [KU_OP_lars] = bound_lars,
        [KU_OP_lamb_moments] = bound_lamb_moments,
        [KU_OP_lamb] = bound_lamb,
    };
    return table[op];
}

#endif
