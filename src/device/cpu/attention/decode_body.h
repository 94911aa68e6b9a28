/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of one query per sample: matrix times vector. The time is that of reading K and V,
 * which a tile reads once for all query heads that share them (GQA). Keys are scored sixteen at a
 * time, one per lane (sixteen dot products, whose lanes a tree of shuffles adds). The running max
 * and sum are scalars; o is accumulated in groups of DECODE_COLS elements that stay in registers.
 */
enum { DECODE_KEYS = 64, DECODE_COLS = 4 * (int)LANES };

/* q.k of keys [k, k + 16), of which n exist. */
INLINE vf dots(enum kumi_dtype dtype, const void *k, int64_t ld, int64_t n, const float *q,
               int64_t d)
{
    vf v[LANES];
    const int64_t full = d / LANES * LANES;
    UNROLL
    for (int i = 0; i < LANES; i++)
        v[i] = (vf){0};
    for (int64_t j = 0; j < d; j += LANES) {
        const vf x = j < full ? load(KUMI_F32, q, j) : load_n(KUMI_F32, q, j, d - j);
        if (n >= LANES && j < full) {
            UNROLL
            for (int i = 0; i < LANES; i++)
                v[i] += load(dtype, k, i * ld + j) * x;
            continue;
        }
        for (int i = 0; i < LANES && i < n; i++)
            v[i] +=
                (j < full ? load(dtype, k, i * ld + j) : load_n(dtype, k, i * ld + j, d - j)) * x;
    }
    return sum_lanes_16(v);
}

/* o[cols] = o factor + sum of p[key] v[key], whole vectors. */
INLINE void gather_values(enum kumi_dtype dtype, const void *v, int64_t ld, int64_t n,
                          const float *p, float factor, float *o)
{
    vf sum[DECODE_COLS / LANES];
    UNROLL
    for (int c = 0; c < DECODE_COLS / LANES; c++)
        sum[c] = load(KUMI_F32, o, c * LANES) * factor;
    for (int64_t i = 0; i < n; i++) {
        UNROLL
        for (int c = 0; c < DECODE_COLS / LANES; c++)
            sum[c] += load(dtype, v, i * ld + c * LANES) * p[i];
    }
    UNROLL
    for (int c = 0; c < DECODE_COLS / LANES; c++)
        store(KUMI_F32, o, c * LANES, sum[c]);
}
/* The same for n_cols < DECODE_COLS. */
INLINE void gather_rest(enum kumi_dtype dtype, const void *v, int64_t ld, int64_t n, const float *p,
                        float factor, float *o, int64_t n_cols)
{
    for (int64_t c = 0; c < n_cols; c += LANES) {
        const int64_t some = n_cols - c < LANES ? n_cols - c : LANES;
        vf sum = load_n(KUMI_F32, o, c, some) * factor;
        for (int64_t i = 0; i < n; i++)
            sum += load_n(dtype, v, i * ld + c, some) * p[i];
        store_n(KUMI_F32, o, c, some, sum);
    }
}

/* State of one query head across tiles of keys. */
struct decode_head {
    float *q, *o; /* [d] */
    float top, sum;
};

INLINE void decode_tile(const struct ku_attn_tile *t, enum kumi_dtype dtype, int64_t k0, int64_t n,
                        struct decode_head *h)
{
    float p[DECODE_KEYS];
    vf most = splat(h->top), sum = {0};
    const void *v = element(t, t->v, k0 * t->ld_k);
    for (int64_t i = 0; i < n; i += LANES) {
        vf s = dots(dtype, element(t, t->k, (k0 + i) * t->ld_k), t->ld_k, n - i, h->q, t->d);
        s = select_f(first_lanes(n - i), s * t->scale, splat(-INFINITY));
        most = max_f(s, most);
        store(KUMI_F32, p, i, s);
    }
    const float top = max_lanes(most), shift = top > -INFINITY ? top : 0;
    const float factor = exp_f(splat(h->top - shift))[0];
    for (int64_t i = 0; i < n; i += LANES) {
        vf x = exp_f(load(KUMI_F32, p, i) - shift);
        store(KUMI_F32, p, i, x);
        sum += x;
    }
    h->top = top;
    h->sum = h->sum * factor + sum_lanes(sum);
    int64_t c = 0;
    for (; c + DECODE_COLS <= t->d; c += DECODE_COLS)
        gather_values(dtype, element(t, v, c), t->ld_k, n, p, factor, h->o + c);
    gather_rest(dtype, element(t, v, c), t->ld_k, n, p, factor, h->o + c, t->d - c);
}

/* n_heads heads of one query over keys [0, n_seen). */
static void attn_decode(const struct ku_attn_tile *t)
{
    struct decode_head *head = (struct decode_head *)(void *)t->scratch;
    float *at = (float *)(void *)(head + t->n_heads);
    for (int64_t i = 0; i < t->n_heads; i++) {
        head[i] = (struct decode_head){.q = at, .o = at + t->d, .top = -INFINITY};
        cast(head[i].q, KUMI_F32, element(t, t->q, i * t->d), t->dtype, t->d);
        memset(head[i].o, 0, (size_t)t->d * sizeof *at);
        at += 2 * t->d;
    }
    for (int64_t k0 = 0; k0 < t->n_seen; k0 += DECODE_KEYS) {
        int64_t n = t->n_seen - k0 < DECODE_KEYS ? t->n_seen - k0 : DECODE_KEYS;
        for (int64_t i = 0; i < t->n_heads; i++)
            BY_DTYPE(t->dtype, decode_tile(t, T, k0, n, &head[i]));
        ku_pool_poll(t->pool, t->thread);
    }
    for (int64_t i = 0; i < t->n_heads; i++) {
        const float over = head[i].sum == 0 ? 0 : 1.0f / head[i].sum;
        for (int64_t j = 0; j < t->d; j++)
            head[i].o[j] *= over;
        cast(element_out(t, t->out, i * t->d), t->dtype, head[i].o, KUMI_F32, t->d);
        t->lse[i] = (float)((double)head[i].top + log((double)head[i].sum));
    }
}
