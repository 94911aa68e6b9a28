/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_LOSS_SCALER_H
#define KU_OP_LOSS_SCALER_H

#include "base/err.h"
#include "op/loss_scale.h"
#include "op/attr.h"

/*
 * The state of a loss scaler (op/loss_scale.h) as a tensor, f64[KU_SCALER_WORDS], advanced once per
 * step by op loss_scaler. Backward is scaled by SCALE and the update divides by it. All zero is the
 * state before the first step.
 */
enum ku_scaler {
    KU_SCALER_SCALE,
    KU_SCALER_STEP,
    KU_SCALER_LAST_OVERFLOW,
    KU_SCALER_LEFT,
    KU_SCALER_GOOD,
    KU_SCALER_SKIPPED,  /* number of steps without an update */
    KU_SCALER_IS_SPENT, /* 1: overflow at the minimum scale; the rest is unchanged */
    KU_SCALER_WORDS = 8
};

/* The loss-scale configuration in the attributes of loss_scaler. */
struct ku_loss_scale_rule ku_scaler_rule(const struct ku_attrs *a);
/* KUMI_EINVAL: invalid configuration or first scale (attribute loss_scale). */
KU_STATUS ku_scaler_check(const struct ku_attrs *a);
/* Unpacks the state. */
struct ku_loss_scale ku_scaler_state(const struct ku_attrs *a, const double *words);
/* Computes the packed state after a step; `next` may be `words`. */
void ku_scaler_move(const struct ku_attrs *a, const double *words, int overflow, double *next);

#endif
