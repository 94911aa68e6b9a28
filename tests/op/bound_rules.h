/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_OP_BOUND_RULES_H
#define TESTS_OP_BOUND_RULES_H

#include "device/adafactor.h"

/* Adagrad, Lion, RMSProp, Adafactor, averages: what an element is off by, from its terms' sizes. */

static inline void bound_copy(const struct bound *b, int n_state, int64_t i)
{
    if (b->w->n_out > n_state)
        b->e[n_state][i] = b->e[0][i] + unit_of(b->c->out[0].dtype) * fabs(truth_at(b, 0, i));
}

/* g is off by 3 eps of its terms; g^2 by 8 eps; a root by half of what is below it. */
static inline void bound_adagrad(const struct bound *b)
{
    const struct ku_attrs *a = &b->w->attr;
    const double *r = b->w->in[3].data, eps = b->eps;
    const double lr = r[KU_REPORT_LR] * a->lr_mult;
    for (int64_t i = 0; i < count_of(&b->w->in[0]) && r[KU_REPORT_APPLY] != 0; i++) {
        double p = fabs(in_at(b, 0, i)), sum = truth_at(b, 1, i);
        double g = fabs(in_at(b, 2, i)) * r[KU_REPORT_SCALE] + a->weight_decay * p;
        double below = sqrt(sum) + a->eps, off = 8 * eps * (in_at(b, 1, i) + g * g);
        b->e[1][i] = off;
        b->e[0][i] = eps * p + lr * g / below * (8 * eps + 0.5 * off / sum);
        bound_copy(b, 2, i);
    }
}

/* A sign is any where what it is of is within its rounding. */
static inline void bound_lion(const struct bound *b)
{
    const struct ku_attrs *a = &b->w->attr;
    const double *r = b->w->in[3].data, eps = b->eps;
    const double lr = r[KU_REPORT_LR] * a->lr_mult;
    for (int64_t i = 0; i < count_of(&b->w->in[0]) && r[KU_REPORT_APPLY] != 0; i++) {
        double p = fabs(in_at(b, 0, i)), m = in_at(b, 1, i);
        double g = in_at(b, 2, i) * r[KU_REPORT_SCALE];
        double to = a->beta1 * m + (1 - a->beta1) * g;
        double size = a->beta1 * fabs(m) + (1 - a->beta1) * fabs(g);
        b->e[1][i] = 6 * eps * (a->beta2 * fabs(m) + (1 - a->beta2) * fabs(g));
        b->e[0][i] = 3 * eps * (p + lr) + (fabs(to) <= 6 * eps * size ? 2 * lr : 0);
        bound_copy(b, 2, i);
    }
}

static inline void bound_rmsprop(const struct bound *b)
{
    const struct ku_attrs *a = &b->w->attr;
    const int n = ku_ops[b->w->op].min_out, is_both = b->w->op == KU_OP_rmsprop_both;
    const int has_momentum = is_both || b->w->op == KU_OP_rmsprop_momentum;
    const int is_centered = is_both || b->w->op == KU_OP_rmsprop_centered;
    const double *r = b->w->in[n + 1].data, eps = b->eps, lr = r[KU_REPORT_LR] * a->lr_mult;
    for (int64_t i = 0; i < count_of(&b->w->in[0]) && r[KU_REPORT_APPLY] != 0; i++) {
        double p = fabs(in_at(b, 0, i)), v = truth_at(b, 1, i);
        double g = fabs(in_at(b, n, i)) * r[KU_REPORT_SCALE] + a->weight_decay * p;
        double off = 12 * eps * (a->alpha * in_at(b, 1, i) + (1 - a->alpha) * g * g), at_v = off;
        b->e[1][i] = off;
        if (is_centered) {
            double mean = truth_at(b, n - 1, i);
            double size = a->alpha * fabs(in_at(b, n - 1, i)) + (1 - a->alpha) * g;
            b->e[n - 1][i] = 8 * eps * size;
            at_v += 20 * eps * size * size + eps * v;
            v -= mean * mean;
        }
        double below = sqrt(v) + a->eps, d = g / below;
        double move = d * (8 * eps + (v > 0 ? 0.5 * at_v / v * sqrt(v) / below : 0));
        if (has_momentum) {
            double kept = a->momentum * fabs(in_at(b, 2, i));
            move += 4 * eps * (kept + d);
            b->e[2][i] = move;
            d += kept;
        }
        b->e[0][i] = eps * p + lr * (move + 3 * eps * d);
        bound_copy(b, n, i);
    }
}

static inline void bound_ema(const struct bound *b)
{
    const double *r = b->w->in[2].data, t = r[KU_REPORT_UPDATE];
    for (int64_t i = 0; i < count_of(&b->w->in[0]) && r[KU_REPORT_APPLY] != 0 && t > 1; i++)
        b->e[0][i] = 4 * b->eps * (fabs(in_at(b, 0, i)) + fabs(in_at(b, 1, i)));
}

/* A product of three and its root: an update is off by 8 eps of itself, and by half of what its
 * variance is. Blocks add up in f64, and what was there is rounded with them. */
static inline double factored_at(const struct bound *b, int64_t i)
{
    const struct ku_attrs *a = &b->w->attr;
    const int64_t m = i / (a->rows * a->cols);
    double var = in_at(b, 2, i / a->cols) * in_at(b, 3, m * a->cols + i % a->cols) * in_at(b, 4, m);
    return in_at(b, 1, i) * ((const double *)b->w->in[5].data)[KU_REPORT_SCALE] /
           sqrt(fmax(var, a->eps * a->eps));
}
static inline void bound_trust(const struct bound *b, int o, double p2, double u2, double off)
{
    b->e[o][2 * b->w->attr.index] = 1e-12 * (p2 + 100);
    b->e[o][2 * b->w->attr.index + 1] = off + 1e-12 * (u2 + 100);
}
static inline void bound_factor_norms(const struct bound *b)
{
    double p2 = 0, u2 = 0;
    if (((const double *)b->w->in[5].data)[KU_REPORT_APPLY] == 0)
        return;
    for (int64_t i = 0; i < count_of(&b->w->in[0]); i++) {
        double p = in_at(b, 0, i), u = factored_at(b, i);
        p2 += p * p, u2 += u * u;
    }
    bound_trust(b, 0, p2, u2, 20 * b->eps * u2);
}
static inline void bound_variance_norms(const struct bound *b)
{
    const struct ku_attrs *a = &b->w->attr;
    const double *r = b->w->in[3].data, w = pow(r[KU_REPORT_UPDATE], a->beta2_decay);
    double p2 = 0, u2 = 0, off = 0;
    if (r[KU_REPORT_APPLY] == 0)
        return;
    for (int64_t i = 0; i < count_of(&b->w->in[0]); i++) {
        double p = in_at(b, 0, i), g = in_at(b, 2, i) * r[KU_REPORT_SCALE];
        double old = in_at(b, 1, i), v = truth_at(b, 0, i), least = a->eps * a->eps;
        double at_v = 8 * b->eps * (old + w * (old + g * g)), u = g / sqrt(fmax(v, least));
        b->e[0][i] = at_v;
        p2 += p * p, u2 += u * u;
        at_v += unit_of(b->c->out[0].dtype) * v; /* read again as it is kept */
        off += u * u * (20 * b->eps + at_v / fmax(v, least));
    }
    bound_trust(b, 1, p2, u2, off);
}
static inline void bound_adafactor(const struct bound *b)
{
    const int is_vector = b->w->op == KU_OP_adafactor_vector;
    const struct ku_attrs *a = &b->w->attr;
    const double *r = b->w->in[is_vector ? 3 : 5].data;
    const struct ku_adafactor f = ku_adafactor_of(a, r, b->w->in[is_vector ? 4 : 6].data);
    for (int64_t i = 0; i < count_of(&b->w->in[0]) && r[KU_REPORT_APPLY] != 0; i++) {
        double u = is_vector ? in_at(b, 2, i) * f.scale / sqrt(fmax(in_at(b, 1, i), f.least))
                             : factored_at(b, i);
        b->e[0][i] = b->eps * (4 * fabs(in_at(b, 0, i)) + 14 * f.rate * fabs(u));
        bound_copy(b, 1, i);
    }
}

#endif
