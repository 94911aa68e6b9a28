/* SPDX-License-Identifier: Apache-2.0 */
/* Adafactor; operands may be flat runs of canonical chunks. */
#include <math.h>
#include <string.h>

#include "base/math/exact.h"
#include "device/adafactor.h"
#include "device/ref/ref.h"

/* factor_sums: adds each square of the gradient to the sums of its row and its column. */
void ku_ref_factor_sums(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_attrs *a = c->attr;
    const double *report = c->in[1].data;
    const int64_t each = a->rows * a->cols, count = ku_ref_count(&c->in[0]);
    const struct ku_factor_place place = ku_factor_place_of(&c->in[0]);
    double round[2];
    int64_t *rows = (int64_t *)c->out[0].data + a->first_word;
    int64_t *cols = rows + 2 * (place.total / a->cols);
    ku_factor_rounds(a, report, round);
    for (int64_t i = 0; i < count && report[KU_REPORT_APPLY] != 0; i++) {
        const int64_t at = ku_factor_at(&place, i), m = at / each;
        const double x = ku_ref_get(&c->in[0], i);
        ku_factor_add(&rows[2 * (at / a->cols)], x, round);
        ku_factor_add(&cols[2 * (m * a->cols + at % a->cols)], x, round);
        ku_ref_worked(poll, 1);
    }
}

void ku_ref_factor_means(const struct ku_call *c, struct ku_ref_poll *poll)
{
    (void)poll;
    ku_factor_means(c);
}

/* g scale / sqrt(max(row_var col_var / mean, eps^2)), with the new variances. */
static double factored_update(const struct ku_call *c, const struct ku_adafactor *f, int64_t i)
{
    const struct ku_attrs *a = c->attr;
    const struct ku_factor_place place = ku_factor_place_of(&c->in[1]);
    const int64_t at = ku_factor_at(&place, i), m = at / (a->rows * a->cols);
    const double var = ku_ref_get(&c->in[2], at / a->cols) *
                       ku_ref_get(&c->in[3], m * a->cols + at % a->cols) *
                       ((const double *)c->in[4].data)[m];
    return ku_ref_get(&c->in[1], i) * f->scale / sqrt(fmax(var, f->least));
}
static double plain_update(const struct ku_call *c, const struct ku_adafactor *f, int64_t i)
{
    return ku_ref_get(&c->in[2], i) * f->scale / sqrt(fmax(ku_ref_get(&c->in[1], i), f->least));
}

typedef double update_fn(const struct ku_call *c, const struct ku_adafactor *f, int64_t i);

/* Adds the squares of p and of the update, chunk by chunk, to the tensor's two sums. */
static void add_norms(const struct ku_call *c, struct ku_ref_poll *poll, update_fn *update,
                      const double *report, int64_t *trust)
{
    const struct ku_adafactor f = ku_adafactor_of(c->attr, report, NULL);
    const int64_t count = ku_ref_count(&c->in[0]);
    struct ku_exact sum[2];
    memcpy(sum, trust + 2 * c->attr->index * KU_EXACT_WORDS, sizeof sum);
    for (int64_t from = 0; from < count; from += KU_BLOCK_COUNT) {
        int64_t n = count - from < KU_BLOCK_COUNT ? count - from : KU_BLOCK_COUNT;
        double p2 = 0, u2 = 0;
        for (int64_t i = from; i < from + n; i++) {
            double p = ku_ref_get(&c->in[0], i), u = update(c, &f, i);
            p2 += p * p, u2 += u * u;
        }
        ku_exact_add(&sum[0], p2);
        ku_exact_add(&sum[1], u2);
        ku_ref_worked(poll, 2 * n);
    }
    memcpy(trust + 2 * c->attr->index * KU_EXACT_WORDS, sum, sizeof sum);
}
void ku_ref_factor_norms(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const double *report = c->in[5].data;
    if (report[KU_REPORT_APPLY] != 0)
        add_norms(c, poll, factored_update, report, c->out[0].data);
}

/* variance_norms: variance = variance + w (g^2 - variance), and the sums. */
void ku_ref_variance_norms(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const double *report = c->in[3].data;
    const struct ku_adafactor f = ku_adafactor_of(c->attr, report, NULL);
    if (report[KU_REPORT_APPLY] == 0)
        return;
    for (int64_t i = 0; i < ku_ref_count(&c->out[0]); i++) {
        double v = ku_ref_get(&c->in[1], i), g = ku_ref_get(&c->in[2], i) * f.scale;
        ku_ref_put(&c->out[0], i, v + f.w * (g * g - v));
    }
    add_norms(c, poll, plain_update, report, c->out[1].data); /* in[1] is out[0] */
}

/*
 * p = p (1 - lr wd) - rate update, rate = max(eps2, rms p) min(lr, 1 / sqrt(t)) / max(1, rms u /
 * d).
 */
static void apply(const struct ku_call *c, struct ku_ref_poll *poll, update_fn *update,
                  const double *report, const double *norms)
{
    const struct ku_adafactor f = ku_adafactor_of(c->attr, report, norms);
    for (int64_t i = 0; i < ku_ref_count(&c->out[0]); i++) {
        if (report[KU_REPORT_APPLY] != 0)
            ku_ref_put(&c->out[0], i,
                       ku_ref_get(&c->in[0], i) * f.keep - f.rate * update(c, &f, i));
        if (c->n_out > 1) /* of the parameter as stored */
            ku_ref_put(&c->out[1], i, ku_ref_get(&c->out[0], i));
        ku_ref_worked(poll, 3);
    }
}
void ku_ref_adafactor(const struct ku_call *c, struct ku_ref_poll *poll)
{
    apply(c, poll, factored_update, c->in[5].data, c->in[6].data);
}
void ku_ref_adafactor_vector(const struct ku_call *c, struct ku_ref_poll *poll)
{
    apply(c, poll, plain_update, c->in[3].data, c->in[4].data);
}
