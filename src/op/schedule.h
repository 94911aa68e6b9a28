/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_SCHEDULE_H
#define KU_OP_SCHEDULE_H

#include <stdbool.h>

#include "op/attr.h"

/*
 * Learning-rate schedules. From the rate to a step of the parameters, once per step in phase O:
 *
 *     update count ─ ku_schedule_lr ─> report ─ optimizer ─> parameters
 *                    schedule.c          |      device/cpu/update, ref
 *                                        └ device/step_scalars.c: also norm, clip and loss scale
 *
 * These enums index attribute `args`. For multi_step it holds the milestones, ascending, 0 = none.
 * For DeepSpeed's schedules it holds their parameters, with the meaning given in DeepSpeed's
 * documentation; ds_one_cycle changes the momentum if attribute cycle_momentum is set.
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
/*
 * For warmup_cosine_lr MIN and MAX are ratios: the minimum of the warm-up, the minimum of the
 * cosine.
 */
enum { KU_WARMUP_MIN, KU_WARMUP_MAX, KU_WARMUP_STEPS, KU_WARMUP_IS_LINEAR, KU_WARMUP_TOTAL };

static inline bool ku_schedule_is_deepspeed(int64_t schedule)
{
    return schedule >= KU_SCHED_LR_RANGE_TEST;
}

/* Whether the schedule has an end: attribute decay, or KU_WARMUP_TOTAL of DeepSpeed's. */
bool ku_schedule_has_end(int64_t schedule);

/*
 * The learning rate is a function of the update count (from 0) and the attributes alone. `period`
 * updates share one value, as with PyTorch's scheduler.step() once per epoch.
 */
double ku_schedule_lr(const struct ku_attrs *a, int64_t update);
double ku_schedule_ds_lr(const struct ku_attrs *a, int64_t period); /* DeepSpeed's schedules */
double ku_schedule_ds_momentum(const struct ku_attrs *a, int64_t period);
/* The momentum (beta1 of Adam and LAMB): `otherwise`, unless the schedule changes it. */
double ku_schedule_momentum(const struct ku_attrs *a, double otherwise, int64_t update);
/*
 * Trust ratio of a layer-wise optimizer, from the two norms of its tensor: that of the parameter,
 * and that of the raw gradient (lars) or of the update (lamb).
 */
double ku_trust_lars(const struct ku_attrs *a, const double *norms, double scale);
double ku_trust_lamb(const struct ku_attrs *a, const double *norms);
/* Decay of the weight average (EMA) in update t, from 1. */
double ku_ema_decay(const struct ku_attrs *a, double t);

#endif
