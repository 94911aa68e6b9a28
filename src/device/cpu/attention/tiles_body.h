/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of bf16 on matrix tiles (Intel AMX), in the numerics of dot_pairs_body.h: scores,
 * probabilities and sums are f32; probabilities and score gradients are rounded to bf16 as operands
 * of the next product. The softmax takes more time than the products, so the layouts serve it:
 *
 *     forward        S[query][key] = Q K^T    a row of S becomes a row of P, a left factor
 *                    O[query][d] += P V       sums per row stay vectors of sixteen until the end
 *     backward       S^T[key][query] = K Q^T, dP^T = V dO^T     a lane is a query
 *                    dV[key][d] += P^T dO, dK += dS^T Q         rows of P^T and dS^T, left factors
 *                    dQ^T[d][query] += K^T dS^T                 pairs of rows of dS^T, right factor
 *
 * A product computes 32 x 32 sums (amx_body.h). Its operands are grids of tiles of 1 KiB, [16][16
 * units]; a unit is a pair of bf16 that is adjacent in the contraction. A matrix X of rows of d
 * elements is packed in four forms, zero-padded to multiples of 32 rows and 32 elements:
 *
 *     form      unit (r, c) of a tile              is            contraction
 *     ROWS      row r, elements 2c and 2c + 1      left:  X      along d
 *     TURNED    row c, elements 2r and 2r + 1      right: X^T    along d     ROWS transposed
 *     ZIPPED    rows 2r and 2r + 1, element c      right: X      along rows
 *     COLUMNS   rows 2c and 2c + 1, element r      left:  X^T    along rows  ZIPPED transposed
 *
 *     ROWS, TURNED       tile [rows / 16][d / 32]           K^T, Q; K, V, Q^T, dO^T
 *     ZIPPED, COLUMNS    tile [rows / 32][d / 16]           V; Q, dO, K^T
 *
 * Forward: K and V of a tile of TILE_KEYS keys are packed once for all queries of the call.
 * Backward: K and V once for all queries; Q and dO once per head as far as the scratch has room.
 * The includer has the tile instructions (gemm/amx_tiles.h or an emulation).
 */
enum {
    TILE = 256,       /* units */
    TILE_KEYS = KEYS, /* forward */
    TILE_BLOCKS = 8   /* tiles of QUERIES of a forward call */
};

/* -- packing -- */

/* n rows of d elements, ld apart. */
struct matrix {
    const uint16_t *at;
    int64_t ld, n, d;
};
/* 32 elements of a row, of which n exist. */
INLINE vu row_units(const uint16_t *x, int64_t n)
{
    if (n >= 2 * LANES)
        return *(const vu_mem *)x;
#if defined(__AVX512BW__)
    return (vu)_mm512_maskz_loadu_epi16(n > 0 ? ((__mmask32)1 << n) - 1 : 0, x);
#else
    vu v = {0};
    if (n > 0)
        memcpy(&v, x, (size_t)n * 2);
    return v;
#endif
}
/* Sixteen rows from row i, 32 elements from element j. */
INLINE void take_rows(const struct matrix *x, int64_t i, int64_t j, vu v[LANES])
{
    const uint16_t *at = x->at + i * x->ld + j;
    const int64_t n = x->n - i;
    if (n >= LANES && x->d - j >= 2 * LANES) {
        UNROLL
        for (int r = 0; r < LANES; r++)
            v[r] = *(const vu_mem *)(at + r * x->ld);
        return;
    }
    for (int r = 0; r < LANES; r++)
        v[r] = r < n ? row_units(at + r * x->ld, x->d - j) : (vu){0};
}
/* Rows a and b interleaved: left, the first sixteen elements of each; right, the others. */
INLINE void zip_rows(vu a, vu b, vu *left, vu *right)
{
#if defined(__AVX512BW__)
    vi order;
    UNROLL
    for (int j = 0; j < LANES; j++)
        order[j] = j | (32 + j) << 16; /* element j of a, then of b */
    *left = (vu)_mm512_permutex2var_epi16((__m512i)a, (__m512i)order, (__m512i)b);
    *right = (vu)_mm512_permutex2var_epi16((__m512i)a, (__m512i)(order + 0x100010), (__m512i)b);
#else
    for (int j = 0; j < LANES; j++) {
        (*left)[j] = (a[j / 2] >> j % 2 * 16 & 0xffff) | b[j / 2] >> j % 2 * 16 << 16;
        (*right)[j] = (a[8 + j / 2] >> j % 2 * 16 & 0xffff) | b[8 + j / 2] >> j % 2 * 16 << 16;
    }
#endif
}
INLINE void put_tile(uint32_t *to, const vu v[LANES])
{
    UNROLL
    for (int r = 0; r < LANES; r++)
        *(vu_mem *)(to + r * LANES) = v[r];
}

enum { ROWS = 1, TURNED = 2, ZIPPED = 4, COLUMNS = 8 };
/* A buffer for each form; NULL: not wanted. */
struct packed {
    uint32_t *rows, *turned, *zipped, *columns;
};
/* Packs rows [0, n) of x, rounded up to 32. */
INLINE void pack_tiles(const struct matrix *x, const struct packed *to, int forms)
{
    const int64_t steps = (x->d + 31) / 32;
    for (int64_t i = 0; i < x->n; i += 2 * LANES)
        for (int64_t j = 0; j < steps; j++) {
            vu v[2][LANES], left[LANES], right[LANES];
            const int64_t along = (i / LANES * steps + j) * TILE, next = steps * TILE;
            const int64_t across = (i / (2 * LANES) * 2 * steps + 2 * j) * TILE;
            take_rows(x, i, j * 32, v[0]);
            take_rows(x, i + LANES, j * 32, v[1]);
            for (int h = 0; h < 2 && (forms & ROWS); h++)
                put_tile(to->rows + along + h * next, v[h]);
            if (forms & (ZIPPED | COLUMNS)) {
                UNROLL
                for (int r = 0; r < LANES; r++)
                    zip_rows(v[r / 8][r % 8 * 2], v[r / 8][r % 8 * 2 + 1], &left[r], &right[r]);
            }
            if (forms & ZIPPED) {
                put_tile(to->zipped + across, left);
                put_tile(to->zipped + across + TILE, right);
            }
            if (forms & COLUMNS) {
                transpose_16(left);
                put_tile(to->columns + across, left);
                transpose_16(right);
                put_tile(to->columns + across + TILE, right);
            }
            for (int h = 0; h < 2 && (forms & TURNED); h++) {
                transpose_16(v[h]);
                put_tile(to->turned + along + h * next, v[h]);
            }
        }
}
/* Out of line, one for each use. */
static __attribute__((noinline)) void pack_rows_tiles(struct matrix x, uint32_t *rows)
{
    pack_tiles(&x, &(struct packed){.rows = rows}, ROWS);
}
static __attribute__((noinline)) void pack_turned(struct matrix x, uint32_t *turned)
{
    pack_tiles(&x, &(struct packed){.turned = turned}, TURNED);
}
static __attribute__((noinline)) void pack_zipped(struct matrix x, uint32_t *zipped)
{
    pack_tiles(&x, &(struct packed){.zipped = zipped}, ZIPPED);
}
static __attribute__((noinline)) void pack_both_ways(struct matrix x, uint32_t *turned,
                                                     uint32_t *zipped)
{
    pack_tiles(&x, &(struct packed){.turned = turned, .zipped = zipped}, TURNED | ZIPPED);
}
static __attribute__((noinline)) void pack_left(struct matrix x, uint32_t *rows, uint32_t *columns)
{
    pack_tiles(&x, &(struct packed){.rows = rows, .columns = columns}, ROWS | COLUMNS);
}

/* -- products and vectors -- */

/*
 * Tiles of a factor: the second sixteen rows or columns are `next` tiles on, the next 32 elements
 * of the contraction `step` tiles.
 */
struct factor {
    const uint32_t *at;
    int64_t next, step;
};
/* c[32][32] (+)= a b over n steps. */
INLINE void tiles_product(struct factor a, struct factor b, int64_t n, float *c, int64_t ldc,
                          int add)
{
    float *c2 = c + LANES * ldc;
    const int64_t c_bytes = ldc * 4;
    if (add) {
        TILE_LOAD(0, c, c_bytes);
        TILE_LOAD(1, c + LANES, c_bytes);
        TILE_LOAD(2, c2, c_bytes);
        TILE_LOAD(3, c2 + LANES, c_bytes);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (; n > 0; n--) {
        TILE_LOAD(4, a.at, 64);
        TILE_LOAD(6, b.at, 64);
        TILE_LOAD(7, b.at + b.next * TILE, 64);
        TILE_LOAD(5, a.at + a.next * TILE, 64);
        TILE_DP(0, 4, 6);
        TILE_DP(1, 4, 7);
        TILE_DP(2, 5, 6);
        TILE_DP(3, 5, 7);
        a.at += a.step * TILE;
        b.at += b.step * TILE;
    }
    TILE_STORE(0, c, c_bytes);
    TILE_STORE(1, c + LANES, c_bytes);
    TILE_STORE(2, c2, c_bytes);
    TILE_STORE(3, c2 + LANES, c_bytes);
}

/* Elements of two vectors, rounded to bf16: all of `first`, then all of `second`. */
INLINE vu round_row(vf first, vf second)
{
#if defined(__AVX512BF16__)
    return (vu)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
#else
    vh half[2] = {narrow_bf16(first), narrow_bf16(second)};
    vu both;
    memcpy(&both, half, sizeof both);
    return both;
#endif
}
/* {a, b} of each lane. */
INLINE vu round_lanes(vf a, vf b)
{
#if defined(__AVX512BF16__)
    const vi even = {0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005,
                     0x160006, 0x170007, 0x180008, 0x190009, 0x1a000a, 0x1b000b,
                     0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};
    return (vu)_mm512_permutexvar_epi16((__m512i)even, (__m512i)round_row(a, b));
#else
    return round_upper(a) >> 16 | (round_upper(b) & 0xffff0000u);
#endif
}
/* Up to 32 elements of a row of results. */
INLINE void put_row(uint16_t *to, vu both, int64_t n)
{
    if (n >= 2 * LANES)
        *(vu_mem *)to = both;
    else
#if defined(__AVX512BW__)
        _mm512_mask_storeu_epi16(to, ((__mmask32)1 << n) - 1, (__m512i)both);
#else
        memcpy(to, &both, (size_t)n * 2);
#endif
}
static void put_tile_sums(const float *sum, int64_t ld_sum, int64_t n, int64_t d,
                          const float *factor, uint16_t *out, int64_t ld)
{
    for (int64_t i = 0; i < n; i++, sum += ld_sum, out += ld) {
        const vf by = splat(factor ? factor[i] : 1);
        for (int64_t j = 0; j < d; j += 2 * LANES)
            put_row(out + j,
                    round_row(load(KUMI_F32, sum, j) * by, load(KUMI_F32, sum, j + LANES) * by),
                    d - j);
    }
}
/* Lane i of the result is the max of the lanes of v[i]. */
#define MAX_ROUND(block)                                                                           \
    UNROLL                                                                                         \
    for (int r = 0; r < (block); r++) {                                                            \
        vf a = v[r], b = v[r + (block)];                                                           \
        v[r] = max_f(SHUFFLE(a, b, LOW_##block), SHUFFLE(a, b, HIGH_##block));                     \
    }
static vf max_lanes_16(vf v[LANES])
{
    MAX_ROUND(8) MAX_ROUND(4) MAX_ROUND(2) MAX_ROUND(1) return v[0];
}
/* x where bit i of `bits` is set for lane i, else `otherwise`. */
INLINE vf where_bits(uint32_t bits, vf x, float otherwise)
{
#if defined(__AVX512F__)
    return (vf)_mm512_mask_blend_ps((__mmask16)bits, _mm512_set1_ps(otherwise), (__m512)x);
#else
    vi on = (vi)((bits >> (vu)lane_index() & 1u) == 1u - (vu){0});
    return select_f(on, x, splat(otherwise));
#endif
}
static void tiles_poll(const struct ku_attn_tile *t) /* the hook may change the tiles */
{
    TILE_RELEASE();
    ku_pool_poll(t->pool, t->thread);
    amx_configure(AMX_SIDE, AMX_SIDE);
}
INLINE struct matrix rows_of(const struct ku_attn_tile *t, const void *x, int64_t ld, int64_t from,
                             int64_t n)
{
    return (struct matrix){(const uint16_t *)x + from * ld, ld, n, t->d};
}

/* -- forward -- */

/* A tile of queries and its state across tiles of keys. */
struct query_block {
    struct ku_attn_tile t;
    float *o, *sum, *top; /* [QUERIES][d_pad]; [QUERIES][LANES]: not yet added; [QUERIES] */
    uint32_t *q;          /* ROWS */
    int64_t n_q;
    int add;
};
/* For all tiles of queries in turn. */
struct forward_buffers {
    float *s;            /* [QUERIES][TILE_KEYS] */
    uint32_t *p, *k, *v; /* P: ROWS; K: TURNED; V: ZIPPED */
    uint32_t *keep, *sees;
    int64_t steps, d_pad;
    int is_packed; /* k and v hold the current keys */
};
static void block_begin(const struct ku_attn_tile *t, int64_t q0, struct query_block *b, float **at)
{
    const int64_t d_pad = (t->d + 31) / 32 * 32;
    *b = (struct query_block){.t = *t, .n_q = t->t - q0 < QUERIES ? t->t - q0 : QUERIES};
    b->t.q0 = q0;
    b->o = *at, b->sum = b->o + QUERIES * d_pad, b->top = b->sum + QUERIES * LANES;
    b->q = (uint32_t *)(void *)(b->top + QUERIES);
    *at = (float *)(void *)(b->q + QUERIES * d_pad / 2);
    pack_rows_tiles(rows_of(t, t->q, t->ld_q, q0, b->n_q), b->q);
    memset(b->sum, 0, QUERIES * LANES * sizeof *b->sum);
    for (int i = 0; i < QUERIES; i++)
        b->top[i] = -INFINITY;
}

/* Bit k % 32 of sees[k / 32 * QUERIES + q]: query q0 + q sees key k0 + k, which exists. */
static void tiles_sees(const struct ku_attn_tile *t, int64_t n_q, int64_t k0, int64_t n_keys,
                       int mixed, uint32_t *sees)
{
    for (int64_t q = 0; q < n_q; q++) {
        const int64_t own = t->q0 + q + t->offset, last = own - k0 + 1;
        const int64_t n = t->causal && last < n_keys ? last : n_keys;
        for (int64_t k = 0; k < n_keys; k += 32) {
            uint32_t bits = n - k >= 32 ? ~(uint32_t)0 : n > k ? ((uint32_t)1 << (n - k)) - 1 : 0;
            for (int64_t i = 0; mixed && i < 32 && k + i < n; i++)
                if (t->segment[k0 + k + i] != t->segment[own])
                    bits &= ~((uint32_t)1 << i);
            sees[k / 32 * QUERIES + q] = bits;
        }
    }
}

/*
 * S to P for sixteen queries from query `at`. Updates the running max (of s factor, factor = scale
 * log2 e) and sums; shrunk: the factor that rescales each row of O.
 */
INLINE void softmax_16(const struct ku_attn_tile *t, const struct forward_buffers *u,
                       struct query_block *b, int64_t at, int64_t n_keys, int edge, int drop,
                       float *shrunk)
{
    const vf factor = splat(t->scale * LOG2_E);
    const int64_t rows = b->n_q - at < LANES ? b->n_q - at : LANES;
    float top[LANES];
    vf m[LANES], old = load(KUMI_F32, b->top, at);
    for (int64_t r = 0; r < LANES; r++)
        m[r] = splat(-INFINITY);
    for (int64_t r = 0; r < rows; r++) {
        const float *s = u->s + (at + r) * TILE_KEYS;
        vf m0 = m[r], m1 = m0;
        for (int64_t k = 0; k < n_keys; k += 32) {
            vf x0 = load(KUMI_F32, s, k) * factor, x1 = load(KUMI_F32, s, k + LANES) * factor;
            if (edge) {
                const uint32_t see = u->sees[k / 32 * QUERIES + at + r];
                x0 = where_bits(see, x0, -INFINITY);
                x1 = where_bits(see >> 16, x1, -INFINITY);
            }
            m0 = max_f(x0, m0), m1 = max_f(x1, m1);
        }
        m[r] = max_f(m0, m1);
    }
    vf now = max_f(max_lanes_16(m), old);
    store(KUMI_F32, b->top, at, now);
    now = select_f(now > splat(-INFINITY), now, (vf){0}); /* a query that has seen no key yet */
    store(KUMI_F32, top, 0, now);
    store(KUMI_F32, shrunk, at, exp2_f(max_f(old - now, EXP2_ZERO)));
    for (int64_t r = 0; r < rows; r++) {
        const float *s = u->s + (at + r) * TILE_KEYS;
        uint32_t *p = u->p + at / LANES * (TILE_KEYS / 32) * TILE + r * LANES;
        const vf less = splat(top[r]);
        vf l = load(KUMI_F32, b->sum, (at + r) * LANES) * shrunk[at + r];
        for (int64_t k = 0; k < n_keys; k += 32) {
            const int64_t bit = k / 32 * QUERIES + at + r;
            vf w[2];
            UNROLL
            for (int i = 0; i < 2; i++) {
                vf x = load(KUMI_F32, s, k + i * LANES) * factor - less;
                w[i] = exp2_f(max_f(EXP2_ZERO, x)); /* a NaN stays */
                if (edge)
                    w[i] = where_bits(u->sees[bit] >> i * LANES, w[i], 0);
                l += w[i];
                if (drop)
                    w[i] = keep_lanes(w[i], u->keep[bit] >> i * LANES & 0xffff, t->drop->scale);
            }
            *(vu_mem *)(p + k / 32 * TILE) = round_row(w[0], w[1]);
        }
        store(KUMI_F32, b->sum, (at + r) * LANES, l);
    }
}
static __attribute__((noinline)) void tiles_softmax(const struct forward_buffers *u,
                                                    struct query_block *b, int64_t n_keys, int edge,
                                                    float *shrunk)
{
    const struct ku_attn_tile *t = &b->t;
    for (int64_t at = 0; at < b->n_q; at += LANES) {
        if (!edge && !t->drop)
            softmax_16(t, u, b, at, n_keys, 0, 0, shrunk);
        else if (!t->drop)
            softmax_16(t, u, b, at, n_keys, 1, 0, shrunk);
        else if (!edge)
            softmax_16(t, u, b, at, n_keys, 0, 1, shrunk);
        else
            softmax_16(t, u, b, at, n_keys, 1, 1, shrunk);
    }
}
/* One tile of queries against the n_tile keys from k0 on. */
static void block_keys(struct query_block *b, struct forward_buffers *u, int64_t k0, int64_t n_tile)
{
    const struct ku_attn_tile *t = &b->t;
    const int64_t n_keys = seen_keys(t, t->q0 + b->n_q, k0, n_tile), n_steps = (n_keys + 31) / 32;
    const int meet = n_keys <= 0 ? APART : segments_of(t, t->q0, b->n_q, k0, n_keys);
    const int edge =
        (t->causal && k0 + n_keys > t->q0 + t->offset + 1) || n_keys % 32 || meet == MIXED;
    float shrunk[QUERIES];
    if (meet == APART)
        return;
    if (!u->is_packed) {
        pack_turned(rows_of(t, t->k, t->ld_k, k0, n_tile), u->k);
        pack_zipped(rows_of(t, t->v, t->ld_k, k0, n_tile), u->v);
        u->is_packed = 1;
    }
    for (int64_t k = 0; k < n_steps; k++)
        tiles_product((struct factor){b->q, u->steps, 1},
                      (struct factor){u->k + 2 * k * u->steps * TILE, u->steps, 1}, u->steps,
                      u->s + k * 32, TILE_KEYS, 0);
    if (edge)
        tiles_sees(t, b->n_q, k0, n_keys, meet == MIXED, u->sees);
    if (t->drop)
        draw_keep(t, t->q0, b->n_q, k0, n_keys, u->keep, QUERIES);
    tiles_softmax(u, b, n_keys, edge, shrunk);
    for (int64_t q = 0; b->add && q < b->n_q; q++)
        for (int64_t j = 0; shrunk[q] != 1 && j < u->d_pad; j += LANES) {
            float *o = b->o + q * u->d_pad;
            store(KUMI_F32, o, j, load(KUMI_F32, o, j) * shrunk[q]);
        }
    for (int64_t j = 0; j < u->steps; j++)
        tiles_product((struct factor){u->p, TILE_KEYS / 32, 1},
                      (struct factor){u->v + 2 * j * TILE, 1, 2 * u->steps}, n_steps, b->o + j * 32,
                      u->d_pad, b->add);
    b->add = 1;
}
static void block_end(struct query_block *b, int64_t d_pad)
{
    const struct ku_attn_tile *t = &b->t;
    float over[QUERIES];
    for (int64_t at = 0; at < b->n_q; at += LANES) {
        const int64_t left = b->n_q - at;
        vf v[LANES];
        for (int i = 0; i < LANES; i++)
            v[i] = load(KUMI_F32, b->sum, (at + i) * LANES);
        const vf sum = sum_lanes_16(v), top = load(KUMI_F32, b->top, at);
        const vi none = sum == (vf){0};
        store(KUMI_F32, over, at, select_f(none, (vf){0}, 1.0f / sum));
        store_n(KUMI_F32, t->lse, t->q0 + at, left < LANES ? left : LANES,
                select_f(none, splat(-INFINITY), (top + log2_f(sum)) * (1 / LOG2_E)));
    }
    if (!b->add) /* no key at all */
        memset(b->o, 0, (size_t)(d_pad * QUERIES) * sizeof *b->o);
    put_tile_sums(b->o, d_pad, b->n_q, t->d, over,
                  (uint16_t *)element_out(t, t->out, t->q0 * t->ld_o), t->ld_o);
}
static void tiles_forward(const struct ku_attn_tile *t)
{
    struct query_block block[TILE_BLOCKS];
    struct forward_buffers u = {.steps = (t->d + 31) / 32, .d_pad = (t->d + 31) / 32 * 32};
    float *at = t->scratch;
    int n = 0;
    for (; n < TILE_BLOCKS && t->q0 + n * QUERIES < t->t; n++)
        block_begin(t, t->q0 + n * QUERIES, &block[n], &at);
    u.s = at;
    u.p = (uint32_t *)(void *)(u.s + QUERIES * TILE_KEYS);
    u.k = u.p + QUERIES * TILE_KEYS / 2;
    u.v = u.k + TILE_KEYS * u.d_pad / 2;
    u.keep = u.v + TILE_KEYS * u.d_pad / 2;
    u.sees = u.keep + KEEP_WORDS;
    const struct query_block *last = &block[n - 1];
    const int64_t end = seen_keys(t, last->t.q0 + last->n_q, 0, t->n_seen);
    amx_configure(AMX_SIDE, AMX_SIDE);
    for (int64_t k0 = 0; k0 < end; k0 += TILE_KEYS) {
        u.is_packed = 0;
        for (int i = 0; i < n; i++)
            block_keys(&block[i], &u, k0, end - k0 < TILE_KEYS ? end - k0 : TILE_KEYS);
        tiles_poll(t);
    }
    TILE_RELEASE();
    for (int i = 0; i < n; i++)
        block_end(&block[i], u.d_pad);
}
