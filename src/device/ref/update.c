/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops that run once per step: exact sums, statistics, scalars, optimizers. Operands may be flat
 * runs of canonical chunks.
 */
#include <math.h>
#include <string.h>

#include "base/math/exact.h"
#include "device/ref/ref.h"
#include "device/step_scalars.h"
#include "op/schedule.h"

/* exact_sum: the exact sum of all elements; accumulate adds to the existing sum. */
void ku_ref_exact_sum(const struct ku_call *c, struct ku_ref_poll *poll)
{
    struct ku_exact sum;
    ku_exact_zero(&sum);
    if (c->accumulate)
        memcpy(&sum, c->out[0].data, sizeof sum);
    for (int64_t i = 0; i < ku_ref_count(&c->in[0]); i++) {
        ku_exact_add(&sum, ku_ref_get(&c->in[0], i));
        ku_ref_worked(poll, 1);
    }
    memcpy(c->out[0].data, &sum, sizeof sum);
}

/* count_valid: the number of targets that are neither negative nor `ignore` */
void ku_ref_count_valid(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const int32_t *target = c->in[0].data;
    int64_t n = ku_ref_count(&c->in[0]), *out = c->out[0].data, count = c->accumulate ? *out : 0;
    for (int64_t i = 0; i < n; i++)
        count += ku_ref_is_valid(c, target[i]);
    *out = count;
    ku_ref_worked(poll, n);
}

/* max_all: the max element, without padding; NaN if there is one, -infinity without elements */
void ku_ref_max_all(const struct ku_call *c, struct ku_ref_poll *poll)
{
    double most = (double)-INFINITY;
    for (int64_t i = 0; ku_shape_seen_run(&c->in[0].shape, &i, ku_ref_count(&c->in[0])) > 0; i++) {
        double x = ku_ref_get(&c->in[0], i);
        most = x > most || isnan(x) ? x : most;
        ku_ref_worked(poll, 1);
    }
    *(double *)c->out[0].data = most;
}

/*
 * accumulate: a + b, or with reduce=max the max (NaN wins), in place of a; i64 add as integers.
 * With `wire` a, b and their sum, all f32, are rounded to that dtype.
 */
static void accumulate_wire(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const enum kumi_dtype wire = (enum kumi_dtype)c->attr->wire;
    float *a = c->out[0].data;
    for (int64_t i = 0; i < ku_ref_count(&c->out[0]); i++) {
        float b = ((const float *)c->in[1].data)[i];
        ku_round_through(&a[i], wire, 1);
        ku_round_through(&b, wire, 1);
        a[i] += b;
        ku_round_through(&a[i], wire, 1);
        ku_ref_worked(poll, 2);
    }
}
void ku_ref_accumulate(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *to = &c->out[0], *from = &c->in[1];
    int is_max = c->attr->reduce == KU_REDUCE_MAX;
    if (c->attr->wire >= 0) {
        accumulate_wire(c, poll);
        return;
    }
    for (int64_t i = 0; i < ku_ref_count(to); i++) {
        ku_ref_worked(poll, 2);
        if (to->dtype == KUMI_I64) {
            int64_t *a = (int64_t *)to->data + i, b = ((const int64_t *)from->data)[i];
            *a = !is_max ? *a + b : b > *a ? b : *a;
            continue;
        }
        double a = ku_ref_get(to, i), b = ku_ref_get(from, i);
        ku_ref_put(to, i, !is_max ? a + b : b > a || isnan(b) ? b : a);
    }
}

void ku_ref_stats_zero(const struct ku_call *c, struct ku_ref_poll *poll)
{
    (void)poll;
    memset(c->out[0].data, 0, (size_t)ku_ref_count(&c->out[0]) * sizeof(int64_t));
}

/*
 * The sum of squares of one canonical chunk in f64, in an order that suits vectors: element i goes
 * to lane i mod 16, ascending; then neighbouring lanes are added, then neighbouring pairs, and so
 * on.
 */
static double block_sumsq(const struct ku_view *x, int64_t from, int64_t n, int64_t *n_bad)
{
    double lane[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        double e = ku_ref_get(x, from + i);
        lane[i % 16] += e * e;
        *n_bad += !isfinite(e);
    }
    for (int width = 8; width >= 1; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] = lane[2 * l] + lane[2 * l + 1];
    return lane[0];
}

/*
 * Adds the sums of the chunks to the exact sum in `stats`, and the number of non-finite elements to
 * stats[word].
 */
static void add_squares(const struct ku_view *x, int64_t chunk, int64_t *stats, int64_t word,
                        struct ku_ref_poll *poll)
{
    int64_t count = ku_ref_count(x);
    struct ku_exact sum;
    memcpy(&sum, stats, sizeof sum);
    for (int64_t i = 0; i < count; i += chunk) {
        int64_t n = count - i < chunk ? count - i : chunk;
        ku_exact_add(&sum, block_sumsq(x, i, n, &stats[word]));
        ku_ref_worked(poll, n);
    }
    memcpy(stats, &sum, sizeof sum);
}
void ku_ref_sumsq(const struct ku_call *c, struct ku_ref_poll *poll)
{
    add_squares(&c->in[0], ku_op_chunk(c->attr), c->out[0].data, KU_EXACT_WORDS + c->attr->index,
                poll);
}
void ku_ref_add_squares(void *dev, const struct ku_view *x, int64_t *stats, int64_t word)
{
    struct ku_ref_poll poll = {0};
    (void)dev;
    add_squares(x, KU_BLOCK_COUNT, stats, word, &poll);
}

/* loss_seed: 2^-shift times the loss scale */
void ku_ref_loss_seed(const struct ku_call *c, struct ku_ref_poll *poll)
{
    (void)poll;
    ku_ref_put(&c->out[0], 0, ku_loss_seed(c));
}

void ku_ref_step_scalars(const struct ku_call *c, struct ku_ref_poll *poll)
{
    (void)poll;
    ku_step_scalars(c);
}

void ku_ref_loss_scaler(const struct ku_call *c, struct ku_ref_poll *poll)
{
    (void)poll;
    ku_loss_scaler(c);
}

/* clip_value: limits elements to [-limit, limit]; a NaN stays */
void ku_ref_clip_value(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const double limit = ku_clip_limit(c);
    for (int64_t i = 0; i < ku_ref_count(&c->out[0]); i++) {
        const double g = ku_ref_get(&c->in[0], i);
        ku_ref_put(&c->out[0], i, g > limit ? limit : g < -limit ? -limit : g);
        ku_ref_worked(poll, 1);
    }
}

void ku_ref_loss_scalars(const struct ku_call *c, struct ku_ref_poll *poll)
{
    (void)poll;
    ku_loss_scalars(c);
}

/* Constants of one step, and the state of one element. */
struct rule {
    const struct ku_attrs *a;
    double lr, t, scale, momentum, beta1;
    int l2; /* weight decay is added to the gradient, not applied to the parameter */
};
struct element {
    double p, m, v, g;
};
typedef void rule_fn(const struct rule *r, struct element *e);

/*
 * A skipped update (APPLY 0) leaves the state. The compute copy is round(p) in any case, because it
 * may be a fresh buffer. Operands: n_state tensors in place, the gradient (times SCALE), the
 * report.
 */
static void optimize(const struct ku_call *c, struct ku_ref_poll *poll, int n_state, rule_fn *fn)
{
    const double *report = c->in[n_state + 1].data;
    const int64_t count = (int64_t)report[KU_REPORT_UPDATE] - 1;
    struct rule r = {.a = c->attr,
                     .lr = report[KU_REPORT_LR] * c->attr->lr_mult,
                     .t = report[KU_REPORT_UPDATE],
                     .scale = report[KU_REPORT_SCALE],
                     .momentum = ku_schedule_momentum(c->attr, c->attr->momentum, count),
                     .beta1 = ku_schedule_momentum(c->attr, c->attr->beta1, count),
                     .l2 = c->op != KU_OP_adamw};
    for (int64_t i = 0; i < ku_ref_count(&c->out[0]); i++) {
        struct element e = {.p = ku_ref_get(&c->in[0], i),
                            .m = ku_ref_get(&c->in[1], i),
                            .v = n_state > 2 ? ku_ref_get(&c->in[2], i) : 0,
                            .g = ku_ref_get(&c->in[n_state], i) * r.scale};
        ku_ref_worked(poll, n_state + 1);
        if (report[KU_REPORT_APPLY] != 0) {
            if (r.l2)
                e.g += c->attr->weight_decay * e.p;
            fn(&r, &e);
            ku_ref_put(&c->out[0], i, e.p);
            ku_ref_put(&c->out[1], i, e.m);
            if (n_state > 2)
                ku_ref_put(&c->out[2], i, e.v);
        }
        if (c->n_out > n_state) /* of the parameter as stored */
            ku_ref_put(&c->out[n_state], i, ku_ref_get(&c->out[0], i));
    }
}

/*
 * adamw, adam: m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, then
 *
 *     p = p (1 - lr wd) - lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
 *
 * adam adds wd p to g instead. Without bias_correction, 1 - b^t is replaced by 1.
 */
static void adam(const struct rule *r, struct element *e)
{
    const struct ku_attrs *a = r->a;
    double c1 = a->bias_correction ? 1 - pow(r->beta1, r->t) : 1;
    double c2 = a->bias_correction ? 1 - pow(a->beta2, r->t) : 1;
    e->m = r->beta1 * e->m + (1 - r->beta1) * e->g;
    e->v = a->beta2 * e->v + (1 - a->beta2) * e->g * e->g;
    double root = sqrt(e->v) / sqrt(c2);
    double keep = r->l2 ? 1 : 1 - r->lr * a->weight_decay;
    e->p = e->p * keep - r->lr / c1 * e->m / (root + a->eps);
}
void ku_ref_adamw(const struct ku_call *c, struct ku_ref_poll *poll)
{
    optimize(c, poll, 3, adam);
}
void ku_ref_adam(const struct ku_call *c, struct ku_ref_poll *poll)
{
    optimize(c, poll, 3, adam);
}

/*
 * sgd: m = g in the first update, else momentum m + (1 - dampening) g; p = p - lr m, with nesterov
 * p - lr (g + momentum m). Without momentum there is no dampening, as in PyTorch.
 */
static void sgd(const struct rule *r, struct element *e)
{
    double mu = r->momentum, add = mu != 0 ? 1 - r->a->dampening : 1;
    e->m = r->t == 1 ? e->g : mu * e->m + add * e->g;
    e->p -= r->lr * (r->a->nesterov ? e->g + mu * e->m : e->m);
}
void ku_ref_sgd(const struct ku_call *c, struct ku_ref_poll *poll)
{
    optimize(c, poll, 2, sgd);
}
