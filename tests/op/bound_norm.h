/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_OP_BOUND_NORM_H
#define TESTS_OP_BOUND_NORM_H

/* Batch norm's part of bound.h, which includes it. */

enum { NORM_RUN = 128 /* rows whose sums are f32; runs add up in f64 */ };

/*
 * Sums about a row a, |a| <= m: differences d of one rounding, |d| <= |x| + m; sum d is off by
 * (run + 1) eps sum|d|, sum d^2 by (run + 3) eps sum d^2, and sum x^2 by that and 2 |a| that of
 * sum d.
 */
static inline void bound_batch_norm_sums(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[0];
    int64_t c = x->shape.dim[x->shape.ndim - 1].count, n = c ? count_of(x) / c : 0;
    for (int64_t j = 0; j < c; j++) {
        double m = 0, d = 0, dd = 0, run = n < NORM_RUN ? (double)n : NORM_RUN;
        for (int64_t r = 0; r < n; r++)
            m = fmax(m, fabs(in_at(b, 0, r * c + j)));
        for (int64_t r = 0; r < n; r++) {
            double each = fabs(in_at(b, 0, r * c + j)) + m;
            d += each, dd += each * each;
        }
        b->e[0][c + j] = (run + 1) * b->eps * d;
        b->e[0][2 * c + j] = (run + 3) * b->eps * (dd + 2 * m * d);
    }
}

/* (x - mean) scale + bias: four roundings of the product, one of each sum; r is added to what was
 * rounded to the result's dtype. */
static inline void bound_batch_norm(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[0];
    int64_t c = x->shape.dim[x->shape.ndim - 1].count;
    double unit = unit_of(b->c->out[0].dtype);
    for (int64_t i = 0; i < count_of(x); i++) {
        double rstd = 1 / sqrt(in_at(b, 2, i % c) + b->w->attr.eps), bias = in_at(b, 4, i % c);
        double p = (in_at(b, 0, i) - in_at(b, 1, i % c)) * rstd * in_at(b, 3, i % c);
        b->e[0][i] = b->eps * (4 * fabs(p) + fabs(p + bias));
        if (b->w->n_in >
            5) /* z rounded, and where a sum is rounded another way, the result's unit */
            b->e[0][i] += unit * (fabs(p + bias) + fabs(p + bias + in_at(b, 5, i)));
    }
}

static inline void bound_batch_norm_dsums(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[1];
    int64_t c = x->shape.dim[x->shape.ndim - 1].count, n = c ? count_of(x) / c : 0;
    double run = n < NORM_RUN ? (double)n : NORM_RUN;
    for (int64_t i = 0; i < n * c; i++) {
        double rstd = 1 / sqrt(in_at(b, 3, i % c) + b->w->attr.eps);
        double dz = b->w->n_in > 4 && !(in_at(b, 4, i) > 0) ? 0 : fabs(in_at(b, 0, i));
        double gain = dz * fabs(in_at(b, 1, i) - in_at(b, 2, i % c)) * rstd;
        b->e[0][i % c] += (run + 6) * b->eps * gain;
        b->e[1][i % c] += run * b->eps * dz;
        b->e[2][c + i % c] += run * b->eps * dz;
        b->e[2][2 * c + i % c] += (run + 6) * b->eps * gain;
    }
}

/* scale dz - (x - mean) slope - bias: five roundings of each term's size. */
static inline void bound_batch_norm_dx(const struct bound *b)
{
    const struct ku_view *x = &b->w->in[1];
    int64_t c = x->shape.dim[x->shape.ndim - 1].count;
    for (int64_t i = 0; i < count_of(x); i++) {
        int64_t j = i % c;
        double rstd = 1 / sqrt(in_at(b, 3, j) + b->w->attr.eps), n = in_at(b, 5, j);
        double xhat = (in_at(b, 1, i) - in_at(b, 2, j)) * rstd;
        double size = fabs(in_at(b, 0, i)) + fabs(in_at(b, 5, c + j) / n) +
                      fabs(xhat * in_at(b, 5, 2 * c + j) / n);
        b->e[0][i] = 6 * b->eps * fabs(in_at(b, 4, j)) * rstd * size;
    }
}

#endif
