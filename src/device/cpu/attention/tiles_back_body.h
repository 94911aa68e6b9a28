/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of attention on matrix tiles: tiles_body.h has the layouts. Tiles of BACK_KEYS keys in
 * turn, each against all tiles of BACK_QUERIES queries of the heads that read it; in one of those,
 * scores and their gradients are computed 32 x 32 at a time.
 */
enum {
    BACK_KEYS = 128,
    BACK_QUERIES = 64,
    KEY_GROUPS = BACK_KEYS / 32,
    QUERY_GROUPS = BACK_QUERIES / 32,
    BACK_SLOTS = 128 /* max */
};

/* Packed queries: Q and dO. */
struct query_slot {
    uint32_t *q_turned, *do_turned, *q_zipped, *do_zipped;
};
struct tiles_back {
    float *s, *dp;   /* [32 keys][32 queries] */
    float *dk, *dv;  /* [BACK_KEYS][d_pad] */
    float *last;     /* rows of dQ^T from a d that is no multiple of 32 on */
    uint32_t *k, *v; /* ROWS */
    uint32_t *kt;    /* COLUMNS */
    /* P^T and dS^T: ROWS, pairs along queries; dS^T: ZIPPED, pairs along keys. */
    uint32_t *p_row, *ds_row, *ds;
    uint32_t *keep; /* [QUERY_GROUPS][KEEP_WORDS] */
    uint32_t *slots;
    int64_t steps, d_pad, slot_units, n_slots;
    int64_t n_set;               /* groups of keys whose dk and dv hold sums */
    int64_t in_slot[BACK_SLOTS]; /* number of the tile of queries; -1: none */
};
static void back_scratch(const struct ku_attn_tile *t, struct tiles_back *b)
{
    const int64_t steps = (t->d + 31) / 32, d_pad = steps * 32;
    uint32_t *at = (uint32_t *)(void *)t->scratch;
    *b =
        (struct tiles_back){.steps = steps, .d_pad = d_pad, .slot_units = 2 * BACK_QUERIES * d_pad};
#define TAKE(name, count) b->name = (void *)at, at += (count)
    TAKE(s, 32 * 32);
    TAKE(dp, 32 * 32);
    TAKE(dk, BACK_KEYS * d_pad);
    TAKE(dv, BACK_KEYS * d_pad);
    TAKE(last, 32 * 32);
    TAKE(k, BACK_KEYS * d_pad / 2);
    TAKE(v, BACK_KEYS * d_pad / 2);
    TAKE(kt, BACK_KEYS * d_pad / 2);
    TAKE(p_row, BACK_KEYS * BACK_QUERIES / 2);
    TAKE(ds_row, BACK_KEYS * BACK_QUERIES / 2);
    TAKE(ds, BACK_KEYS * BACK_QUERIES / 2);
    TAKE(keep, QUERY_GROUPS * KEEP_WORDS);
    b->slots = at;
#undef TAKE
    const int64_t room = KU_CPU_SCRATCH_BYTES / 4 - ((float *)(void *)at - t->scratch);
    b->n_slots = room / b->slot_units < BACK_SLOTS ? room / b->slot_units : BACK_SLOTS;
    for (int64_t i = 0; i < b->n_slots; i++)
        b->in_slot[i] = -1;
}
/*
 * Tile `number` of queries, of all heads: each has a slot as far as there are slots, and the others
 * share the last one.
 */
static struct query_slot slot_of(const struct ku_attn_tile *t, struct tiles_back *b, int64_t number,
                                 int64_t q0, int64_t n_q)
{
    const int64_t i = number < b->n_slots ? number : b->n_slots - 1, units = b->slot_units / 4;
    uint32_t *at = b->slots + i * b->slot_units;
    const struct query_slot slot = {at, at + units, at + 2 * units, at + 3 * units};
    if (b->in_slot[i] != number) {
        pack_both_ways(rows_of(t, t->q, t->ld_q, q0, n_q), slot.q_turned, slot.q_zipped);
        pack_both_ways(rows_of(t, t->d_out, t->ld_o, q0, n_q), slot.do_turned, slot.do_zipped);
        b->in_slot[i] = number;
    }
    return slot;
}

/* delta[query] = sum of dO O. */
static void tiles_delta(const struct ku_attn_tile *t)
{
    const uint16_t *o = t->o, *d_o = t->d_out;
    float *delta = delta_of(t);
    for (int64_t q = 0; q < t->t; q += LANES) {
        const int64_t n = t->t - q < LANES ? t->t - q : LANES;
        vf v[LANES];
        for (int64_t i = 0; i < LANES; i++) {
            vf even = {0}, odd = {0};
            for (int64_t j = 0; i < n && j < t->d; j += 2 * LANES) {
                const vu x = row_units(o + (q + i) * t->ld_o + j, t->d - j);
                const vu y = row_units(d_o + (q + i) * t->ld_o + j, t->d - j);
                even += (vf)(x << 16) * (vf)(y << 16);
                odd += (vf)(x & 0xffff0000u) * (vf)(y & 0xffff0000u);
            }
            v[i] = even + odd;
        }
        store_n(KUMI_F32, delta, q, n, sum_lanes_16(v));
    }
}

/* Sixteen queries, one per lane. */
struct back_lanes {
    vf lse, delta; /* lse log2 e; delta scale */
    struct lanes at;
};
/*
 * P^T and dS^T of 32 keys x 32 queries from S^T and dP^T, n_keys of which exist; the rows of the
 * others are zero.
 */
INLINE void adjoint_32(const struct ku_attn_tile *t, const struct tiles_back *b,
                       const struct back_lanes lane[2], int64_t k0, int64_t key, int64_t group,
                       int64_t n_keys, int edge, int drop)
{
    const vf factor = splat(t->scale * LOG2_E), scale = splat(t->scale);
    const uint32_t *keep = b->keep + group * KEEP_WORDS;
    uint32_t *ds = b->ds + (key / 32 * 2 * QUERY_GROUPS + 2 * group) * TILE;
    for (int64_t k = 0; k < 32; k += 2) {
        vf d[2][2]; /* [key][half] */
        UNROLL
        for (int64_t i = 0; i < 2; i++) {
            const int64_t at = (k + i) * 32;
            const int64_t to =
                (((key + k) / LANES * QUERY_GROUPS + group) * LANES + (k + i) % LANES) * LANES;
            vf p[2];
            UNROLL
            for (int h = 0; h < 2; h++) {
                vf x = load(KUMI_F32, b->s + at, h * LANES) * factor - lane[h].lse;
                vf y = load(KUMI_F32, b->dp + at, h * LANES);
                vf w = exp2_f(max_f(EXP2_ZERO, x)); /* a NaN stays */
                if (edge) {
                    vi sees = {0};
                    if (k + i < n_keys)
                        sees = visible(t, &lane[h].at, k0 + key + k + i);
                    w = select_f(sees, w, (vf){0});
                }
                p[h] = w;
                if (drop) {
                    y = drop_key(t, keep, QUERIES, key + k + i, h * LANES, y);
                    p[h] = drop_key(t, keep, QUERIES, key + k + i, h * LANES, w);
                }
                d[i][h] = w * (y * scale - lane[h].delta);
            }
            *(vu_mem *)(b->p_row + to) = round_row(p[0], p[1]);
            *(vu_mem *)(b->ds_row + to) = round_row(d[i][0], d[i][1]);
        }
        for (int h = 0; h < 2; h++)
            *(vu_mem *)(ds + h * TILE + k / 2 * LANES) = round_lanes(d[0][h], d[1][h]);
    }
}
static __attribute__((noinline)) void tiles_adjoint(const struct ku_attn_tile *t,
                                                    const struct tiles_back *b,
                                                    const struct back_lanes lane[2], int64_t k0,
                                                    int64_t key, int64_t group, int64_t n_keys,
                                                    int edge)
{
    if (!edge && !t->drop)
        adjoint_32(t, b, lane, k0, key, group, n_keys, 0, 0);
    else if (!t->drop)
        adjoint_32(t, b, lane, k0, key, group, n_keys, 1, 0);
    else
        adjoint_32(t, b, lane, k0, key, group, n_keys, 1, 1);
}

/* The same if no query sees any of the keys. */
static void back_unseen(const struct tiles_back *b, int64_t key, int64_t group)
{
    for (int i = 0; i < 2; i++) {
        const int64_t at = ((key / LANES + i) * QUERY_GROUPS + group) * TILE;
        memset(b->p_row + at, 0, TILE * sizeof *b->p_row);
        memset(b->ds_row + at, 0, TILE * sizeof *b->ds_row);
    }
    memset(b->ds + (key / 32 * 2 * QUERY_GROUPS + 2 * group) * TILE, 0, 2 * TILE * sizeof *b->ds);
}

/* P^T and dS^T of 32 queries from q0 on, group `group` of their tile, and n_keys keys. */
static void back_scores(const struct ku_attn_tile *t, const struct tiles_back *b,
                        const struct query_slot *slot, int64_t q0, int64_t group, int64_t k0,
                        int64_t n_keys, int mixed)
{
    const int64_t across = b->steps * TILE;
    struct back_lanes lane[2];
    for (int h = 0; h < 2; h++) {
        const int64_t from = q0 + h * LANES, left = t->t - from;
        const int64_t some = left < 0 ? 0 : left < LANES ? left : LANES;
        lane[h].lse = load_n(KUMI_F32, t->lse + q0, h * LANES, some) * LOG2_E;
        lane[h].delta = load_n(KUMI_F32, delta_of(t) + q0, h * LANES, some) * t->scale;
        lane[h].at = lanes_of(t, from);
    }
    for (int64_t key = 0; key < n_keys; key += 32) {
        const int64_t n = n_keys - key < 32 ? n_keys - key : 32;
        const int edge = n < 32 || (t->causal && k0 + key + 32 > q0 + t->offset + 1) ||
                         q0 + QUERIES > t->t || mixed;
        const int64_t left = key / LANES * across, right = 2 * group * across;
        if (t->causal && k0 + key > q0 + QUERIES - 1 + t->offset) {
            back_unseen(b, key, group);
            continue;
        }
        tiles_product((struct factor){b->k + left, b->steps, 1},
                      (struct factor){slot->q_turned + right, b->steps, 1}, b->steps, b->s, 32, 0);
        tiles_product((struct factor){b->v + left, b->steps, 1},
                      (struct factor){slot->do_turned + right, b->steps, 1}, b->steps, b->dp, 32,
                      0);
        tiles_adjoint(t, b, lane, k0, key, group, n, edge);
    }
}
/* dV += P^T dO, dK += dS^T Q of the groups of keys. */
static void back_keys(struct tiles_back *b, const struct query_slot *slot, int64_t n_key_groups,
                      int64_t n_groups)
{
    for (int64_t g = 0; g < n_key_groups; g++)
        for (int64_t j = 0; j < b->steps; j++) {
            const int64_t left = 2 * g * QUERY_GROUPS * TILE, right = 2 * j * TILE;
            const int64_t to = 32 * (g * b->d_pad + j);
            tiles_product((struct factor){b->p_row + left, QUERY_GROUPS, 1},
                          (struct factor){slot->do_zipped + right, 1, 2 * b->steps}, n_groups,
                          b->dv + to, b->d_pad, g < b->n_set);
            tiles_product((struct factor){b->ds_row + left, QUERY_GROUPS, 1},
                          (struct factor){slot->q_zipped + right, 1, 2 * b->steps}, n_groups,
                          b->dk + to, b->d_pad, g < b->n_set);
        }
    b->n_set = n_key_groups > b->n_set ? n_key_groups : b->n_set;
}
/* dQ^T[d][32] += K^T dS^T of group `group` of a tile of queries. */
static void back_query(const struct ku_attn_tile *t, const struct tiles_back *b, int64_t group,
                       int64_t n_key_groups, float *dq, int add)
{
    for (int64_t j = 0; j < b->steps; j++) {
        const int64_t rows = t->d - 32 * j;
        const struct factor k = {b->kt + 2 * j * TILE, 1, 2 * b->steps};
        const struct factor ds = {b->ds + 2 * group * TILE, 1, 2 * QUERY_GROUPS};
        float *to = dq + j * 32 * 32;
        if (rows >= 32) {
            tiles_product(k, ds, n_key_groups, to, 32, add);
            continue;
        }
        memcpy(b->last, to, (size_t)rows * 32 * sizeof *to);
        tiles_product(k, ds, n_key_groups, b->last, 32, add);
        memcpy(to, b->last, (size_t)rows * 32 * sizeof *to);
    }
}
/* Queries from q0 on of head h against one tile of keys. */
static void tiles_queries(const struct ku_attn_tile *t, struct tiles_back *b, int64_t h, int64_t q0,
                          int64_t k0, int64_t n_tile, int add)
{
    const int64_t n_q = t->t - q0 < BACK_QUERIES ? t->t - q0 : BACK_QUERIES;
    const int64_t n_keys = seen_keys(t, q0 + n_q, k0, n_tile);
    const int meet = n_keys <= 0 ? APART : segments_of(t, q0, n_q, k0, n_keys);
    const int64_t n_groups = (n_q + 31) / 32, n_key_groups = (n_keys + 31) / 32;
    const int64_t number = (h * t->t + (h + 1) * (BACK_QUERIES - 1) + q0) / BACK_QUERIES;
    if (meet == APART)
        return;
    const struct query_slot slot = slot_of(t, b, number, q0, n_q);
    for (int64_t g = 0; g < n_groups; g++) {
        const int64_t from = q0 + g * 32, n = t->t - from < 32 ? t->t - from : 32;
        if (t->drop)
            draw_keep(t, from, n, k0, n_keys, b->keep + g * KEEP_WORDS, QUERIES);
        back_scores(t, b, &slot, from, g, k0, n_keys, meet == MIXED);
    }
    back_keys(b, &slot, n_key_groups, n_groups);
    for (int64_t g = 0; g < n_groups; g++)
        back_query(t, b, g, n_key_groups, t->sum + (q0 + g * 32) * t->d, add);
}

/* Rows of dQ from dQ^T. */
static void put_queries(const struct ku_attn_tile *t)
{
    for (int64_t q = 0; q < t->t; q += LANES) {
        const float *from = t->sum + q / 32 * 32 * t->d + q % 32;
        uint16_t *to = (uint16_t *)t->dq + q * t->ld_q;
        for (int64_t j = 0; j < t->d; j += 2 * LANES) {
            vu v[2][LANES];
            UNROLL
            for (int h = 0; h < 2; h++) {
                for (int64_t i = 0; i < LANES; i++)
                    v[h][i] = j + h * LANES + i < t->d
                                  ? (vu)load(KUMI_F32, from, (j + h * LANES + i) * 32)
                                  : (vu){0};
                transpose_16(v[h]);
            }
            for (int64_t i = 0; i < LANES && q + i < t->t; i++)
                put_row(to + i * t->ld_q + j, round_row((vf)v[0][i], (vf)v[1][i]), t->d - j);
        }
    }
}
static void tiles_backward(const struct ku_attn_tile *t)
{
    const int is_zero_first = is_zeroed(t) || t->offset < 0; /* a query may see no key */
    struct tiles_back b;
    back_scratch(t, &b);
    for (int64_t h = 0; h < t->n_heads; h++) {
        const struct ku_attn_tile one = head_of(t, h);
        tiles_delta(&one);
        if (is_zero_first)
            memset(one.sum, 0, (size_t)(delta_of(&one) - one.sum) * sizeof *one.sum);
    }
    amx_configure(AMX_SIDE, AMX_SIDE);
    for (int64_t k0 = 0; k0 < t->n_seen; k0 += BACK_KEYS) {
        const int64_t n_keys = t->n_seen - k0 < BACK_KEYS ? t->n_seen - k0 : BACK_KEYS;
        const int64_t first = t->causal && k0 > t->offset ? k0 - t->offset : 0;
        pack_left(rows_of(t, t->k, t->ld_k, k0, n_keys), b.k, b.kt);
        pack_rows_tiles(rows_of(t, t->v, t->ld_k, k0, n_keys), b.v);
        b.n_set = 0;
        for (int64_t h = 0; h < t->n_heads; h++) {
            const struct ku_attn_tile one = head_of(t, h);
            for (int64_t q0 = first / BACK_QUERIES * BACK_QUERIES; q0 < t->t; q0 += BACK_QUERIES)
                tiles_queries(&one, &b, h, q0, k0, n_keys, k0 > 0 || is_zero_first);
            tiles_poll(t);
        }
        const int64_t set = 32 * b.n_set < n_keys ? 32 * b.n_set : n_keys;
        memset(b.dk + set * b.d_pad, 0, (size_t)((n_keys - set) * b.d_pad) * sizeof *b.dk);
        memset(b.dv + set * b.d_pad, 0, (size_t)((n_keys - set) * b.d_pad) * sizeof *b.dv);
        put_tile_sums(b.dk, b.d_pad, n_keys, t->d, NULL, (uint16_t *)t->dk + k0 * t->ld_k, t->ld_k);
        put_tile_sums(b.dv, b.d_pad, n_keys, t->d, NULL, (uint16_t *)t->dv + k0 * t->ld_k, t->ld_k);
    }
    TILE_RELEASE();
    put_unseen_keys(t);
    for (int64_t h = 0; h < t->n_heads; h++) {
        const struct ku_attn_tile one = head_of(t, h);
        put_queries(&one);
    }
}
