/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_LOSS_SCALE_H
#define KU_OP_LOSS_SCALE_H

#include <stdint.h>

/*
 * The factor that keeps half-precision gradients off zero, as a state machine: a step whose
 * gradients overflow is no update, and the scale falls; after a window without one it rises. The
 * transition is a function of (rule, state, overflow) and of nothing else, so that all ranks, and a
 * resumed run, agree.
 *
 *   DEEPSPEED   halves once `hysteresis` overflows are used up, never below `least`; doubles after
 *               `window` steps since the last overflow. Source: DeepSpeed, DynamicLossScaler
 *   PYTORCH     times `backoff` at each overflow, times `growth` after `window` steps in a row
 *               without one, in f32. Source: PyTorch, torch.amp.GradScaler
 *   STATIC      stays
 */
enum ku_loss_scale_policy { KU_LOSS_SCALE_DEEPSPEED, KU_LOSS_SCALE_PYTORCH, KU_LOSS_SCALE_STATIC };
struct ku_loss_scale_rule {
    enum ku_loss_scale_policy policy;
    int64_t window;         /* steps, >= 1; DeepSpeed's default 1000, PyTorch's 2000 */
    int64_t hysteresis;     /* deepspeed: overflows until the first halving, >= 1 */
    int is_consecutive;     /* deepspeed: any step without overflow gives hysteresis back, else only
                             * a doubling */
    double least;           /* deepspeed: the smallest scale, > 0 */
    double growth, backoff; /* pytorch: > 1; between 0 and 1 */
};
struct ku_loss_scale {
    double scale;
    int64_t step;          /* transitions so far */
    int64_t last_overflow; /* deepspeed: the step of the last one; -1: none yet */
    int64_t left;          /* deepspeed: of hysteresis */
    int64_t good;          /* pytorch: steps in a row without overflow */
};

/* KUMI_EINVAL for a rule or a first scale (finite, > 0) that means nothing. */
int ku_loss_scale_start(const struct ku_loss_scale_rule *rule, double first,
                        struct ku_loss_scale *state);
/*
 * The state behind a step.
 *
 *   overflow   whether the step's gradients were not finite, so that it was no update
 *   next       may be `now`
 *
 * Errors: KUMI_ENUMERIC: deepspeed's scale is at its least already (next is not set).
 */
int ku_loss_scale_next(const struct ku_loss_scale_rule *rule, const struct ku_loss_scale *now,
                       int overflow, struct ku_loss_scale *next);

#endif
