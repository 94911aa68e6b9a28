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
    const int aligned = t->s % 4 == 0; /* then four keys of a query share one Philox block */
    for (int part = 0; part < PARTS; part++)
        for (int64_t k = 0; k < n_keys; k += aligned ? 4 : 1) {
            vu c0, c1, w[4], word = {0};
            for (int l = 0; l < LANES; l++) {
                uint64_t q = (uint64_t)(q0 + part * LANES + l);
                uint64_t index = t->drop_first + q * (uint64_t)t->s + (uint64_t)(k0 + k);
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

/* Queries, one per lane: the keys where they stand, and their segments. */
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
/* The lanes whose query may look at key k. */
INLINE vi visible(const struct ku_attn_tile *t, const struct lanes *l, int64_t k)
{
    vi in = t->causal ? l->in & (l->at >= (int32_t)k - (vi){0}) : l->in;
    return t->segment ? in & (l->segment == t->segment[k] - (vi){0}) : in;
}

/* Of keys [k0, k0 + n), those that the queries before q_end see. */
INLINE int64_t seen_keys(const struct ku_attn_tile *t, int64_t q_end, int64_t k0, int64_t n)
{
    return t->causal && q_end + t->offset - k0 < n ? q_end + t->offset - k0 : n;
}
/* Where the first tile of queries begins that sees key k0 or one behind it. */
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
/* Whether queries look at keys by their segments: none at any (surely), some, all at all. */
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

/* The i-th head of queries of a tile of the backward pass, alone. */
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
        BY_DTYPE(t->dtype, FOR_VECTORS(t->d, s += LOAD(KUMI_F32, o) * LOAD(KUMI_F32, d_o)),
                 FOR_VECTORS(t->d, s += LOAD(KUMI_BF16, o) * LOAD(KUMI_BF16, d_o)));
        delta[q] = sum_lanes(s);
    }
}

/* The adjoint of q begins with zeros: where a first tile of keys need not write to it. */
INLINE int is_zeroed(const struct ku_attn_tile *t)
{
    return t->segment != NULL || t->n_seen == 0;
}
static void begin_heads(const struct ku_attn_tile *t)
{
    for (int64_t h = 0; h < t->n_heads; h++) {
        const struct ku_attn_tile one = head_of(t, h);
        sum_out_d_out(&one);
        if (is_zeroed(t))
            memset(one.sum, 0, (size_t)(delta_of(&one) - one.sum) * sizeof *one.sum);
    }
}

/* Rows k0 on of dK and dV; and those of keys that nobody sees. */
static void put_keys(const struct ku_attn_tile *t, int64_t k0, int64_t n, const float *dk,
                     const float *dv, int64_t d_pad)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (k0 + i) * t->ld_k;
        cast(element_out(t, t->dk, at), t->dtype, dk + i * d_pad, KUMI_F32, t->d);
        cast(element_out(t, t->dv, at), t->dtype, dv + i * d_pad, KUMI_F32, t->d);
    }
}
static void put_unseen_keys(const struct ku_attn_tile *t)
{
    const size_t bytes = (size_t)t->d * (t->dtype == KUMI_BF16 ? 2 : 4);
    for (int64_t k = t->n_seen; k < t->s; k++) {
        memset(element_out(t, t->dk, k * t->ld_k), 0, bytes);
        memset(element_out(t, t->dv, k * t->ld_k), 0, bytes);
    }
}
