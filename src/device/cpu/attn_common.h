/* SPDX-License-Identifier: Apache-2.0 */
/* What attention in f32 (attn_body.h) and in pairs of bf16 (attn_pairs_body.h) share. */
enum {
    KEYS = 112 /* 8 x 14 rows, 4 x 28 of Philox blocks; K, V, dK, dV tiles: 28 KiB each at d = 64 */
};
enum { QUERIES = GEMM_NR };

INLINE const void *element(const struct ku_attn_tile *t, const void *x, int64_t i)
{
    return (const char *)x + i * (t->dtype == KUMI_BF16 ? 2 : 4);
}
INLINE void *element_out(const struct ku_attn_tile *t, void *x, int64_t i)
{
    return (char *)x + i * (t->dtype == KUMI_BF16 ? 2 : 4);
}

/* Lanes (of 16) that a query tile occupies: GEMM_NR may be 8. */
#define PARTS      ((int)QUERIES < (int)LANES ? 1 : (int)QUERIES / (int)LANES)
#define LANE_COUNT ((int)QUERIES < (int)LANES ? (int)QUERIES : (int)LANES)

/* keep[key][query] = 0 or 1/(1-p): the random bits of global element (n, h, query, key). */
static void draw_keep(const struct ku_attn_tile *t, int64_t q0, int64_t k0, int64_t n_keys,
                      float *keep)
{
    const struct ku_dropout *d = t->drop;
    const int aligned = t->t % 4 == 0; /* then four keys of a query share one Philox block */
    for (int part = 0; part < PARTS; part++)
        for (int64_t k = 0; k < n_keys; k += aligned ? 4 : 1) {
            vu c0, c1, w[4], word = {0};
            for (int l = 0; l < LANES; l++) {
                uint64_t q = (uint64_t)(q0 + part * LANES + l);
                uint64_t index = t->drop_first + q * (uint64_t)t->t + (uint64_t)(k0 + k);
                c0[l] = (uint32_t)(index / 4), c1[l] = (uint32_t)(index / 4 >> 32);
                word[l] = (uint32_t)(index % 4);
            }
            philox_lanes(d->seed, d->step, d->stream, c0, c1, w);
            if (!aligned)
                for (uint32_t i = 1; i < 4; i++)
                    w[0] = (vu)select_f((vi)(word == i - (vu){0}), (vf)w[i], (vf)w[0]);
            for (int64_t j = 0; j < (aligned ? 4 : 1) && k + j < n_keys; j++) {
                vi on = (vi)((w[j] >> 8) >= d->least - (vu){0});
                store_n(KUMI_F32, keep + (k + j) * QUERIES, part * LANES, LANE_COUNT,
                        select_f(on, splat(d->scale), (vf){0}));
            }
        }
}

/* The lanes whose query may look at key k. */
INLINE vi visible(const struct ku_attn_tile *t, int64_t q0, int64_t k)
{
    vi q = lane_index() + (int32_t)q0;
    vi in = q < (int32_t)t->t - (vi){0};
    return t->causal ? in & (q >= (int32_t)k - (vi){0}) : in;
}

/* Of keys [k0, k0 + n), those that the queries before q_end see. */
INLINE int64_t seen_keys(const struct ku_attn_tile *t, int64_t q_end, int64_t k0, int64_t n)
{
    return t->causal && q_end - k0 < n ? q_end - k0 : n;
}

/* delta[query] = sum of dO O. */
static void sum_out_d_out(const struct ku_attn_tile *t, float *delta)
{
    for (int64_t q = 0; q < t->t; q++) {
        const void *o = element(t, t->o, q * t->ld_o), *d_o = element(t, t->d_out, q * t->ld_o);
        vf s = {0};
        BY_DTYPE(t->dtype, FOR_VECTORS(t->d, s += LOAD(KUMI_F32, o) * LOAD(KUMI_F32, d_o)),
                 FOR_VECTORS(t->d, s += LOAD(KUMI_BF16, o) * LOAD(KUMI_BF16, d_o)));
        delta[q] = sum_lanes(s);
    }
}
