/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_LOSS_SCALE_H
#define KU_OP_LOSS_SCALE_H

#include <stdint.h>

#include "base/err.h"

/*
 * Dynamic loss scaling as a state machine. The scale keeps half-precision gradients from
 * underflowing. A step whose gradients overflow does not update the parameters and lowers the
 * scale; a run of steps without overflow raises it. The next state depends on (config, state,
 * overflow) alone, so all ranks and resumed runs compute the same scale.
 *
 *   DEEPSPEED   halves after `hysteresis` overflows, never below `least`; doubles `window` steps
 *               after the last overflow. Source: DeepSpeed, DynamicLossScaler
 *   PYTORCH     times `backoff` at each overflow, times `growth` after `window` consecutive steps
 *               without one, in f32. Source: PyTorch, torch.amp.GradScaler
 *   STATIC      constant
 */
enum ku_loss_scale_policy { KU_LOSS_SCALE_DEEPSPEED, KU_LOSS_SCALE_PYTORCH, KU_LOSS_SCALE_STATIC };
struct ku_loss_scale_rule {
    enum ku_loss_scale_policy policy;
    int64_t window;     /* steps, >= 1; DeepSpeed's default 1000, PyTorch's 2000 */
    int64_t hysteresis; /* deepspeed: overflows until the first halving, >= 1 */
    /* deepspeed: hysteresis is restored by 1: every step without overflow, 0: each doubling. */
    int is_consecutive;
    double least;           /* deepspeed: the minimum scale, > 0 */
    double growth, backoff; /* pytorch: > 1; in (0, 1) */
};
struct ku_loss_scale {
    double scale;
    int64_t step;          /* transitions so far */
    int64_t last_overflow; /* deepspeed: the step of the last one; -1: none yet */
    int64_t left;          /* deepspeed: remaining hysteresis */
    int64_t good;          /* pytorch: consecutive steps without overflow */
};

/*
 * The state before the first step. KUMI_EINVAL for an invalid configuration or first scale (must be
 * finite and > 0).
 */
KU_STATUS ku_loss_scale_start(const struct ku_loss_scale_rule *rule, double first,
                              struct ku_loss_scale *state);
/*
 * The state after a step.
 *
 *   overflow   1 if the step's gradients were not finite, so the step made no update
 *   next       may be `now`
 *
 * Errors: KUMI_ENUMERIC: deepspeed's scale is already at its minimum (next is not set).
 */
KU_STATUS ku_loss_scale_next(const struct ku_loss_scale_rule *rule, const struct ku_loss_scale *now,
                             int overflow, struct ku_loss_scale *next);

#endif
