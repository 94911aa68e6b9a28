/* SPDX-License-Identifier: Apache-2.0 */
#include "op/loss_scale.h"

#include <float.h>
#include <math.h>
#include <stddef.h>

#include "base/err.h"

int ku_loss_scale_start(const struct ku_loss_scale_rule *rule, double first,
                        struct ku_loss_scale *state)
{
    const int is_dynamic = rule->policy != KU_LOSS_SCALE_STATIC;
    const int is_deepspeed = rule->policy == KU_LOSS_SCALE_DEEPSPEED;
    const int is_pytorch = rule->policy == KU_LOSS_SCALE_PYTORCH;
    const struct {
        int is_wrong;
        const char *what;
        double value;
        const char *wanted;
    } check[] = {
        {!(first > 0 && first <= DBL_MAX), "the first scale", first, "a number above 0"},
        {is_dynamic && rule->window < 1, "window", (double)rule->window, "at least 1 step"},
        {is_deepspeed && rule->hysteresis < 1, "hysteresis", (double)rule->hysteresis,
         "at least 1"},
        {is_deepspeed && !(rule->least > 0 && rule->least <= DBL_MAX), "min_scale", rule->least,
         "a number above 0"},
        {is_pytorch && !(rule->growth > 1 && rule->growth <= DBL_MAX), "growth", rule->growth,
         "above 1"},
        {is_pytorch && !(rule->backoff > 0 && rule->backoff < 1), "backoff", rule->backoff,
         "between 0 and 1"},
    };
    for (size_t i = 0; i < sizeof check / sizeof check[0]; i++)
        if (check[i].is_wrong)
            return KU_ERR(KUMI_EINVAL, "loss scale: %s: %.15g; %s", check[i].what, check[i].value,
                          check[i].wanted);
    *state = (struct ku_loss_scale){.scale = first, .last_overflow = -1, .left = rule->hysteresis};
    return KUMI_OK;
}

static int next_deepspeed(const struct ku_loss_scale_rule *rule, int overflow,
                          struct ku_loss_scale *s)
{
    if (overflow) {
        if (rule->hysteresis > 1 && s->left > 1)
            s->left--;
        else if (s->scale == rule->least)
            return KU_ERR(KUMI_ENUMERIC,
                          "loss scale: Current loss scale already at minimum - cannot decrease "
                          "scale anymore. Exiting run. (%.15g at step %lld)",
                          s->scale, (long long)s->step);
        else
            s->scale = fmax(s->scale / 2, rule->least);
        s->last_overflow = s->step;
        return KUMI_OK;
    }
    const int64_t stable = s->step - s->last_overflow - 1;
    const int is_time = stable > 0 && stable % rule->window == 0;
    if (rule->is_consecutive || is_time)
        s->left = rule->hysteresis;
    if (is_time)
        s->scale *= 2;
    return KUMI_OK;
}

static void next_pytorch(const struct ku_loss_scale_rule *rule, int overflow,
                         struct ku_loss_scale *s)
{
    s->good = overflow ? 0 : s->good + 1;
    if (overflow) {
        s->scale = (double)(float)(s->scale * rule->backoff);
    } else if (s->good == rule->window) {
        const float grown = (float)(s->scale * rule->growth);
        s->scale = isfinite(grown) ? (double)grown : s->scale;
        s->good = 0;
    }
}

int ku_loss_scale_next(const struct ku_loss_scale_rule *rule, const struct ku_loss_scale *now,
                       int overflow, struct ku_loss_scale *next)
{
    struct ku_loss_scale s = *now;
    switch (rule->policy) {
    case KU_LOSS_SCALE_DEEPSPEED:
        KU_TRY(next_deepspeed(rule, overflow, &s));
        break;
    case KU_LOSS_SCALE_PYTORCH:
        next_pytorch(rule, overflow, &s);
        break;
    case KU_LOSS_SCALE_STATIC:
        break;
    }
    s.step++;
    *next = s;
    return KUMI_OK;
}
