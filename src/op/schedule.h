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

#endif
