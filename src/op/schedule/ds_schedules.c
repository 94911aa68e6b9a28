/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed's schedules. They count from last_batch_iteration = -1 and add 1 per update, so update
 * u (from 0) uses u - 1.
 */
#include <math.h>

#include "op/schedule.h"

static double lr_range_test(const double *v, int64_t u)
{
    double interval = (double)u / v[KU_RANGE_STEP_SIZE];
    if (v[KU_RANGE_STAIRCASE] != 0)
        interval = floor(interval);
    return v[KU_RANGE_MIN_LR] * (1 + v[KU_RANGE_STEP_RATE] * interval);
}

/*
 * Position of update u in the cycle: 0 at its ends, 1 in the middle. After the cycle -1, with
 * *decay the number of decay steps since its end.
 */
static double cycle_scale(const double *v, int64_t u, double *decay)
{
    const double first = v[KU_CYCLE_FIRST_SIZE], total = first + v[KU_CYCLE_SECOND_SIZE];
    const double at = (double)u;
    *decay = 0;
    if (at > total && v[KU_CYCLE_DECAY_SIZE] > 0)
        *decay = (at - total) / v[KU_CYCLE_DECAY_SIZE];
    if (at > total)
        return -1;
    if (at == total) /* would be the first update of a second cycle */
        return 0;
    return at <= first ? at / first : (total - at) / (total - first);
}
static double ds_one_cycle(const double *v, int64_t u)
{
    double decay, scale = cycle_scale(v, u, &decay), low = v[KU_CYCLE_MIN_LR];
    return scale < 0 ? low / (1 + v[KU_CYCLE_DECAY_LR] * decay)
                     : low + (v[KU_CYCLE_MAX_LR] - low) * scale;
}
double ku_schedule_ds_momentum(const struct ku_attrs *a, int64_t u)
{
    const double *v = a->args.v, high = v[KU_CYCLE_MAX_MOM];
    double decay, scale = cycle_scale(v, u, &decay);
    if (u == 0) /* value set when the schedule is created, before its first step */
        return v[KU_CYCLE_MIN_MOM];
    double m = scale < 0 ? high * (1 + v[KU_CYCLE_DECAY_MOM] * decay)
                         : high - (high - v[KU_CYCLE_MIN_MOM]) * scale;
    return m < 1 ? m : 1 - 0x1p-20; /* DeepSpeed's exceeds 1, where the moments diverge */
}

/* Warm-up factor: 0 to 1 while it < steps, as log(it + 1) or it; then `after`. */
static double warmup(const double *v, double it, double after)
{
    const double steps = v[KU_WARMUP_STEPS];
    if (it >= steps)
        return after;
    return v[KU_WARMUP_IS_LINEAR] != 0 ? it / steps : log(it + 1) / log(steps);
}
static double warmup_lr(const struct ku_attrs *a, double it)
{
    const double *v = a->args.v, steps = v[KU_WARMUP_STEPS], total = v[KU_WARMUP_TOTAL];
    double after = 1;
    if (a->schedule == KU_SCHED_WARMUP_DECAY_LR)
        after = fmax(0, (total - it) / fmax(1, total - steps));
    return v[KU_WARMUP_MIN] +
           (v[KU_WARMUP_MAX] - v[KU_WARMUP_MIN]) * (it < 0 ? 0 : warmup(v, it, after));
}
static double warmup_cosine_lr(const struct ku_attrs *a, double it)
{
    const double *v = a->args.v, steps = v[KU_WARMUP_STEPS], low = v[KU_WARMUP_MAX];
    if (it < 0)
        return 0;
    if (it < steps)
        return a->lr * (v[KU_WARMUP_MIN] + (1 - v[KU_WARMUP_MIN]) * warmup(v, it, 1));
    double part = fmin(1, (it - steps + 1) / fmax(1, v[KU_WARMUP_TOTAL] - steps));
    return a->lr * (low + (1 - low) * (1 + cos(3.14159265358979323846 * part)) / 2);
}

double ku_schedule_ds_lr(const struct ku_attrs *a, int64_t u)
{
    const double it = (double)u - 1;
    if (a->schedule == KU_SCHED_LR_RANGE_TEST)
        return lr_range_test(a->args.v, u);
    if (a->schedule == KU_SCHED_DS_ONE_CYCLE)
        return ds_one_cycle(a->args.v, u);
    return a->schedule == KU_SCHED_WARMUP_COSINE_LR ? warmup_cosine_lr(a, it) : warmup_lr(a, it);
}
