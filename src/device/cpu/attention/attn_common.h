/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by attention in f32 (attn_body.h) and in dot-product pairs (dot_pairs_body.h): dropout
 * bits, masks and the buffers of the backward pass.
 */
#if !defined(ATTN_KEYS)
#define ATTN_KEYS                                                                                  \
    112 /* 8 x 14 rows, 4 x 28 of Philox blocks; K, V, dK, dV tiles: 28 KiB each at d = 64 */
#endif
enum { KEYS = ATTN_KEYS };
enum { QUERIES = GEMM_NR };

INLINE const void *element(const struct ku_attn_tile *t, const void *x, int64_t i)
{
    return (const char *)x + i * bytes_of(t->dtype);
}
INLINE void *element_out(const struct ku_attn_tile *t, void *x, int64_t i)
{
    return (char *)x + i * bytes_of(t->dtype);
}

/*
 * Vectors, and lanes of a vector, that a tile of queries occupies: GEMM_NR may be 8.
 */
#define PARTS      ((int)QUERIES < (int)LANES ? 1 : (int)QUERIES / (int)LANES)
#define LANE_COUNT ((int)QUERIES < (int)LANES ? (int)QUERIES : (int)LANES)

enum { KEEP_WORDS = (KEYS + 31) / 32 * QUERIES };
/*
 * Bit k % 32 of keep[k / 32 * width + q] is set if query q0 + q keeps global element (n, h, query,
 * k0 + k). Rows of up to 64 keys are drawn as one run, longer ones row by row.
 */
static void draw_keep(const struct ku_attn_tile *t, int64_t q0, int64_t n_q, int64_t k0,
                      int64_t n_keys, uint32_t *keep, int64_t width)
{
    uint64_t bits[64 * QUERIES / 64 + 2] = {0};
    const int64_t at_once = t->s <= 64 ? n_q : 1;
    for (int64_t q = 0; q < n_q; q += at_once) {
        const uint64_t first = t->drop_first + (uint64_t)((q0 + q) * t->s + k0);
        keep_bits(t->drop, first, (at_once - 1) * t->s + n_keys, bits);
        for (int64_t i = 0; i < at_once; i++)
            for (int64_t k = 0; k < n_keys; k += 32)
                keep[k / 32 * width + q + i] = bits_at(bits, (int64_t)(first % 4) + i * t->s + k);
    }
}
/* x of lanes from `at` on, times 1 / (1 - p) or 0 by the bit of key k. */
INLINE vf drop_key(const struct ku_attn_tile *t, const uint32_t *keep, int64_t width, int64_t k,
                   int64_t at, vf x)
{
    const uint32_t *word = keep + k / 32 * width, bit = (uint32_t)1 << k % 32;
#if defined(__AVX512F__)
    const __mmask16 on = _mm512_test_epi32_mask(*(const __m512i_u *)(const void *)(word + at),
                                                _mm512_set1_epi32((int)bit));
    return (vf)_mm512_maskz_mul_ps(on, (__m512)x, _mm512_set1_ps(t->drop->scale));
#else
    vu w = (vu)load_n(KUMI_F32, word, at, LANE_COUNT);
    return select_f((vi)((w & bit) != (vu){0}), x * t->drop->scale, (vf){0});
#endif
}

/* Queries, one per lane: whether they exist, their key positions and their segments. */
struct lanes {
    vi in, at, segment;
};
INLINE struct lanes lanes_of(const struct ku_attn_tile *t, int64_t q0)
{
    vi q = lane_index() + (int32_t)q0;
    struct lanes l = {q < (int32_t)t->t - (vi){0}, q + (int32_t)t->offset, {0}};
    for (int i = 0; t->segment && i < LANES && q0 + i < t->t; i++)
        l.segment[i] = t->segment[t->offset + q0 + i];
    return l;
}
/* The lanes whose query sees key k. */
INLINE vi visible(const struct ku_attn_tile *t, const struct lanes *l, int64_t k)
{
    vi in = t->causal ? l->in & (l->at >= (int32_t)k - (vi){0}) : l->in;
    return t->segment ? in & (l->segment == t->segment[k] - (vi){0}) : in;
}

#define LOG2_E 1.44269504088896341f
/*
 * log2 x, relative error below 2e-7, for normal x. x = 2^n m with sqrt(1/2) <= m < sqrt(2); with f
 * = (m - 1) / (m + 1), log m = 2 atanh f, by the series to f^9 (the next term is below 4e-9 f).
 */
INLINE vf log2_f(vf x)
{
    const vi up = (vi)x - 0x3f3504f3; /* sqrt(1/2) */
    const vf n = __builtin_convertvector(up >> 23, vf);
    const vf m = (vf)((up & 0x7fffff) + 0x3f3504f3), f = (m - 1.0f) / (m + 1.0f), f2 = f * f;
    vf p = splat(1.0f / 9);
    p = p * f2 + 1.0f / 7;
    p = p * f2 + 1.0f / 5;
    p = p * f2 + 1.0f / 3;
    p = p * f2 + 1.0f;
    return select_f(is_nan(x), x, n + p * f * (2 * LOG2_E)); /* a NaN stays */
}

/* 2^(s factor - top), 0 where the query does not see the key; x = s factor - top <= 0. */
INLINE vf weight(vf x, int edge, vi looks)
{
    vf p = exp2_f(max_f(EXP2_ZERO, x)); /* a NaN stays */
    return edge ? select_f(looks, p, (vf){0}) : p;
}

/* The number of keys of [k0, k0 + n) that queries before q_end can see. */
INLINE int64_t seen_keys(const struct ku_attn_tile *t, int64_t q_end, int64_t k0, int64_t n)
{
    return t->causal && q_end + t->offset - k0 < n ? q_end + t->offset - k0 : n;
}
/* Start of the first tile of queries that sees key k0 or a later one. */
INLINE int64_t first_query(const struct ku_attn_tile *t, int64_t k0)
{
    return t->causal && k0 > t->offset ? (k0 - t->offset) / QUERIES * QUERIES : 0;
}

struct range {
    int32_t least, most;
};
static struct range range_of(const int32_t *segment, int64_t n)
{
    struct range r = {segment[0], segment[0]};
    for (int64_t i = 1; i < n; i++) {
        r.least = segment[i] < r.least ? segment[i] : r.least;
        r.most = segment[i] > r.most ? segment[i] : r.most;
    }
    return r;
}
/*
 * Overlap of queries and keys by segments. APART: no query sees any key; MIXED: needs a mask;
 * TOGETHER: every query sees every key.
 */
enum { APART, MIXED, TOGETHER };
static int segments_of(const struct ku_attn_tile *t, int64_t q0, int64_t n_q, int64_t k0,
                       int64_t n_keys)
{
    if (t->segment == NULL)
        return TOGETHER;
    struct range q = range_of(t->segment + t->offset + q0, n_q);
    struct range k = range_of(t->segment + k0, n_keys);
    if (q.most < k.least || k.most < q.least)
        return APART;
    return q.least == k.most && k.least == q.most ? TOGETHER : MIXED;
}

/* The i-th query head of a backward tile. */
static struct ku_attn_tile head_of(const struct ku_attn_tile *t, int64_t i)
{
    struct ku_attn_tile one = *t;
    one.q = element(t, t->q, i * t->d);
    one.o = element(t, t->o, i * t->d);
    one.d_out = element(t, t->d_out, i * t->d);
    one.dq = element_out(t, t->dq, i * t->d);
    one.lse = t->lse + i * t->t;
    one.sum = t->sum + i * ku_attn_sum_count(t->t, t->d);
    one.drop_first = t->drop_first + (uint64_t)(i * t->t * t->s);
    return one;
}
static float *delta_of(const struct ku_attn_tile *t)
{
    return t->sum + (t->t + QUERIES - 1) / QUERIES * QUERIES * t->d;
}

/* delta[query] = sum of dO O. */
static void sum_out_d_out(const struct ku_attn_tile *t)
{
    float *delta = delta_of(t);
    for (int64_t q = 0; q < t->t; q++) {
        const void *o = element(t, t->o, q * t->ld_o), *d_o = element(t, t->d_out, q * t->ld_o);
        vf s = {0};
        BY_DTYPE(t->dtype, FOR_VECTORS(t->d, s += LOAD(T, o) * LOAD(T, d_o)));
        delta[q] = sum_lanes(s);
    }
}

/* Whether dq starts from zeros: the first tile of keys need not write all of it. */
INLINE int is_zeroed(const struct ku_attn_tile *t)
{
    return t->segment != NULL || t->n_seen == 0;
}
KERNEL void begin_heads(const struct ku_attn_tile *t)
{
    for (int64_t h = 0; h < t->n_heads; h++) {
        const struct ku_attn_tile one = head_of(t, h);
        sum_out_d_out(&one);
        if (is_zeroed(t))
            memset(one.sum, 0, (size_t)(delta_of(&one) - one.sum) * sizeof *one.sum);
    }
}

/* Zeros in dK and dV of the keys that no query sees. */
static void put_unseen_keys(const struct ku_attn_tile *t)
{
    const size_t bytes = (size_t)(t->d * bytes_of(t->dtype));
    for (int64_t k = t->n_seen; k < t->s; k++) {
        memset(element_out(t, t->dk, k * t->ld_k), 0, bytes);
        memset(element_out(t, t->dv, k * t->ld_k), 0, bytes);
    }
}
