/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers. Included once per instruction set after rows_body.h (isa_*.c).
 */

#define STORE_COPY(p)                                                                              \
    do {                                                                                           \
        if (u->copy)                                                                               \
            BY_DTYPE_AS(TC, u->copy_dtype, STORE(TC, (char *)u->copy + from * bytes_of(TC), p));   \
    } while (0)

INLINE void adam_as(const struct ku_update *u, int64_t from, int64_t n, enum kumi_dtype tg, int l2)
{
    const char *g0 = (const char *)u->g + from * bytes_of(tg);
    float *p0 = u->p + from, *m0 = u->m + from, *v0 = u->v + from;
    FOR_VECTORS(n, {
        vf p = LOAD(KUMI_F32, p0), g = LOAD(tg, g0) * u->scale;
        if (l2)
            g += u->weight_decay * p;
        vf m = LOAD(KUMI_F32, m0), v = LOAD(KUMI_F32, v0);
        m = u->beta1 * m + u->add1 * g;
        v = u->beta2 * v + u->add2 * g * g;
        p = p * u->keep - u->step_size * m / (sqrt_f(v) * u->rsqrt_bc2 + u->eps);
        STORE(KUMI_F32, m0, m);
        STORE(KUMI_F32, v0, v);
        STORE(KUMI_F32, p0, p);
        STORE_COPY(p);
    });
}
static void adam(const struct ku_update *u, int64_t from, int64_t n)
{
    if (!u->l2)
        BY_DTYPE(u->g_dtype, adam_as(u, from, n, T, 0));
    else
        BY_DTYPE(u->g_dtype, adam_as(u, from, n, T, 1));
}
INLINE void sgd_as(const struct ku_update *u, int64_t from, int64_t n, enum kumi_dtype tg)
{
    const char *g0 = (const char *)u->g + from * bytes_of(tg);
    float *p0 = u->p + from, *m0 = u->m + from;
    FOR_VECTORS(n, {
        vf p = LOAD(KUMI_F32, p0);
        vf g = (LOAD(tg, g0) * u->scale + u->weight_decay * p) * u->ratio;
        vf m = u->first ? g : u->momentum * LOAD(KUMI_F32, m0) + u->add * g;
        p -= u->lr * (u->nesterov ? g + u->momentum * m : m);
        STORE(KUMI_F32, m0, m);
        STORE(KUMI_F32, p0, p);
        STORE_COPY(p);
    });
}
static void sgd(const struct ku_update *u, int64_t from, int64_t n)
{
    BY_DTYPE(u->g_dtype, sgd_as(u, from, n, T));
}

/* m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + wd p */
INLINE vf lamb_update(const struct ku_update *u, vf p, vf m, vf v)
{
    return m * u->step_size / (sqrt_f(v) * u->rsqrt_bc2 + u->eps) + u->weight_decay * p;
}
INLINE void lamb_moments_as(const struct ku_update *u, int64_t from, int64_t n, double sum[2],
                            enum kumi_dtype tg)
{
    const char *g0 = (const char *)u->g + from * bytes_of(tg);
    float *p0 = u->p + from, *m0 = u->m + from, *v0 = u->v + from;
    struct squares p2 = {0}, u2 = {0};
    FOR_VECTORS(n, {
        vf p = LOAD(KUMI_F32, p0), g = LOAD(tg, g0) * u->scale;
        vf m = u->beta1 * LOAD(KUMI_F32, m0) + u->add1 * g;
        vf v = u->beta2 * LOAD(KUMI_F32, v0) + u->add2 * g * g;
        STORE(KUMI_F32, m0, m);
        STORE(KUMI_F32, v0, v);
        add_squares(&p2, p);
        /* lanes after the end: 0 / (0 + eps) would be NaN for eps = 0 */
        vf move = lamb_update(u, p, m, v);
        add_squares(&u2, some == LANES ? move : select_f(first_lanes(some), move, (vf){0}));
    });
    sum[0] = total_squares(&p2);
    sum[1] = total_squares(&u2);
}
static void lamb_moments(const struct ku_update *u, int64_t from, int64_t n, double sum[2])
{
    BY_DTYPE(u->g_dtype, lamb_moments_as(u, from, n, sum, T));
}
static void lamb(const struct ku_update *u, int64_t from, int64_t n)
{
    float *p0 = u->p + from;
    const float *m0 = u->m + from, *v0 = u->v + from;
    FOR_VECTORS(n, {
        vf p = LOAD(KUMI_F32, p0);
        p -= u->lr * lamb_update(u, p, LOAD(KUMI_F32, m0), LOAD(KUMI_F32, v0));
        STORE(KUMI_F32, p0, p);
        STORE_COPY(p);
    });
}
