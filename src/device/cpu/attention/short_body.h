/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of up to SHORT queries over up to SHORT keys in dot-product pairs: a whole head at
 * once, so that the max is final and nothing is packed twice. Queries are the lanes of the scores,
 * in one vector if they fit. Results are computed as rows with columns of d in the lanes: missing
 * queries cost nothing and no result is transposed back.
 *
 *     S^T = K Q^T, dP^T = V dO^T    pairs along d: rows of K and V in place; lanes are queries
 *     O = P V, dQ = dS K            pairs along keys: V and K interleaved by two; rows are queries
 *     dV = P^T dO, dK = dS^T Q      pairs along queries: dO and Q interleaved; rows are keys
 */
enum { SHORT = KU_ATTN_SHORT };

/*
 * Buffers of one head. w: lanes of queries, 16 or 32; d_pad: d rounded up to a multiple of GEMM_NR.
 */
struct short_tile {
    int64_t n_q, n_keys, w, d_pad;
    uint32_t *qt, *dot;       /* Q^T, dO^T: [d / 2][w] */
    uint32_t *p, *ds;         /* pairs along keys: [keys / 2][w] */
    uint32_t *p_row, *ds_row; /* pairs along queries: [keys][w / 2] */
    uint32_t *panel;          /* [SHORT / 2][GEMM_NR] */
    float *s, *dp;            /* [keys][w] */
    float *dq, *dk, *dv;      /* [SHORT][d_pad] */
    float *over;              /* [w]: 1 / sum, or delta */
    uint32_t keep[SHORT];
};
static void short_begin(const struct ku_attn_tile *t, struct short_tile *b)
{
    *b = (struct short_tile){
        .n_q = t->t, .n_keys = t->n_seen, .w = t->t <= LANES ? LANES : 2 * LANES};
    b->d_pad = (t->d + GEMM_NR - 1) / GEMM_NR * GEMM_NR;
    uint32_t *at = (uint32_t *)(void *)t->scratch;
#define TAKE(name, count) b->name = (void *)at, at += (count)
    TAKE(qt, t->d / 2 * SHORT);
    TAKE(dot, t->d / 2 * SHORT);
    TAKE(p, SHORT / 2 * SHORT);
    TAKE(ds, SHORT / 2 * SHORT);
    TAKE(p_row, SHORT * SHORT / 2);
    TAKE(ds_row, SHORT * SHORT / 2);
    TAKE(panel, SHORT / 2 * GEMM_NR);
    TAKE(s, SHORT * SHORT);
    TAKE(dp, SHORT * SHORT);
    TAKE(dq, SHORT * b->d_pad);
    TAKE(dk, SHORT * b->d_pad);
    TAKE(dv, SHORT * b->d_pad);
    TAKE(over, SHORT);
#undef TAKE
}

/*
 * Transposes columns [j, j + 32) of sixteen rows: lane i of row u of out = pair u of row i. Four
 * pairs at a time are loaded directly into their quarter of a vector.
 */
INLINE void short_turn_16(const uint16_t *const row[LANES], int64_t j, uint32_t *out, int64_t w)
{
    for (int64_t c = 0; c < 4; c++, j += 8, out += 4 * w) {
        __m512i r[4];
        UNROLL
        for (int i = 0; i < 4; i++) {
            r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(row[i] + j)));
            UNROLL
            for (int q = 1; q < 4; q++)
                r[i] = _mm512_mask_broadcast_i32x4(
                    r[i], (__mmask16)(0xf << 4 * q),
                    _mm_loadu_si128((const void *)(row[i + 4 * q] + j)));
        }
        const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
        const __m512i d = _mm512_unpacklo_epi32(r[2], r[3]), e = _mm512_unpackhi_epi32(r[2], r[3]);
        *(vu_mem *)out = (vu)_mm512_unpacklo_epi64(a, d);
        *(vu_mem *)(out + w) = (vu)_mm512_unpackhi_epi64(a, d);
        *(vu_mem *)(out + 2 * w) = (vu)_mm512_unpacklo_epi64(b, e);
        *(vu_mem *)(out + 3 * w) = (vu)_mm512_unpackhi_epi64(b, e);
    }
}
/* panel[d / 2][w]: the transposed rows of queries, pairs along d. */
static void short_turn(const struct ku_attn_tile *t, const struct short_tile *b, const uint16_t *x,
                       int64_t ld, uint32_t *panel)
{
    static const uint16_t none[KU_ATTN_MAX_WIDTH];
    if (t->d % 32) {
        pack_cols(panel, b->w, x, KUMI_BF16, ld, t->d, b->n_q, 1);
        return;
    }
    for (int64_t q = 0; q < b->w; q += LANES) {
        const uint16_t *row[LANES];
        for (int i = 0; i < LANES; i++)
            row[i] = q + i < b->n_q ? x + (q + i) * ld : none;
        for (int64_t j = 0; j < t->d; j += 32)
            short_turn_16(row, j, panel + j / 2 * b->w + q, b->w);
    }
}
/* c[keys][w] = rows of x times a packed panel of queries. */
static void short_scores(const struct ku_attn_tile *t, const struct short_tile *b, const void *x,
                         const uint32_t *panel, float *c)
{
    if (b->w > LANES) {
        pairs_product(b->n_keys, t->d / 2, x, t->ld_k / 2, 1, panel, c, b->w, 0);
        return;
    }
    const int64_t most = ku_slim_avx512bf16.mr;
    for (int64_t i = 0; i < b->n_keys; i += most)
        ku_slim_avx512bf16.run((int)(b->n_keys - i < most ? b->n_keys - i : most), t->d / 2,
                               element(t, x, i * t->ld_k), t->ld_k / 2, 1, panel, c + i * b->w,
                               b->w, 0, x, 0);
}
/* c[rows][d] (+)= pairs of a times n rows of x; rs, cs: strides of a as in micro(). */
static void short_rows(const struct ku_attn_tile *t, const struct short_tile *b, int64_t rows,
                       const uint32_t *a, int64_t rs, int64_t cs, const uint16_t *x, int64_t ld,
                       int64_t n, float *c, int add)
{
    for (int64_t j = 0; j < t->d; j += GEMM_NR) {
        pack_rows(b->panel, GEMM_NR, x + j, KUMI_BF16, ld, n,
                  t->d - j < GEMM_NR ? t->d - j : GEMM_NR, 1);
        pairs_product(rows, (n + 1) / 2, a, rs, cs, b->panel, c + j, b->d_pad, add);
    }
}
/* The queries, in lanes from `at` on, that see a key. */
INLINE __mmask16 short_sees(const struct ku_attn_tile *t, int64_t key, int64_t at)
{
    const int64_t first = t->causal ? key - t->offset - at : 0; /* the first lane */
    return first <= 0 ? 0xffff : first >= LANES ? 0 : (__mmask16)(0xffffu << first);
}
INLINE vf seen_or(__mmask16 sees, vf x, float otherwise)
{
    return (vf)_mm512_mask_blend_ps(sees, _mm512_set1_ps(otherwise), (__m512)x);
}

/* S^T to pairs of P^T; also the reciprocals of the sums and the log-sum-exps. */
static void short_softmax(const struct ku_attn_tile *t, const struct short_tile *b)
{
    const vf factor = splat(t->scale * LOG2_E);
    for (int64_t at = 0; at < b->w; at += LANES) {
        vf top = splat(-INFINITY), sum = {0};
        for (int64_t k = 0; k < b->n_keys; k++)
            top = max_f(seen_or(short_sees(t, k, at), load(KUMI_F32, b->s + k * b->w, at) * factor,
                                -INFINITY),
                        top);
        const vf m = select_f(top > splat(-INFINITY), top, (vf){0}); /* a query without keys */
        for (int64_t k = 0; k < b->n_keys; k += 2) {
            vf w[2] = {{0}, {0}};
            for (int i = 0; i < 2 && k + i < b->n_keys; i++) {
                vf x = load(KUMI_F32, b->s + (k + i) * b->w, at) * factor - m;
                w[i] = seen_or(short_sees(t, k + i, at), exp2_f(max_f(EXP2_ZERO, x)), 0);
                sum += w[i];
                if (t->drop)
                    w[i] = drop_key(t, b->keep, b->w, k + i, at, w[i]);
            }
            *(vu_mem *)(b->p + k / 2 * b->w + at) = pair_lanes(w[0], w[1]);
        }
        const vi none = sum == (vf){0};
        store(KUMI_F32, b->over, at, select_f(none, (vf){0}, 1.0f / sum));
        const int64_t left = b->n_q - at, some = left < LANES ? left : LANES;
        store_n(KUMI_F32, t->lse, at, some,
                select_f(none, splat(-INFINITY), (top + log2_f(sum)) * (1 / LOG2_E)));
    }
}
static void short_forward(const struct ku_attn_tile *t)
{
    struct short_tile b;
    short_begin(t, &b);
    short_turn(t, &b, t->q, t->ld_q, b.qt);
    short_scores(t, &b, t->k, b.qt, b.s);
    if (t->drop)
        draw_keep(t, 0, b.n_q, 0, b.n_keys, b.keep, b.w);
    short_softmax(t, &b);
    short_rows(t, &b, b.n_q, b.p, 1, b.w, t->v, t->ld_k, b.n_keys, b.dq, 0);
    put_sums(b.dq, b.d_pad, b.n_q, t->d, b.over, t->out, t->ld_o);
}

/* over[query] = sum of dO O. */
static void short_delta(const struct ku_attn_tile *t, const struct short_tile *b)
{
    for (int64_t at = 0; at < b->w; at += LANES) {
        vf v[LANES] = {{0}};
        for (int64_t q = at; q < b->n_q && q < at + LANES; q++)
            for (int64_t j = 0; j < t->d; j += 2 * LANES) {
                const int64_t n = t->d - j;
                const __mmask32 some = n < 32 ? ((__mmask32)1 << n) - 1 : ~(__mmask32)0;
                v[q - at] = (vf)_mm512_dpbf16_ps(
                    (__m512)v[q - at],
                    (__m512bh)_mm512_maskz_loadu_epi16(some, element(t, t->o, q * t->ld_o + j)),
                    (__m512bh)_mm512_maskz_loadu_epi16(some,
                                                       element(t, t->d_out, q * t->ld_o + j)));
            }
        store(KUMI_F32, b->over, at, sum_lanes_16(v));
    }
}
/* P^T and dS^T from S^T and dP^T, rounded and paired for the next products. */
static void short_adjoint(const struct ku_attn_tile *t, const struct short_tile *b)
{
    const vf factor = splat(t->scale * LOG2_E);
    for (int64_t at = 0; at < b->w; at += LANES) {
        const int64_t left = b->n_q - at, some = left < LANES ? left : LANES;
        const vf lse = load_n(KUMI_F32, t->lse, at, some) * LOG2_E;
        const vf delta = load(KUMI_F32, b->over, at);
        for (int64_t k = 0; k < b->n_keys; k += 2) {
            vf ds[2] = {{0}, {0}};
            for (int64_t i = 0; i < 2 && k + i < b->n_keys; i++) {
                const int64_t row = (k + i) * b->w;
                vf x = load(KUMI_F32, b->s + row, at) * factor - lse;
                vf d = load(KUMI_F32, b->dp + row, at), w, p;
                p = w = seen_or(short_sees(t, k + i, at), exp2_f(max_f(EXP2_ZERO, x)), 0);
                if (t->drop) {
                    d = drop_key(t, b->keep, b->w, k + i, at, d);
                    p = drop_key(t, b->keep, b->w, k + i, at, w);
                }
                ds[i] = w * (d - delta) * t->scale;
                *(vh_mem *)(b->p_row + (row + at) / 2) = (vh)_mm512_cvtneps_pbh((__m512)p);
                *(vh_mem *)(b->ds_row + (row + at) / 2) = (vh)_mm512_cvtneps_pbh((__m512)ds[i]);
            }
            *(vu_mem *)(b->ds + k / 2 * b->w + at) = pair_lanes(ds[0], ds[1]);
        }
    }
}
static void short_head_backward(const struct ku_attn_tile *t, struct short_tile *b, int add)
{
    short_turn(t, b, t->q, t->ld_q, b->qt);
    short_turn(t, b, t->d_out, t->ld_o, b->dot);
    short_scores(t, b, t->k, b->qt, b->s);
    short_scores(t, b, t->v, b->dot, b->dp);
    short_delta(t, b);
    if (t->drop)
        draw_keep(t, 0, b->n_q, 0, b->n_keys, b->keep, b->w);
    short_adjoint(t, b);
    short_rows(t, b, b->n_keys, b->p_row, b->w / 2, 1, t->d_out, t->ld_o, b->n_q, b->dv, add);
    short_rows(t, b, b->n_keys, b->ds_row, b->w / 2, 1, t->q, t->ld_q, b->n_q, b->dk, add);
    short_rows(t, b, b->n_q, b->ds, 1, b->w, t->k, t->ld_k, b->n_keys, b->dq, 0);
    put_sums(b->dq, b->d_pad, b->n_q, t->d, NULL, t->dq, t->ld_q);
}
static void short_backward(const struct ku_attn_tile *t)
{
    struct short_tile b;
    short_begin(t, &b);
    for (int64_t h = 0; h < t->n_heads; h++) {
        const struct ku_attn_tile one = head_of(t, h);
        short_head_backward(&one, &b, h > 0);
    }
    put_sums(b.dk, b.d_pad, b.n_keys, t->d, NULL, t->dk, t->ld_k);
    put_sums(b.dv, b.d_pad, b.n_keys, t->d, NULL, t->dv, t->ld_k);
    put_unseen_keys(t);
}
