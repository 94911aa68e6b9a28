/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of bf16 with dot-product pairs: the same tiles as attn_body.h at twice the rate.
 * Scores, probabilities and sums are f32; probabilities and score gradients are rounded to bf16 as
 * operands of the next product, as FlashAttention does. Heads of odd width have no pairs and use
 * attn_body.h.
 *
 *     S^T = K Q^T, dP^T = V dO^T       pairs along d: rows of K and V in place
 *     O += P V, dQ^T += K^T dS^T       pairs along keys: V and K interleaved by two keys
 *     dV += P^T dO, dK += dS^T Q       pairs along queries: rows of P^T and dS^T in place
 */
/* c[rows][nr] (+)= a b for any number of rows; row i of `next` is prefetched with row i of a. */
INLINE void pairs_product_next(int64_t rows, int64_t n_units, const void *a, int64_t rs, int64_t cs,
                               const uint32_t *b, float *c, int64_t ldc, int add, const void *next,
                               int64_t next_bytes)
{
    for (int64_t i = 0; i < rows; i += GEMM_MR)
        micro((int)(rows - i < GEMM_MR ? rows - i : GEMM_MR), n_units, (const char *)a + i * rs * 4,
              rs, cs, b, c + i * ldc, ldc, add, (const char *)next + i * next_bytes, next_bytes);
}
INLINE void pairs_product(int64_t rows, int64_t n_units, const void *a, int64_t rs, int64_t cs,
                          const uint32_t *b, float *c, int64_t ldc, int add)
{
    pairs_product_next(rows, n_units, a, rs, cs, b, c, ldc, add, a, 0);
}
/* pair_lanes: {a, b} of each lane. pair_row: all of `first`, then all of `second`. */
INLINE vu pair_lanes(vf a, vf b)
{
    const vi even = {0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005,
                     0x160006, 0x170007, 0x180008, 0x190009, 0x1a000a, 0x1b000b,
                     0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
    return (vu)_mm512_permutexvar_epi16((__m512i)even, both);
}
INLINE vu pair_row(vf first, vf second)
{
    return (vu)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}

/*
 * S^T to pairs of P^T for one tile of keys. Updates the running max (of s factor, factor = scale
 * log2 e) and sum. shrunk: the factor that rescales each row of O.
 */
static void pairs_softmax(const struct ku_attn_tile *t, int64_t k0, int64_t n_keys, int mixed,
                          const float *s, const uint32_t *keep, float *top, float *sum,
                          float *shrunk, uint32_t *p)
{
    const int edge =
        (t->causal && k0 + n_keys > t->q0 + t->offset) || t->q0 + QUERIES > t->t || mixed;
    const vf factor = splat(t->scale * LOG2_E);
    for (int64_t at = 0; at < QUERIES; at += LANES) {
        vf old = load(KUMI_F32, top, at), m = splat(-INFINITY), l = load(KUMI_F32, sum, at);
        const struct lanes lanes = lanes_of(t, t->q0 + at);
        for (int64_t k = 0; k < n_keys; k++) {
            vf x = load(KUMI_F32, s + k * QUERIES, at) * factor;
            if (edge)
                x = select_f(visible(t, &lanes, k0 + k), x, splat(-INFINITY));
            m = max_f(x, m);
        }
        m = max_f(m, old);
        store(KUMI_F32, top, at, m);
        m = select_f(m > splat(-INFINITY), m, (vf){0}); /* a lane that has seen no key yet */
        vf shrink = exp2_f(max_f(old - m, EXP2_ZERO));
        l *= shrink;
        for (int64_t k = 0; k < n_keys; k += 2) {
            vf w[2] = {{0}, {0}};
            for (int i = 0; i < 2 && k + i < n_keys; i++) {
                vf x = load(KUMI_F32, s + (k + i) * QUERIES, at) * factor - m;
                w[i] = weight(x, edge, visible(t, &lanes, k0 + k + i));
                l += w[i];
                if (keep)
                    w[i] = drop_key(t, keep, QUERIES, k + i, at, w[i]);
            }
            *(vu_mem *)(p + k / 2 * QUERIES + at) = pair_lanes(w[0], w[1]);
        }
        store(KUMI_F32, shrunk, at, shrink);
        store(KUMI_F32, sum, at, l);
    }
}

/* Writes rows of a matrix stored as [d][queries], times factor[row] if given. */
static void put_rows(const struct ku_attn_tile *t, void *out, int64_t ld, const float *transposed,
                     int64_t n_q, const float *factor, float *row)
{
    pack_cols(row, t->d, transposed, KUMI_F32, QUERIES, n_q, t->d, 0);
    for (int64_t q = 0; q < n_q; q++) {
        const float *r = row + q * t->d;
        uint16_t *to = (uint16_t *)out + q * ld;
        vf by = splat(factor ? factor[q] : 1);
        FOR_VECTORS(t->d, STORE(KUMI_BF16, to, LOAD(KUMI_F32, r) * by));
    }
}

enum { PAIRS_BLOCKS = 4 /* tiles of queries of a forward call */ };
/* One tile of queries in the forward pass and its state across tiles of keys. */
struct pairs_block {
    struct ku_attn_tile t;
    float *o, *top, *sum; /* [queries][d_pad], [queries] */
    uint32_t *q;          /* Q^T: pairs along d, [d / 2][queries] */
    int64_t n_q, d_pad;   /* d rounded up to a multiple of nr */
    int add;
};
/*
 * Shared by all tiles of queries in turn: scores, their pairs, and V in panels of nr columns, pairs
 * along keys.
 */
struct pairs_buffers {
    float *s;
    uint32_t *p, *v;
    int is_packed; /* v holds the current keys */
};
static void pairs_begin(const struct ku_attn_tile *t, struct pairs_block *b, float **at)
{
    *b = (struct pairs_block){.t = *t, .n_q = t->t - t->q0 < QUERIES ? t->t - t->q0 : QUERIES};
    b->d_pad = (t->d + GEMM_NR - 1) / GEMM_NR * GEMM_NR;
    b->top = *at, b->sum = b->top + QUERIES, b->o = b->sum + QUERIES;
    b->q = (uint32_t *)(void *)(b->o + b->d_pad * QUERIES);
    *at = (float *)(void *)(b->q + t->d / 2 * QUERIES);
    pack_cols(b->q, QUERIES, element(t, t->q, t->q0 * t->ld_q), KUMI_BF16, t->ld_q, t->d, b->n_q,
              1);
    for (int i = 0; i < QUERIES; i++)
        b->top[i] = -INFINITY, b->sum[i] = 0;
}
/* O = O shrunk + P V for one tile of keys. */
static void pairs_values(struct pairs_block *b, struct pairs_buffers *u, const float *shrunk,
                         int64_t k0, int64_t n_keys, int64_t n_tile)
{
    const struct ku_attn_tile *t = &b->t;
    const int64_t next = k0 + n_tile + b->n_q < t->n_seen ? k0 + n_tile : k0; /* rows of K */
    for (int64_t q = 0; b->add && q < b->n_q; q++)
        for (int64_t j = 0; shrunk[q] != 1 && j < b->d_pad; j += LANES) {
            float *o = b->o + q * b->d_pad;
            store(KUMI_F32, o, j, load(KUMI_F32, o, j) * shrunk[q]);
        }
    for (int64_t j = 0; j < t->d; j += GEMM_NR) {
        uint32_t *v = u->v + j * (KEYS / 2);
        if (!u->is_packed) /* prefetched during the scores */
            pack_rows(v, GEMM_NR, element(t, t->v, k0 * t->ld_k + j), KUMI_BF16, t->ld_k, n_tile,
                      t->d - j < GEMM_NR ? t->d - j : GEMM_NR, 1);
        pairs_product_next(b->n_q, (n_keys + 1) / 2, u->p, 1, QUERIES, v, b->o + j, b->d_pad,
                           b->add, element(t, t->k, next * t->ld_k), t->ld_k * 2);
    }
    u->is_packed = 1;
    b->add = 1;
}
static void pairs_keys(struct pairs_block *b, struct pairs_buffers *u, int64_t k0, int64_t n_tile)
{
    const struct ku_attn_tile *t = &b->t;
    const int64_t n_keys = seen_keys(t, t->q0 + b->n_q, k0, n_tile);
    const int meet = n_keys <= 0 ? APART : segments_of(t, t->q0, b->n_q, k0, n_keys);
    uint32_t keep[KEEP_WORDS] = {0};
    float shrunk[QUERIES];
    if (meet == APART)
        return;
    pairs_product_next(n_keys, t->d / 2, element(t, t->k, k0 * t->ld_k), t->ld_k / 2, 1, b->q, u->s,
                       QUERIES, 0, element(t, t->v, k0 * t->ld_k), t->ld_k * 2);
    if (t->drop)
        draw_keep(t, t->q0, b->n_q, k0, n_keys, keep, QUERIES);
    pairs_softmax(t, k0, n_keys, meet == MIXED, u->s, t->drop ? keep : NULL, b->top, b->sum, shrunk,
                  u->p);
    pairs_values(b, u, shrunk, k0, n_keys, n_tile);
    ku_pool_poll(t->pool, t->thread);
}
/*
 * Writes rows of sums, times factor[row] if given. The instruction rounds and flushes subnormals to
 * zero, as in its products.
 */
static void put_sums(const float *sum, int64_t d_pad, int64_t n, int64_t d, const float *factor,
                     uint16_t *out, int64_t ld)
{
    for (int64_t i = 0; i < n; i++, sum += d_pad, out += ld) {
        const vf by = splat(factor ? factor[i] : 1);
        for (int64_t j = 0; j < d; j += 2 * LANES) {
            const vu both =
                pair_row(load(KUMI_F32, sum, j) * by, load(KUMI_F32, sum, j + LANES) * by);
            const __mmask32 some = d - j < 32 ? ((__mmask32)1 << (d - j)) - 1 : ~(__mmask32)0;
            _mm512_mask_storeu_epi16(out + j, some, (__m512i)both);
        }
    }
}
static void pairs_end(struct pairs_block *b)
{
    const struct ku_attn_tile *t = &b->t;
    if (!b->add) /* no key at all */
        memset(b->o, 0, (size_t)(b->d_pad * QUERIES) * sizeof *b->o);
    for (int64_t i = 0; i < b->n_q; i++) {
        t->lse[t->q0 + i] =
            (float)(0.693147180559945309 * (double)b->top[i] + log((double)b->sum[i]));
        b->sum[i] = b->sum[i] == 0 ? 0 : 1.0f / b->sum[i];
    }
    put_sums(b->o, b->d_pad, b->n_q, t->d, b->sum, element_out(t, t->out, t->q0 * t->ld_o),
             t->ld_o);
}
/*
 * Several tiles of queries: V is interleaved once for all.
 */
static void pairs_forward(const struct ku_attn_tile *t)
{
    struct pairs_block block[PAIRS_BLOCKS];
    float *at = t->scratch;
    int n = 0;
    for (; n < PAIRS_BLOCKS && t->q0 + n * QUERIES < t->t; n++) {
        struct ku_attn_tile one = *t;
        one.q0 += n * QUERIES;
        pairs_begin(&one, &block[n], &at);
    }
    struct pairs_buffers u = {.s = at};
    u.p = (uint32_t *)(void *)(u.s + KEYS * QUERIES);
    u.v = u.p + KEYS / 2 * QUERIES;
    const struct pairs_block *last = &block[n - 1];
    const int64_t end = seen_keys(t, last->t.q0 + last->n_q, 0, t->n_seen);
    for (int64_t k0 = 0; k0 < end; k0 += KEYS) {
        const int64_t n_keys = end - k0 < KEYS ? end - k0 : KEYS;
        u.is_packed = 0;
        for (int i = 0; i < n; i++)
            pairs_keys(&block[i], &u, k0, n_keys);
    }
    for (int i = 0; i < n; i++)
        pairs_end(&block[i]);
}

/* Scratch of the backward pass. */
struct pairs_back {
    float *s, *dp, *dk, *dv, *row; /* dk, dv: [keys][d rounded up to a multiple of nr] */
    uint32_t *qt, *dot;            /* Q^T, dO^T: pairs along d, [d / 2][queries] */
    uint32_t *q, *d_o;             /* Q, dO: pairs along queries, panels of nr */
    uint32_t *keep;                /* KEEP_WORDS */
    uint32_t *k;                   /* K: pairs along keys, [keys / 2][d] */
    /* Pairs: p_row, ds_row along queries [keys][nr / 2]; ds along keys [keys / 2][nr]. */
    uint32_t *p_row, *ds_row, *ds;
    int64_t d_pad;
};
static struct pairs_back pairs_scratch(const struct ku_attn_tile *t)
{
    struct pairs_back b = {.d_pad = (t->d + GEMM_NR - 1) / GEMM_NR * GEMM_NR};
    float *at = t->scratch;
    uint32_t *unit;
#define TAKE(from, name, count) b.name = from, from += (count)
    TAKE(at, s, KEYS * QUERIES);
    TAKE(at, dp, KEYS * QUERIES);
    TAKE(at, dk, KEYS * b.d_pad);
    TAKE(at, dv, KEYS * b.d_pad);
    TAKE(at, row, QUERIES * t->d);
    unit = (uint32_t *)at;
    TAKE(unit, qt, t->d / 2 * QUERIES);
    TAKE(unit, dot, t->d / 2 * QUERIES);
    TAKE(unit, q, QUERIES / 2 * b.d_pad);
    TAKE(unit, d_o, QUERIES / 2 * b.d_pad);
    TAKE(unit, k, KEYS / 2 * t->d);
    TAKE(unit, p_row, KEYS * QUERIES / 2);
    TAKE(unit, ds_row, KEYS * QUERIES / 2);
    TAKE(unit, ds, KEYS / 2 * QUERIES);
    b.keep = memset(unit, 0, KEEP_WORDS * sizeof *unit);
#undef TAKE
    return b;
}

/* P^T and dS^T from S^T and dP^T, rounded and paired for the next products. */
static void pairs_adjoint(const struct ku_attn_tile *t, const struct pairs_back *b, int64_t q0,
                          int64_t k0, int64_t n_keys, int mixed)
{
    const int edge = (t->causal && k0 + n_keys > q0 + t->offset) || q0 + QUERIES > t->t || mixed;
    const vf factor = splat(t->scale * LOG2_E);
    const struct lanes lanes[2] = {lanes_of(t, q0), lanes_of(t, q0 + LANES)};
    vf lse[2], delta[2];
    for (int h = 0; h < 2; h++) {
        int64_t left = t->t - q0 - h * LANES, some = left < 0 ? 0 : left < LANES ? left : LANES;
        lse[h] = load_n(KUMI_F32, t->lse + q0, h * LANES, some) * LOG2_E;
        delta[h] = load_n(KUMI_F32, delta_of(t) + q0, h * LANES, some);
    }
    for (int64_t k = 0; k < n_keys; k += 2) {
        vf ds[2][2] = {{{0}}}; /* [key][half] */
        for (int64_t i = 0; i < 2 && k + i < n_keys; i++) {
            const int64_t at = (k + i) * QUERIES;
            vf p[2];
            for (int h = 0; h < 2; h++) {
                vf x = load(KUMI_F32, b->s + at, h * LANES) * factor - lse[h];
                vf d = load(KUMI_F32, b->dp + at, h * LANES);
                vf w = weight(x, edge, visible(t, &lanes[h], k0 + k + i));
                p[h] = w;
                if (t->drop) {
                    d = drop_key(t, b->keep, QUERIES, k + i, h * LANES, d);
                    p[h] = drop_key(t, b->keep, QUERIES, k + i, h * LANES, w);
                }
                ds[i][h] = w * (d - delta[h]) * t->scale;
            }
            *(vu_mem *)(b->p_row + at / 2) = pair_row(p[0], p[1]);
            *(vu_mem *)(b->ds_row + at / 2) = pair_row(ds[i][0], ds[i][1]);
        }
        for (int h = 0; h < 2; h++)
            *(vu_mem *)(b->ds + k / 2 * QUERIES + h * LANES) = pair_lanes(ds[0][h], ds[1][h]);
    }
}

/* Queries from q0 on against one tile of keys. */
static void pairs_queries(const struct ku_attn_tile *t, const struct pairs_back *b, int64_t q0,
                          int64_t k0, int64_t n_tile)
{
    const int64_t n_q = t->t - q0 < QUERIES ? t->t - q0 : QUERIES, q_units = (n_q + 1) / 2;
    const int64_t n_keys = seen_keys(t, q0 + n_q, k0, n_tile), d_units = t->d / 2;
    const int meet = segments_of(t, q0, n_q, k0, n_keys);
    if (meet == APART)
        return;
    const uint16_t *q = element(t, t->q, q0 * t->ld_q), *d_o = element(t, t->d_out, q0 * t->ld_o);
    pack_cols(b->qt, QUERIES, q, KUMI_BF16, t->ld_q, t->d, n_q, 1);
    pack_cols(b->dot, QUERIES, d_o, KUMI_BF16, t->ld_o, t->d, n_q, 1);
    pairs_product_next(n_keys, d_units, element(t, t->k, k0 * t->ld_k), t->ld_k / 2, 1, b->qt, b->s,
                       QUERIES, 0, element(t, t->v, k0 * t->ld_k), t->ld_k * 2);
    pairs_product_next(n_keys, d_units, element(t, t->v, k0 * t->ld_k), t->ld_k / 2, 1, b->dot,
                       b->dp, QUERIES, 0, element(t, q, QUERIES * t->ld_q), t->ld_q * 2);
    if (t->drop)
        draw_keep(t, q0, n_q, k0, n_keys, b->keep, QUERIES);
    pairs_adjoint(t, b, q0, k0, n_keys, meet == MIXED);
    for (int64_t j = 0; j < t->d; j += GEMM_NR) {
        int64_t n = t->d - j < GEMM_NR ? t->d - j : GEMM_NR;
        pack_rows(b->q, GEMM_NR, q + j, KUMI_BF16, t->ld_q, n_q, n, 1);
        pack_rows(b->d_o, GEMM_NR, d_o + j, KUMI_BF16, t->ld_o, n_q, n, 1);
        pairs_product(n_keys, q_units, b->p_row, QUERIES / 2, 1, b->d_o, b->dv + j, b->d_pad, 1);
        pairs_product(n_keys, q_units, b->ds_row, QUERIES / 2, 1, b->q, b->dk + j, b->d_pad, 1);
    }
    pairs_product(t->d, (n_keys + 1) / 2, b->k, 1, t->d, b->ds,
                  t->sum + q0 / QUERIES * (t->d * QUERIES), QUERIES, k0 > 0 || is_zeroed(t));
}

static void pairs_backward(const struct ku_attn_tile *t)
{
    struct pairs_back b = pairs_scratch(t);
    begin_heads(t);
    for (int64_t k0 = 0; k0 < t->n_seen; k0 += KEYS) {
        int64_t n_keys = t->n_seen - k0 < KEYS ? t->n_seen - k0 : KEYS;
        pack_rows(b.k, t->d, element(t, t->k, k0 * t->ld_k), KUMI_BF16, t->ld_k, n_keys, t->d, 1);
        memset(b.dk, 0, (size_t)(n_keys * b.d_pad) * sizeof *b.dk);
        memset(b.dv, 0, (size_t)(n_keys * b.d_pad) * sizeof *b.dv);
        for (int64_t h = 0; h < t->n_heads; h++) {
            const struct ku_attn_tile one = head_of(t, h);
            for (int64_t q0 = first_query(t, k0); q0 < t->t; q0 += QUERIES) {
                pairs_queries(&one, &b, q0, k0, n_keys);
                ku_pool_poll(t->pool, t->thread);
            }
        }
        put_sums(b.dk, b.d_pad, n_keys, t->d, NULL, element_out(t, t->dk, k0 * t->ld_k), t->ld_k);
        put_sums(b.dv, b.d_pad, n_keys, t->d, NULL, element_out(t, t->dv, k0 * t->ld_k), t->ld_k);
    }
    put_unseen_keys(t);
    for (int64_t h = 0; h < t->n_heads; h++) {
        const struct ku_attn_tile one = head_of(t, h);
        for (int64_t q0 = 0; q0 < t->t; q0 += QUERIES)
            put_rows(t, element_out(t, one.dq, q0 * t->ld_q), t->ld_q, one.sum + q0 * t->d,
                     t->t - q0 < QUERIES ? t->t - q0 : QUERIES, NULL, b.row);
    }
}
