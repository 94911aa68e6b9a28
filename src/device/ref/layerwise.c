/* SPDX-License-Identifier: Apache-2.0 */
/* LARS and LAMB; operands may be flat runs of canonical chunks. */
#include <math.h>
#include <string.h>

#include "base/math/exact.h"
#include "device/ref/ref.h"
#include "device/step_scalars.h"
#include "op/schedule.h"

/* Squares of one canonical chunk, in the order of sumsq. */
struct squares {
    double lane[16];
};
static void add_square(struct squares *s, int64_t i, double x)
{
    s->lane[i % 16] += x * x;
}
static double total(struct squares *s)
{
    for (int width = 8; width >= 1; width /= 2)
        for (int l = 0; l < width; l++)
            s->lane[l] = s->lane[2 * l] + s->lane[2 * l + 1];
    return s->lane[0];
}
/* Adds to sum `which` of this call's tensor (0: the parameter, 1: its gradient or update). */
static void add_exact(const struct ku_call *c, int64_t *trust, int which, struct squares *s)
{
    int64_t *words = &trust[(2 * c->attr->index + which) * KU_EXACT_WORDS];
    struct ku_exact sum;
    memcpy(&sum, words, sizeof sum);
    ku_exact_add(&sum, total(s));
    memcpy(words, &sum, sizeof sum);
}

/* trust_sums: sums of squares of p and g, chunk by chunk as sumsq */
void ku_ref_trust_sums(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const int64_t count = ku_ref_count(&c->in[0]), chunk = ku_op_chunk(c->attr);
    for (int64_t from = 0; from < count; from += chunk) {
        int64_t n = count - from < chunk ? count - from : chunk;
        struct squares p = {{0}}, g = {{0}};
        for (int64_t i = 0; i < n; i++) {
            add_square(&p, i, ku_ref_get(&c->in[0], from + i));
            add_square(&g, i, ku_ref_get(&c->in[1], from + i));
        }
        add_exact(c, c->out[0].data, 0, &p);
        add_exact(c, c->out[0].data, 1, &g);
        ku_ref_worked(poll, 2 * n);
    }
}

void ku_ref_trust_norms(const struct ku_call *c, struct ku_ref_poll *poll)
{
    (void)poll;
    ku_trust_norms(c);
}

/* Constants of one step. */
struct lamb {
    double lr, scale, beta1, beta2, c1, c2, eps, weight_decay;
};
static struct lamb lamb_of(const struct ku_call *c, const double *report)
{
    const struct ku_attrs *a = c->attr;
    const double t = report[KU_REPORT_UPDATE];
    double beta1 = ku_schedule_momentum(a, a->beta1, (int64_t)t - 1);
    return (struct lamb){.lr = report[KU_REPORT_LR] * a->lr_mult,
                         .scale = report[KU_REPORT_SCALE],
                         .beta1 = beta1,
                         .beta2 = a->beta2,
                         .c1 = a->bias_correction ? 1 - pow(beta1, t) : 1,
                         .c2 = a->bias_correction ? 1 - pow(a->beta2, t) : 1,
                         .eps = a->eps,
                         .weight_decay = a->weight_decay};
}
static double lamb_update(const struct lamb *l, double p, double m, double v)
{
    return m / l->c1 / (sqrt(v / l->c2) + l->eps) + l->weight_decay * p;
}

/*
 * lamb_moments: m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, and the sums of squares of p and of
 * u = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + wd p, with m and v before rounding. A skipped
 * update (APPLY 0) changes nothing.
 */
void ku_ref_lamb_moments(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const double *report = c->in[4].data;
    const struct lamb l = lamb_of(c, report);
    int64_t count = report[KU_REPORT_APPLY] != 0 ? ku_ref_count(&c->in[0]) : 0;
    const int64_t chunk = ku_op_chunk(c->attr);
    for (int64_t from = 0; from < count; from += chunk) {
        int64_t n = count - from < chunk ? count - from : chunk;
        struct squares p2 = {{0}}, u2 = {{0}};
        for (int64_t i = from; i < from + n; i++) {
            double p = ku_ref_get(&c->in[0], i), g = ku_ref_get(&c->in[3], i) * l.scale;
            double m = l.beta1 * ku_ref_get(&c->in[1], i) + (1 - l.beta1) * g;
            double v = l.beta2 * ku_ref_get(&c->in[2], i) + (1 - l.beta2) * g * g;
            add_square(&p2, i - from, p);
            add_square(&u2, i - from, lamb_update(&l, p, m, v));
            ku_ref_put(&c->out[0], i, m);
            ku_ref_put(&c->out[1], i, v);
        }
        add_exact(c, c->out[2].data, 0, &p2);
        add_exact(c, c->out[2].data, 1, &u2);
        ku_ref_worked(poll, 4 * n);
    }
}

/* lamb: p = p - lr clamp(|p| / |u|) u, u as above from the stored moments */
void ku_ref_lamb(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const double *report = c->in[3].data;
    const struct lamb l = lamb_of(c, report);
    const double rate = l.lr * ku_trust_lamb(c->attr, c->in[4].data);
    for (int64_t i = 0; i < ku_ref_count(&c->out[0]); i++) {
        double p = ku_ref_get(&c->in[0], i);
        if (report[KU_REPORT_APPLY] != 0)
            ku_ref_put(
                &c->out[0], i,
                p - rate * lamb_update(&l, p, ku_ref_get(&c->in[1], i), ku_ref_get(&c->in[2], i)));
        if (c->n_out > 1) /* of the parameter as stored */
            ku_ref_put(&c->out[1], i, ku_ref_get(&c->out[0], i));
        ku_ref_worked(poll, 3);
    }
}

/*
 * lars: d = ratio (g + wd p); m = d in the first update, else momentum m + (1 - dampening) d; p = p
 * - lr m, with nesterov p - lr (d + momentum m).
 */
void ku_ref_lars(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_attrs *a = c->attr;
    const double *report = c->in[3].data, scale = report[KU_REPORT_SCALE];
    const double t = report[KU_REPORT_UPDATE], lr = report[KU_REPORT_LR] * a->lr_mult;
    const double ratio = ku_trust_lars(a, c->in[4].data, scale);
    const double mu = ku_schedule_momentum(a, a->momentum, (int64_t)t - 1);
    const double add = mu != 0 ? 1 - a->dampening : 1;
    for (int64_t i = 0; i < ku_ref_count(&c->out[0]); i++) {
        double p = ku_ref_get(&c->in[0], i), g = ku_ref_get(&c->in[2], i) * scale;
        double d = ratio * (g + a->weight_decay * p);
        double m = t == 1 ? d : mu * ku_ref_get(&c->in[1], i) + add * d;
        if (report[KU_REPORT_APPLY] != 0) {
            ku_ref_put(&c->out[1], i, m);
            ku_ref_put(&c->out[0], i, p - lr * (a->nesterov ? d + mu * m : m));
        }
        if (c->n_out > 2) /* of the parameter as stored */
            ku_ref_put(&c->out[2], i, ku_ref_get(&c->out[0], i));
        ku_ref_worked(poll, 3);
    }
}
