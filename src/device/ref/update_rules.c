/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adagrad, Lion, RMSProp; exponential moving averages of weights. Operands may be flat runs of
 * canonical chunks.
 */
#include <math.h>

#include "device/ref/ref.h"
#include "device/step_scalars.h"
#include "op/schedule.h"

/* Constants of one step, and one element; s: its state in the order of the op. */
struct rule {
    const struct ku_attrs *a;
    double lr, t, momentum, beta1;
    int has_momentum, is_centered;
};
struct element {
    double p, s[3], g;
};
typedef void rule_fn(const struct rule *r, struct element *e);

/*
 * Operands: the parameter and its state in place, the gradient (times SCALE), the report. A skipped
 * update (APPLY 0) leaves the state; the compute copy is round(p) in any case.
 */
static void optimize(const struct ku_call *c, struct ku_ref_poll *poll, rule_fn *fn)
{
    const int n_state = ku_ops[c->op].min_out;
    const double *report = c->in[n_state + 1].data, scale = report[KU_REPORT_SCALE];
    const int64_t count = (int64_t)report[KU_REPORT_UPDATE] - 1;
    const int is_both = c->op == KU_OP_rmsprop_both;
    const struct rule r = {.a = c->attr,
                           .lr = report[KU_REPORT_LR] * c->attr->lr_mult,
                           .t = report[KU_REPORT_UPDATE],
                           .momentum = ku_schedule_momentum(c->attr, c->attr->momentum, count),
                           .beta1 = ku_schedule_momentum(c->attr, c->attr->beta1, count),
                           .has_momentum = is_both || c->op == KU_OP_rmsprop_momentum,
                           .is_centered = is_both || c->op == KU_OP_rmsprop_centered};
    for (int64_t i = 0; i < ku_ref_count(&c->out[0]); i++) {
        struct element e = {.p = ku_ref_get(&c->in[0], i),
                            .g = ku_ref_get(&c->in[n_state], i) * scale};
        for (int s = 1; s < n_state; s++)
            e.s[s - 1] = ku_ref_get(&c->in[s], i);
        ku_ref_worked(poll, n_state + 1);
        if (report[KU_REPORT_APPLY] != 0) {
            fn(&r, &e);
            ku_ref_put(&c->out[0], i, e.p);
            for (int s = 1; s < n_state; s++)
                ku_ref_put(&c->out[s], i, e.s[s - 1]);
        }
        if (c->n_out > n_state) /* of the parameter as stored */
            ku_ref_put(&c->out[n_state], i, ku_ref_get(&c->out[0], i));
    }
}

/*
 * sum = sum + g^2, p = p - lr / (1 + (t - 1) lr_decay) g / (sqrt(sum) + eps), where g includes wd
 * p.
 */
static void adagrad(const struct rule *r, struct element *e)
{
    const double g = e->g + r->a->weight_decay * e->p;
    e->s[0] += g * g;
    e->p -= r->lr / (1 + (r->t - 1) * r->a->lr_decay) * g / (sqrt(e->s[0]) + r->a->eps);
}
void ku_ref_adagrad(const struct ku_call *c, struct ku_ref_poll *poll)
{
    optimize(c, poll, adagrad);
}

/* p = p (1 - lr wd) - lr sign(b1 m + (1 - b1) g), m = b2 m + (1 - b2) g */
static void lion(const struct rule *r, struct element *e)
{
    const double to = r->beta1 * e->s[0] + (1 - r->beta1) * e->g, beta2 = r->a->beta2;
    e->p = e->p * (1 - r->lr * r->a->weight_decay) - r->lr * ((to > 0) - (to < 0));
    e->s[0] = beta2 * e->s[0] + (1 - beta2) * e->g;
}
void ku_ref_lion(const struct ku_call *c, struct ku_ref_poll *poll)
{
    optimize(c, poll, lion);
}

/*
 * v = alpha v + (1 - alpha) g^2, d = g / (sqrt(v) + eps), where g includes wd p. Centered: mean =
 * alpha mean + (1 - alpha) g, and d uses v - mean^2, which only rounding can make negative. p = p -
 * lr d; with momentum b = momentum b + d, p = p - lr b.
 */
static void rmsprop(const struct rule *r, struct element *e)
{
    const double alpha = r->a->alpha, g = e->g + r->a->weight_decay * e->p;
    double *const buffer = &e->s[1], *const mean = &e->s[r->has_momentum ? 2 : 1];
    double v = e->s[0] = alpha * e->s[0] + (1 - alpha) * g * g;
    if (r->is_centered) {
        *mean = alpha * *mean + (1 - alpha) * g;
        v = fmax(0, v - *mean * *mean);
    }
    double d = g / (sqrt(v) + r->a->eps);
    if (r->has_momentum)
        d = *buffer = r->momentum * *buffer + d;
    e->p -= r->lr * d;
}
void ku_ref_rmsprop(const struct ku_call *c, struct ku_ref_poll *poll)
{
    optimize(c, poll, rmsprop);
}
void ku_ref_rmsprop_momentum(const struct ku_call *c, struct ku_ref_poll *poll)
{
    optimize(c, poll, rmsprop);
}
void ku_ref_rmsprop_centered(const struct ku_call *c, struct ku_ref_poll *poll)
{
    optimize(c, poll, rmsprop);
}
void ku_ref_rmsprop_both(const struct ku_call *c, struct ku_ref_poll *poll)
{
    optimize(c, poll, rmsprop);
}

/* average = average + (1 - decay) (p - average) */
void ku_ref_ema(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const double *report = c->in[2].data;
    const double keep = ku_ema_decay(c->attr, report[KU_REPORT_UPDATE]);
    for (int64_t i = 0; i < ku_ref_count(&c->out[0]) && report[KU_REPORT_APPLY] != 0; i++) {
        double p = ku_ref_get(&c->in[1], i), old = ku_ref_get(&c->in[0], i);
        ku_ref_put(&c->out[0], i, keep == 0 ? p : old + (1 - keep) * (p - old));
        ku_ref_worked(poll, 2);
    }
}
