/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_OP_BOUND_RULES_H
#define TESTS_OP_BOUND_RULES_H

/* Adagrad, Lion, RMSProp, averages: what an element is off by, from its terms' sizes. */

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

#endif
