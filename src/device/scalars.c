/* SPDX-License-Identifier: Apache-2.0 */
#include "device/scalars.h"

#include <math.h>
#include <string.h>

#include "base/exact.h"

/* Linear warm-up (nanoGPT's formula, shifted by warmup_lr), then the schedule; u counts periods. */
double ku_schedule_lr(const struct ku_attrs *a, int64_t update)
{
    const double lr = a->lr, low = a->min_lr;
    const int64_t u = a->period > 1 ? update / a->period : update;
    if (u < a->warmup)
        return a->warmup_lr + (lr - a->warmup_lr) * (double)(u + 1) / (double)(a->warmup + 1);
    double span = (double)(a->decay - a->warmup);
    double ratio = span > 0 ? (double)(u - a->warmup) / span : 1;
    ratio = ratio < 1 ? ratio : 1;
    switch ((enum ku_schedule)a->schedule) {
    case KU_SCHED_CONSTANT:
        return lr;
    case KU_SCHED_LINEAR:
        return lr + (low - lr) * ratio;
    case KU_SCHED_COSINE:
        return low + 0.5 * (1 + cos(3.14159265358979323846 * ratio)) * (lr - low);
    case KU_SCHED_STEP:
        return a->step_size > 0 ? lr * pow(a->gamma, (double)((u - a->warmup) / a->step_size)) : lr;
    case KU_SCHED_INVERSE_SQRT:
        return lr * sqrt((double)(a->warmup > 1 ? a->warmup : 1) / (double)(u + 1));
    case KU_SCHED_WSD: {
        int64_t begin = a->decay - a->step_size;
        if (u < begin)
            return lr;
        double part = a->step_size > 0 ? (double)(u - begin) / (double)a->step_size : 1;
        return lr + (low - lr) * (part < 1 ? part : 1);
    }
    }
    return lr;
}

/* Loss sum and valid count into the report; the number that divides, at least 1. */
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

/*
 * Gradients arrive as sums over valid tokens times 2^-shift. scale0 = 2^shift / N undoes that,
 * clipping (PyTorch's clip_grad_norm_) makes SCALE = scale0 min(1, clip / (norm + 1e-6)). A loss or
 * a gradient that is not finite makes APPLY 0 and leaves the update count.
 */
void ku_step_scalars(const struct ku_call *c)
{
    const struct ku_attrs *a = c->attr;
    const int64_t *stats = c->in[0].data;
    int64_t n_words = ku_shape_count(&c->in[0].shape), count, n_bad = 0;
    double *report = c->out[0].data;
    double n = report_loss(c->in[1].data, c->in[2].data, report);
    double scale0 = ldexp(1, (int)a->shift) / n;
    struct ku_exact sum;
    memcpy(&sum, stats, sizeof sum);
    memcpy(&count, c->in[3].data, sizeof count);
    double norm = sqrt(ku_exact_round(&sum)) * scale0;
    for (int64_t i = KU_EXACT_WORDS; i < n_words; i++)
        n_bad += stats[i] != 0;
    double clip = a->clip > 0 ? a->clip / (norm + 1e-6) : 1;
    int apply = n_bad == 0 && isfinite(report[KU_REPORT_LOSS]) && isfinite(norm);
    report[KU_REPORT_NORM] = norm;
    report[KU_REPORT_LR] = ku_schedule_lr(a, count);
    report[KU_REPORT_APPLY] = apply;
    report[KU_REPORT_SCALE] = scale0 * (clip < 1 ? clip : 1);
    report[KU_REPORT_UPDATE] = (double)(count + 1);
    count += apply;
    memcpy(c->out[1].data, &count, sizeof count);
}

void ku_loss_scalars(const struct ku_call *c)
{
    report_loss(c->in[0].data, c->in[1].data, c->out[0].data);
}
