/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adagrad, Lion, RMSProp. Included once per instruction set after update_body.h (isa_*.c).
 */

#define RULE_BEGIN                                                                                 \
    const char *g0 = (const char *)u->g + from * bytes_of(tg);                                     \
    float *p0 = u->p + from, *s0 = u->s[0] + from

INLINE void adagrad_as(const struct ku_rule *u, int64_t from, int64_t n, enum kumi_dtype tg)
{
    RULE_BEGIN;
    FOR_VECTORS(n, {
        vf p = LOAD(KUMI_F32, p0), g = LOAD(tg, g0) * u->scale + u->weight_decay * p;
        vf sum = LOAD(KUMI_F32, s0) + g * g;
        /* lanes after the end may be NaN, 0 / (0 + eps); they are not stored */
        p -= u->lr * g / (sqrt_f(sum) + u->eps);
        STORE(KUMI_F32, s0, sum);
        STORE(KUMI_F32, p0, p);
        STORE_COPY(p);
    });
}
INLINE void lion_as(const struct ku_rule *u, int64_t from, int64_t n, enum kumi_dtype tg)
{
    RULE_BEGIN;
    FOR_VECTORS(n, {
        vf p = LOAD(KUMI_F32, p0), g = LOAD(tg, g0) * u->scale, m = LOAD(KUMI_F32, s0);
        vf to = u->beta1 * m + u->add1 * g;
        vf step = select_f(is_above(to, 0), splat(u->lr), (vf){0});
        step = select_f(is_below(to, 0), splat(-u->lr), step);
        p = p * u->keep - step;
        STORE(KUMI_F32, s0, u->beta2 * m + u->add2 * g);
        STORE(KUMI_F32, p0, p);
        STORE_COPY(p);
    });
}
INLINE void rmsprop_as(const struct ku_rule *u, int64_t from, int64_t n, enum kumi_dtype tg,
                       int has_momentum, int is_centered)
{
    RULE_BEGIN;
    float *b0 = has_momentum ? u->s[1] + from : NULL;
    float *a0 = is_centered ? u->s[has_momentum ? 2 : 1] + from : NULL;
    FOR_VECTORS(n, {
        vf p = LOAD(KUMI_F32, p0), g = LOAD(tg, g0) * u->scale + u->weight_decay * p;
        vf v = u->beta2 * LOAD(KUMI_F32, s0) + u->add2 * g * g;
        STORE(KUMI_F32, s0, v);
        if (is_centered) {
            vf mean = u->beta2 * LOAD(KUMI_F32, a0) + u->add2 * g;
            STORE(KUMI_F32, a0, mean);
            v -= mean * mean;
            v = select_f(is_below(v, 0), (vf){0}, v);
        }
        vf d = g / (sqrt_f(v) + u->eps);
        if (has_momentum) {
            d += u->momentum * LOAD(KUMI_F32, b0);
            STORE(KUMI_F32, b0, d);
        }
        p -= u->lr * d;
        STORE(KUMI_F32, p0, p);
        STORE_COPY(p);
    });
}
INLINE void rule_as(const struct ku_rule *u, int64_t from, int64_t n, enum kumi_dtype tg)
{
    switch (u->kind) {
    case KU_RULE_ADAGRAD:
        adagrad_as(u, from, n, tg);
        return;
    case KU_RULE_LION:
        lion_as(u, from, n, tg);
        return;
    case KU_RULE_RMSPROP:
        rmsprop_as(u, from, n, tg, 0, 0);
        return;
    case KU_RULE_RMSPROP_MOMENTUM:
        rmsprop_as(u, from, n, tg, 1, 0);
        return;
    case KU_RULE_RMSPROP_CENTERED:
        rmsprop_as(u, from, n, tg, 0, 1);
        return;
    case KU_RULE_RMSPROP_BOTH:
        rmsprop_as(u, from, n, tg, 1, 1);
        return;
    }
}
static void update_rule(const struct ku_rule *u, int64_t from, int64_t n)
{
    BY_DTYPE(u->g_dtype, rule_as(u, from, n, T));
}

static void ema(float *average, const float *p, float add, int64_t n)
{
    FOR_VECTORS(n, {
        vf old = LOAD(KUMI_F32, average);
        STORE(KUMI_F32, average, old + add * (LOAD(KUMI_F32, p) - old));
    });
}
