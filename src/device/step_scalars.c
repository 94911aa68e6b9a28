/* SPDX-License-Identifier: Apache-2.0 */
#include "device/step_scalars.h"

#include <math.h>
#include <string.h>

#include "base/math/exact.h"
#include "op/loss_scaler.h"
#include "op/schedule.h"
#include "tensor/dtype.h"

/*
 * Writes the loss sum, mean loss and valid count to the report. Returns the divisor: the valid
 * count, at least 1.
 */
static double report_loss(const void *loss_sum, const void *valid, double *report)
{
    struct ku_exact sum;
    int64_t n_valid;
    memcpy(&sum, loss_sum, sizeof sum);
    memcpy(&n_valid, valid, sizeof n_valid);
    double n = (double)(n_valid > 0 ? n_valid : 1);
    memset(report, 0, KU_REPORT_WORDS * sizeof *report);
    report[KU_REPORT_LOSS_SUM] = ku_exact_round(&sum);
    report[KU_REPORT_LOSS] = report[KU_REPORT_LOSS_SUM] / n;
    report[KU_REPORT_TOKENS] = (double)n_valid;
    return n;
}

/* The loss scale in operand `at`, the loss scaler's state; 1 if the call has no such operand. */
static double loss_scale(const struct ku_call *c, int at)
{
    return c->n_in > at ? ku_scaler_state(c->attr, c->in[at].data).scale : 1;
}

double ku_loss_seed(const struct ku_call *c)
{
    return ldexp(loss_scale(c, 0), -(int)c->attr->shift);
}

void ku_loss_scaler(const struct ku_call *c)
{
    const double *report = c->in[1].data;
    ku_scaler_move(c->attr, c->in[0].data, report[KU_REPORT_APPLY] == 0, c->out[0].data);
}

double ku_clip_limit(const struct ku_call *c)
{
    const double *report = c->in[1].data;
    double limit;
    if (report[KU_REPORT_APPLY] == 0)
        return (double)INFINITY;
    ku_store_f64(&limit, c->in[0].dtype, 0, c->attr->clip_value / fabs(report[KU_REPORT_SCALE]));
    return ku_load_f64(&limit, c->in[0].dtype, 0);
}

double ku_clip_factor(const struct ku_attrs *a, double norm)
{
    const double factor = a->clip > 0 ? a->clip / (norm + 1e-6) : 1;
    return factor < 1 ? factor : 1;
}

/*
 * Gradients arrive as sums over valid tokens times S 2^-shift, where S is the loss scale (1 without
 * a scaler). scale0 = 2^shift / (N S) undoes that; SCALE is scale0 times the factor of clipping. A
 * non-finite loss or gradient sets APPLY to 0 and leaves the update count unchanged.
 */
void ku_step_scalars(const struct ku_call *c)
{
    const struct ku_attrs *a = c->attr;
    const int64_t *stats = c->in[0].data;
    int64_t n_words = ku_shape_count(&c->in[0].shape), count, n_bad = 0;
    double *report = c->out[0].data;
    double n = report_loss(c->in[1].data, c->in[2].data, report);
    double scale0 = ldexp(1, (int)a->shift) / (n * loss_scale(c, 4));
    struct ku_exact sum;
    memcpy(&sum, stats, sizeof sum);
    memcpy(&count, c->in[3].data, sizeof count);
    double norm = sqrt(ku_exact_round(&sum)) * scale0;
    for (int64_t i = KU_EXACT_WORDS; i < n_words; i++)
        n_bad += stats[i] != 0;
    int apply = n_bad == 0 && isfinite(report[KU_REPORT_LOSS]) && isfinite(norm);
    report[KU_REPORT_NORM] = norm;
    report[KU_REPORT_LR] = ku_schedule_lr(a, count);
    report[KU_REPORT_APPLY] = apply;
    report[KU_REPORT_SCALE] = scale0 * ku_clip_factor(a, norm);
    report[KU_REPORT_UPDATE] = (double)(count + 1);
    count += apply;
    memcpy(c->out[1].data, &count, sizeof count);
}

void ku_loss_scalars(const struct ku_call *c)
{
    report_loss(c->in[0].data, c->in[1].data, c->out[0].data);
}

void ku_trust_norms(const struct ku_call *c)
{
    const int64_t *words = c->in[0].data;
    double *norm = c->out[0].data;
    int64_t n = ku_shape_count(&c->out[0].shape);
    for (int64_t i = 0; i < n; i++) {
        struct ku_exact sum;
        memcpy(&sum, &words[i * KU_EXACT_WORDS], sizeof sum);
        norm[i] = sqrt(ku_exact_round(&sum));
    }
}
