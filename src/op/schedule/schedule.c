/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rate and momentum as functions of the update count. */
#include <math.h>

#include "op/schedule.h"

enum { N_PHASES = 3 };

bool ku_schedule_has_end(int64_t schedule)
{
    switch ((enum ku_schedule)schedule) {
    case KU_SCHED_LINEAR:
    case KU_SCHED_COSINE:
    case KU_SCHED_WSD:
    case KU_SCHED_ONE_CYCLE:
    case KU_SCHED_POLYNOMIAL:
    case KU_SCHED_WARMUP_DECAY_LR:
    case KU_SCHED_WARMUP_COSINE_LR:
        return true;
    case KU_SCHED_CONSTANT:
    case KU_SCHED_STEP:
    case KU_SCHED_INVERSE_SQRT:
    case KU_SCHED_NOAM:
    case KU_SCHED_MULTI_STEP:
    case KU_SCHED_LR_RANGE_TEST:
    case KU_SCHED_DS_ONE_CYCLE:
    case KU_SCHED_WARMUP_LR:
        return false;
    }
    return false;
}

/* Interpolates from `from` at part = 0 to `to` at part = 1. */
static double anneal(const struct ku_attrs *a, double from, double to, double part)
{
    if (a->anneal == KU_ANNEAL_LINEAR)
        return from + (to - from) * part;
    return to + (from - to) / 2 * (1 + cos(3.14159265358979323846 * part));
}

/*
 * Smith and Topin 2019, as PyTorch's OneCycleLR, whose steps count from 0. Phase p goes from
 * value[p] to value[p + 1] and ends at step end[p]; after the last phase the value is constant.
 */
static double one_cycle(const struct ku_attrs *a, int64_t u, const double value[N_PHASES + 1])
{
    const double total = (double)a->decay, up = a->pct_start * total - 1, step = (double)u;
    const double end[N_PHASES] = {up, a->three_phase ? 2 * up : total - 1, total - 1};
    const int last = a->three_phase ? 2 : 1;
    double begin = 0;
    for (int p = 0; p <= last; begin = end[p++])
        if (step <= end[p] || p == last) {
            double part = end[p] > begin ? (step - begin) / (end[p] - begin) : 1;
            return anneal(a, value[p], value[p + 1], part < 1 ? part : 1);
        }
    return value[last + 1];
}

static double one_cycle_lr(const struct ku_attrs *a, int64_t u)
{
    const double first = a->lr / a->div_factor, least = first / a->final_div_factor;
    const double two[] = {first, a->lr, least, least}, three[] = {first, a->lr, first, least};
    return one_cycle(a, u, a->three_phase ? three : two);
}

double ku_schedule_momentum(const struct ku_attrs *a, double otherwise, int64_t update)
{
    const int64_t u = a->period > 1 ? update / a->period : update;
    const double low = a->base_momentum, high = a->max_momentum;
    if (!a->cycle_momentum)
        return otherwise;
    if (a->schedule == KU_SCHED_DS_ONE_CYCLE)
        return ku_schedule_ds_momentum(a, u);
    if (a->schedule != KU_SCHED_ONE_CYCLE)
        return otherwise;
    return one_cycle(a, u, (const double[]){high, low, high, high});
}

/* gamma to the power of the number of milestones reached, as PyTorch's MultiStepLR. */
static double multi_step(const struct ku_attrs *a, int64_t u)
{
    int n = 0;
    for (int i = 0; i < KU_MAX_ARGS; i++)
        n += a->args.v[i] > 0 && (double)u >= a->args.v[i];
    return pow(a->gamma, n);
}

/* Vaswani et al. 2017, section 5.3, for steps from 1; lr is a factor. */
static double noam(const struct ku_attrs *a, int64_t u)
{
    const double n = (double)(u + 1), w = (double)(a->warmup > 0 ? a->warmup : 1);
    const double up = n * pow(w, -1.5), down = 1 / sqrt(n);
    return 1 / sqrt((double)a->d_model) * (up < down ? up : down);
}

/* Linear warm-up (nanoGPT's formula, shifted by warmup_lr), then the schedule; u counts periods. */
double ku_schedule_lr(const struct ku_attrs *a, int64_t update)
{
    const double lr = a->lr, low = a->min_lr;
    const int64_t u = a->period > 1 ? update / a->period : update;
    if (u < a->warmup && a->schedule != KU_SCHED_NOAM)
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
    case KU_SCHED_ONE_CYCLE:
        return one_cycle_lr(a, u);
    case KU_SCHED_NOAM:
        return lr * noam(a, u);
    case KU_SCHED_MULTI_STEP:
        return lr * multi_step(a, u);
    case KU_SCHED_POLYNOMIAL:
        return low + (lr - low) * pow(1 - ratio, a->power);
    case KU_SCHED_LR_RANGE_TEST:
    case KU_SCHED_DS_ONE_CYCLE:
    case KU_SCHED_WARMUP_LR:
    case KU_SCHED_WARMUP_DECAY_LR:
    case KU_SCHED_WARMUP_COSINE_LR:
        return ku_schedule_ds_lr(a, u);
    }
    return lr;
}

double ku_ema_decay(const struct ku_attrs *a, double t)
{
    const double young = (1 + t) / (10 + t);
    return t == 1 ? 0 : a->ema_warmup && young < a->ema ? young : a->ema;
}

double ku_trust_lars(const struct ku_attrs *a, const double *norms, double scale)
{
    const double p = norms[2 * a->index], g = norms[2 * a->index + 1] * fabs(scale);
    return p > 0 && g > 0 ? a->trust_coefficient * p / (g + a->weight_decay * p + a->eps) : 1;
}

double ku_trust_lamb(const struct ku_attrs *a, const double *norms)
{
    const double p = norms[2 * a->index], u = norms[2 * a->index + 1];
    const double ratio = p > 0 && u > 0 ? p / u : 1;
    return ratio < a->min_coeff ? a->min_coeff : ratio > a->max_coeff ? a->max_coeff : ratio;
}
