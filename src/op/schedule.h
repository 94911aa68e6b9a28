/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_SCHEDULE_H
#define KU_OP_SCHEDULE_H

#include "op/attr.h"

/*
 * What attribute `args` holds. multi_step: milestones, ascending, 0 = none. DeepSpeed's schedules:
 * their parameters, whose meaning is that of DeepSpeed's documentation; ds_one_cycle's momentum
 * moves with attribute cycle_momentum.
 */
enum { KU_RANGE_MIN_LR, KU_RANGE_STEP_SIZE, KU_RANGE_STEP_RATE, KU_RANGE_STAIRCASE };
enum {
    KU_CYCLE_MIN_LR,
    KU_CYCLE_MAX_LR,
    KU_CYCLE_FIRST_SIZE,
    KU_CYCLE_SECOND_SIZE,
    KU_CYCLE_DECAY_SIZE, /* 0: no decay */
    KU_CYCLE_DECAY_LR,
    KU_CYCLE_MIN_MOM,
    KU_CYCLE_MAX_MOM,
    KU_CYCLE_DECAY_MOM
};
/* warmup_cosine_lr: MIN and MAX are ratios: least of the warm-up, least of the cosine. */
enum { KU_WARMUP_MIN, KU_WARMUP_MAX, KU_WARMUP_STEPS, KU_WARMUP_IS_LINEAR, KU_WARMUP_TOTAL };

static inline int ku_schedule_is_deepspeed(int64_t schedule)
{
    return schedule >= KU_SCHED_LR_RANGE_TEST;
}

/*
 * A learning rate is a function of the update count, from 0, and the attributes alone: `period`
 * updates share one, as PyTorch's scheduler.step() once an epoch.
 */
double ku_schedule_lr(const struct ku_attrs *a, int64_t update);
double ku_schedule_ds_lr(const struct ku_attrs *a, int64_t period); /* DeepSpeed's */
double ku_schedule_ds_momentum(const struct ku_attrs *a, int64_t period);
/* The momentum (beta1 of Adam and LAMB): `otherwise`, unless the schedule moves it. */
double ku_schedule_momentum(const struct ku_attrs *a, double otherwise, int64_t update);
/* What the update of a layer-wise optimizer is multiplied by, from its tensor's two norms: that of
 * the parameter, and that of the gradient as it arrives (lars) or of the update (lamb). */
double ku_trust_lars(const struct ku_attrs *a, const double *norms, double scale);
double ku_trust_lamb(const struct ku_attrs *a, const double *norms);
/* Decay of an average of weights in update t, from 1. */
double ku_ema_decay(const struct ku_attrs *a, double t);

#endif
