/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_LOSS_SCALER_H
#define KU_OP_LOSS_SCALER_H

#include "op/loss_scale.h"
#include "op/attr.h"

/*
 * A loss scaler's state (op/loss_scale.h) as a tensor, f64[KU_SCALER_WORDS], that op loss_scaler
 * moves once a step: backward starts from SCALE, the update divides by it. All words zero: the
 * state before the first step.
 */
enum ku_scaler {
    KU_SCALER_SCALE,
    KU_SCALER_STEP,
    KU_SCALER_LAST_OVERFLOW,
    KU_SCALER_LEFT,
    KU_SCALER_GOOD,
    KU_SCALER_SKIPPED,  /* steps that were no update, up to here */
    KU_SCALER_IS_SPENT, /* 1: an overflow at the least scale; nothing else moved */
    KU_SCALER_WORDS = 8
};

/* The rule that the attributes of loss_scaler state. */
struct ku_loss_scale_rule ku_scaler_rule(const struct ku_attrs *a);
/* KUMI_EINVAL: a rule, or a first scale (attr loss_scale), that means nothing. */
int ku_scaler_check(const struct ku_attrs *a);
/* The state that the words hold. */
struct ku_loss_scale ku_scaler_state(const struct ku_attrs *a, const double *words);
/* The words behind a step; `next` may be `words`. */
void ku_scaler_move(const struct ku_attrs *a, const double *words, int overflow, double *next);

#endif
