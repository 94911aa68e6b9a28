/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention in tiles that stay in cache (FlashAttention-2, Dao 2023, algorithms 1 and 2),
 * transposed: a tile is GEMM_NR queries, one per vector lane, against KEYS keys.
 *
 *     S^T[key][query] = K Q^T          rows of K are read in place, Q^T is packed once
 *     P^T = exp(S^T scale - max)       max, sum and log-sum-exp are per lane: no horizontal sums
 *     O^T[d][query] += V^T P^T         V is read in place, P^T is already a packed panel
 *
 * The backward pass works likewise. bf16 and f16 keys and values are widened tile by tile;
 * arithmetic is f32. Machines with bf16 dot products use dot_pairs_body.h for bf16.
 */
#include "device/cpu/attention/attn_common.h"

/* c[rows][nr] (+)= a b for any number of rows. */
INLINE void product(int64_t rows, int64_t n_units, const float *a, int64_t rs, int64_t cs,
                    const float *b, float *c, int64_t ldc, int add)
{
    for (int64_t i = 0; i < rows; i += GEMM_MR)
        micro((int)(rows - i < GEMM_MR ? rows - i : GEMM_MR), n_units, a + i * rs, rs, cs, b,
              c + i * ldc, ldc, add, a, 0);
}

/* A tile of keys or values as f32: in place, or widened into buf. */
struct rows {
    const float *at;
    int64_t ld;
};
static struct rows widen_rows(const struct ku_attn_tile *t, const void *x, int64_t from, int64_t n,
                              float *buf)
{
    if (t->dtype == KUMI_F32)
        return (struct rows){(const float *)x + from * t->ld_k, t->ld_k};
    for (int64_t i = 0; i < n; i++)
        cast(buf + i * t->d, KUMI_F32, (const uint16_t *)x + (from + i) * t->ld_k, t->dtype, t->d);
    return (struct rows){buf, t->d};
}

/*
 * S^T to P^T for one tile of keys. Updates the running max (of s factor, factor = scale log2 e) and
 * sum, and rescales O^T if it holds a partial result.
 */
static void softmax_tile(const struct ku_attn_tile *t, int64_t k0, int64_t n_keys, int mixed,
                         int add, float *s, const uint32_t *keep, float *top, float *sum, float *o)
{
    const int edge = (t->causal && k0 + n_keys > t->q0 + t->offset) || mixed;
    const vf factor = splat(t->scale * LOG2_E);
    for (int part = 0; part < PARTS; part++) {
        const int64_t at = part * LANES, n = LANE_COUNT;
        vf old = load_n(KUMI_F32, top, at, n), m = splat(-INFINITY),
           l = load_n(KUMI_F32, sum, at, n);
        const struct lanes lanes = lanes_of(t, t->q0 + at);
        for (int64_t k = 0; k < n_keys; k++) {
            vf x = load_n(KUMI_F32, s + k * QUERIES, at, n) * factor;
            if (edge)
                x = select_f(visible(t, &lanes, k0 + k), x, splat(-INFINITY));
            m = max_f(x, m);
        }
        m = max_f(m, old);
        store_n(KUMI_F32, top, at, n, m);
        m = select_f(m > splat(-INFINITY), m, (vf){0}); /* a lane that has seen no key yet */
        vf shrink = exp2_f(max_f(old - m, EXP2_ZERO));
        l *= shrink;
        for (int64_t k = 0; k < n_keys; k++) {
            vf x = load_n(KUMI_F32, s + k * QUERIES, at, n) * factor - m;
            vf p = weight(x, edge, visible(t, &lanes, k0 + k));
            l += p;
            if (keep)
                p = drop_key(t, keep, QUERIES, k, at, p);
            store_n(KUMI_F32, s + k * QUERIES, at, n, p);
        }
        for (int64_t j = 0; add && j < t->d; j++)
            store_n(KUMI_F32, o + j * QUERIES, at, n,
                    load_n(KUMI_F32, o + j * QUERIES, at, n) * shrink);
        store_n(KUMI_F32, sum, at, n, l);
    }
}

static void attn_forward(const struct ku_attn_tile *t)
{
    float *q = t->scratch, *s = q + t->d * QUERIES, *o = s + KEYS * QUERIES;
    float *wide = o + t->d * QUERIES, *top = wide + KEYS * t->d;
    float *sum = top + QUERIES, *row = sum + QUERIES;
    uint32_t keep[KEEP_WORDS] = {0};
    int64_t n_q = t->t - t->q0 < QUERIES ? t->t - t->q0 : QUERIES;
    int64_t end = seen_keys(t, t->q0 + n_q, 0, t->n_seen);
    int add = 0;

    pack_cols(q, QUERIES, element(t, t->q, t->q0 * t->ld_q), t->dtype, t->ld_q, t->d, n_q, 0);
    for (int i = 0; i < QUERIES; i++)
        top[i] = -INFINITY, sum[i] = 0;
    for (int64_t k0 = 0; k0 < end; k0 += KEYS) {
        int64_t n_keys = end - k0 < KEYS ? end - k0 : KEYS;
        int meet = segments_of(t, t->q0, n_q, k0, n_keys);
        if (meet == APART)
            continue;
        struct rows k = widen_rows(t, t->k, k0, n_keys, wide);
        product(n_keys, t->d, k.at, k.ld, 1, q, s, QUERIES, 0);
        if (t->drop)
            draw_keep(t, t->q0, n_q, k0, n_keys, keep, QUERIES);
        softmax_tile(t, k0, n_keys, meet == MIXED, add, s, t->drop ? keep : NULL, top, sum, o);
        struct rows v = widen_rows(t, t->v, k0, n_keys, wide);
        product(t->d, n_keys, v.at, 1, v.ld, s, o, QUERIES, add);
        add = 1;
        ku_pool_poll(t->pool, t->thread);
    }
    if (!add) /* no key at all */
        memset(o, 0, (size_t)(t->d * QUERIES) * sizeof *o);
    pack_cols(row, t->d, o, KUMI_F32, QUERIES, n_q, t->d, 0);
    for (int64_t i = 0; i < n_q; i++) {
        float *r = row + i * t->d, over = sum[i] == 0 ? 0 : 1.0f / sum[i];
        for (int64_t j = 0; j < t->d; j++)
            r[j] *= over;
        cast(element_out(t, t->out, (t->q0 + i) * t->ld_o), t->dtype, r, KUMI_F32, t->d);
        t->lse[t->q0 + i] = (float)(0.693147180559945309 * (double)top[i] + log((double)sum[i]));
    }
}

/* Scratch of the backward pass; panels have width GEMM_NR. */
struct back {
    float *qt, *dot, *q, *d_o; /* Q^T, dO^T [d][queries]; Q, dO as panels [queries][nr] */
    float *s, *dp;             /* [keys][queries] */
    uint32_t *keep;            /* KEEP_WORDS */
    float *dk, *dv;            /* [keys][d rounded up to a multiple of nr] */
    float *wide_k, *wide_v, *row;
    int64_t d_pad, n_panels;
};

/* P^T and dS^T from S^T and dP^T, in place. */
static void back_tile(const struct ku_attn_tile *t, const struct back *b, int64_t q0, int64_t k0,
                      int64_t n_keys, int mixed)
{
    const int edge = (t->causal && k0 + n_keys > q0 + t->offset) || q0 + QUERIES > t->t || mixed;
    const vf factor = splat(t->scale * LOG2_E);
    for (int part = 0; part < PARTS; part++) {
        const int64_t at = part * LANES, n = LANE_COUNT;
        const struct lanes lanes = lanes_of(t, q0 + at);
        int64_t left = t->t - q0 - at, some = left < 0 ? 0 : left < n ? left : n;
        vf lse = load_n(KUMI_F32, t->lse + q0, at, some) * LOG2_E;
        vf delta = load_n(KUMI_F32, delta_of(t) + q0, at, some);
        for (int64_t k = 0; k < n_keys; k++) {
            float *s = b->s + k * QUERIES, *dp = b->dp + k * QUERIES;
            vf x = load_n(KUMI_F32, s, at, n) * factor - lse, d = load_n(KUMI_F32, dp, at, n);
            vf p = weight(x, edge, visible(t, &lanes, k0 + k)), dropped = p;
            if (t->drop) {
                d = drop_key(t, b->keep, QUERIES, k, at, d);
                dropped = drop_key(t, b->keep, QUERIES, k, at, p);
            }
            store_n(KUMI_F32, s, at, n, dropped);
            store_n(KUMI_F32, dp, at, n, p * (d - delta) * t->scale);
        }
    }
}

/* Queries from q0 on against one tile of keys. */
static void back_queries(const struct ku_attn_tile *t, const struct back *b, int64_t q0, int64_t k0,
                         int64_t n_keys, struct rows k, struct rows v)
{
    int64_t n_q = t->t - q0 < QUERIES ? t->t - q0 : QUERIES;
    n_keys = seen_keys(t, q0 + n_q, k0, n_keys);
    const int meet = segments_of(t, q0, n_q, k0, n_keys);
    if (meet == APART)
        return;
    const void *q = element(t, t->q, q0 * t->ld_q), *d_o = element(t, t->d_out, q0 * t->ld_o);
    pack_cols(b->qt, QUERIES, q, t->dtype, t->ld_q, t->d, n_q, 0);
    pack_cols(b->dot, QUERIES, d_o, t->dtype, t->ld_o, t->d, n_q, 0);
    product(n_keys, t->d, k.at, k.ld, 1, b->qt, b->s, QUERIES, 0);
    product(n_keys, t->d, v.at, v.ld, 1, b->dot, b->dp, QUERIES, 0);
    if (t->drop)
        draw_keep(t, q0, n_q, k0, n_keys, b->keep, QUERIES);
    back_tile(t, b, q0, k0, n_keys, meet == MIXED);
    for (int64_t p = 0; p < b->n_panels; p++) {
        int64_t j = p * GEMM_NR, n = t->d - j < GEMM_NR ? t->d - j : GEMM_NR;
        pack_rows(b->q, GEMM_NR, element(t, q, j), t->dtype, t->ld_q, n_q, n, 0);
        pack_rows(b->d_o, GEMM_NR, element(t, d_o, j), t->dtype, t->ld_o, n_q, n, 0);
        product(n_keys, n_q, b->s, QUERIES, 1, b->d_o, b->dv + j, b->d_pad, 1);
        product(n_keys, n_q, b->dp, QUERIES, 1, b->q, b->dk + j, b->d_pad, 1);
    }
    float *dq = t->sum + q0 / QUERIES * (t->d * QUERIES);
    product(t->d, n_keys, k.at, 1, k.ld, b->dp, dq, QUERIES, k0 > 0 || is_zeroed(t));
}

static struct back back_scratch(const struct ku_attn_tile *t)
{
    struct back b = {.n_panels = (t->d + GEMM_NR - 1) / GEMM_NR};
    b.d_pad = b.n_panels * GEMM_NR;
    float *at = t->scratch;
#define TAKE(name, count) b.name = at, at += (count)
    TAKE(qt, t->d * QUERIES);
    TAKE(dot, t->d * QUERIES);
    TAKE(q, QUERIES * GEMM_NR);
    TAKE(d_o, QUERIES * GEMM_NR);
    TAKE(s, KEYS * QUERIES);
    TAKE(dp, KEYS * QUERIES);
    TAKE(dk, KEYS * b.d_pad);
    TAKE(dv, KEYS * b.d_pad);
    TAKE(wide_k, KEYS * t->d);
    TAKE(wide_v, KEYS * t->d);
    TAKE(row, QUERIES * t->d);
#undef TAKE
    b.keep = memset(at, 0, KEEP_WORDS * sizeof *b.keep);
    return b;
}

static void put_queries(const struct ku_attn_tile *t, int64_t q0, float *row)
{
    int64_t n_q = t->t - q0 < QUERIES ? t->t - q0 : QUERIES;
    pack_cols(row, t->d, t->sum + q0 * t->d, KUMI_F32, QUERIES, n_q, t->d, 0);
    for (int64_t i = 0; i < n_q; i++)
        cast(element_out(t, t->dq, (q0 + i) * t->ld_q), t->dtype, row + i * t->d, KUMI_F32, t->d);
}

/* Writes rows of dK and dV from k0 on. */
static void put_keys(const struct ku_attn_tile *t, int64_t k0, int64_t n, const float *dk,
                     const float *dv, int64_t d_pad)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (k0 + i) * t->ld_k;
        cast(element_out(t, t->dk, at), t->dtype, dk + i * d_pad, KUMI_F32, t->d);
        cast(element_out(t, t->dv, at), t->dtype, dv + i * d_pad, KUMI_F32, t->d);
    }
}

static void attn_backward(const struct ku_attn_tile *t)
{
    struct back b = back_scratch(t);
    begin_heads(t);
    for (int64_t k0 = 0; k0 < t->n_seen; k0 += KEYS) {
        int64_t n_keys = t->n_seen - k0 < KEYS ? t->n_seen - k0 : KEYS;
        struct rows k = widen_rows(t, t->k, k0, n_keys, b.wide_k);
        struct rows v = widen_rows(t, t->v, k0, n_keys, b.wide_v);
        memset(b.dk, 0, (size_t)(n_keys * b.d_pad) * sizeof *b.dk);
        memset(b.dv, 0, (size_t)(n_keys * b.d_pad) * sizeof *b.dv);
        for (int64_t h = 0; h < t->n_heads; h++) {
            const struct ku_attn_tile one = head_of(t, h);
            for (int64_t q0 = first_query(t, k0); q0 < t->t; q0 += QUERIES) {
                back_queries(&one, &b, q0, k0, n_keys, k, v);
                ku_pool_poll(t->pool, t->thread);
            }
        }
        put_keys(t, k0, n_keys, b.dk, b.dv, b.d_pad);
    }
    put_unseen_keys(t);
    for (int64_t h = 0; h < t->n_heads; h++) {
        const struct ku_attn_tile one = head_of(t, h);
        for (int64_t q0 = 0; q0 < t->t; q0 += QUERIES)
            put_queries(&one, q0, b.row);
    }
}
