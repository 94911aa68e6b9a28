/* SPDX-License-Identifier: Apache-2.0 */
#include "op/loss_scaler.h"

#include <string.h>

#include "base/err.h"

struct ku_loss_scale_rule ku_scaler_rule(const struct ku_attrs *a)
{
    return (struct ku_loss_scale_rule){.policy = (enum ku_loss_scale_policy)a->scaler,
                                       .window = a->scale_window,
                                       .hysteresis = a->hysteresis,
                                       .is_consecutive = a->consecutive_hysteresis != 0,
                                       .least = a->min_scale,
                                       .growth = a->growth_factor,
                                       .backoff = a->backoff_factor};
}

int ku_scaler_check(const struct ku_attrs *a)
{
    const struct ku_loss_scale_rule rule = ku_scaler_rule(a);
    struct ku_loss_scale first;
    return ku_loss_scale_start(&rule, a->loss_scale, &first);
}

struct ku_loss_scale ku_scaler_state(const struct ku_attrs *a, const double *words)
{
    const struct ku_loss_scale_rule rule = ku_scaler_rule(a);
    struct ku_loss_scale s;
    if (words[KU_SCALER_SCALE] == 0 && words[KU_SCALER_STEP] == 0) {
        int status = ku_loss_scale_start(&rule, a->loss_scale, &s);
        KU_ASSERT(status == KUMI_OK); /* checked by ku_scaler_check */
        return s;
    }
    return (struct ku_loss_scale){.scale = words[KU_SCALER_SCALE],
                                  .step = (int64_t)words[KU_SCALER_STEP],
                                  .last_overflow = (int64_t)words[KU_SCALER_LAST_OVERFLOW],
                                  .left = (int64_t)words[KU_SCALER_LEFT],
                                  .good = (int64_t)words[KU_SCALER_GOOD]};
}

void ku_scaler_move(const struct ku_attrs *a, const double *words, int overflow, double *next)
{
    const struct ku_loss_scale_rule rule = ku_scaler_rule(a);
    struct ku_loss_scale s = ku_scaler_state(a, words);
    const double skipped = words[KU_SCALER_SKIPPED] + (overflow != 0);
    const int is_spent = ku_loss_scale_next(&rule, &s, overflow, &s) < 0;
    memset(next, 0, KU_SCALER_WORDS * sizeof *next);
    next[KU_SCALER_SCALE] = s.scale;
    next[KU_SCALER_STEP] = (double)s.step;
    next[KU_SCALER_LAST_OVERFLOW] = (double)s.last_overflow;
    next[KU_SCALER_LEFT] = (double)s.left;
    next[KU_SCALER_GOOD] = (double)s.good;
    next[KU_SCALER_SKIPPED] = skipped;
    next[KU_SCALER_IS_SPENT] = is_spent;
}
