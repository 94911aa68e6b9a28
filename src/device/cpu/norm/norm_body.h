/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batch norm down the columns of rows of channels. Included once per instruction set after
 * elem_body.h (isa_*.c).
 *
 * Columns are processed in pairs of vectors. In bf16 a pair is one vector of memory; its even
 * elements are the first vector, the odd ones the second, so widening is a shift and a mask.
 * Per-channel vectors have the same order (ku_norm_place).
 *
 * Columns that fit the registers are processed in one pass. Of wider rows, four at a time share the
 * loads of the per-channel vectors. These four rows are a quarter of all rows apart: four streams,
 * each sequential in memory. Four adjacent rows, one pair each, run at half the speed or less,
 * because the hardware prefetcher follows a line with the next one.
 */
enum { PAIR = KU_NORM_PAIR };
_Static_assert(PAIR == 2 * LANES, "a pair is two vectors");
#define EACH_PAIR(k, n, v, n_pairs)                                                                \
    for (int64_t k = 0; k < (n); k++)                                                              \
    EACH(v, n_pairs)
#define EACH(v, n)                                                                                 \
    UNROLL                                                                                         \
    for (int v = 0; v < (n); v++)

/*
 * Runs call(p, n, r, step, j, some) for n rows r, r + step, .. of columns from j: p whole pairs, or
 * the rest of one. Machines with narrower vectors lack the registers for two pairs.
 */
#define FOR_COLUMNS(width, call, n, r, step)                                                       \
    do {                                                                                           \
        int64_t j = 0;                                                                             \
        for (; GEMM_BYTES == 64 && j + 2 * PAIR <= (width); j += 2 * PAIR)                         \
            call(2, n, r, step, j, PAIR);                                                          \
        for (; j + PAIR <= (width); j += PAIR)                                                     \
            call(1, n, r, step, j, PAIR);                                                          \
        if (j < (width))                                                                           \
            call(1, n, r, step, j, (width)-j);                                                     \
    } while (0)
#define FOR_ROWS(o, call)                                                                          \
    do {                                                                                           \
        const int64_t quarter = (o)->width > 2 * PAIR ? (o)->n_rows / 4 : 0;                       \
        for (int64_t r = 0; r < quarter; r++)                                                      \
            FOR_COLUMNS((o)->width, call, 4, r, quarter);                                          \
        if (4 * quarter < (o)->n_rows)                                                             \
            FOR_COLUMNS((o)->width, call, (o)->n_rows - 4 * quarter, 4 * quarter, 1);              \
    } while (0)

INLINE void load_pair(vf to[2], enum kumi_dtype t, const void *p, int64_t i, int64_t some)
{
    if (t != KUMI_BF16) {
        const int64_t low = some < LANES ? some : LANES;
        to[0] = low == LANES ? load(t, p, i) : load_n(t, p, i, low);
        to[1] = some == PAIR ? load(t, p, i + LANES)
                             : load_n(t, p, i + low, some - low); /* some - low may be 0 */
        return;
    }
    vu both = {0};
    if (some == PAIR)
        both = *(const vu_mem *)(const void *)((const uint16_t *)p + i);
    else
        memcpy(&both, (const uint16_t *)p + i, (size_t)some * 2);
    to[0] = (vf)(both << 16);
    to[1] = (vf)(both & 0xffff0000u);
}
INLINE void store_bytes(void *p, vu bytes, int64_t n, int is_streamed)
{
#if defined(__AVX512F__)
    if (is_streamed) {
        _mm512_stream_si512((__m512i *)p, (__m512i)bytes);
        return;
    }
#endif
    (void)is_streamed;
    if (n == (int64_t)sizeof bytes)
        *(vu_mem *)p = bytes;
    else
        memcpy(p, &bytes, (size_t)n);
}
/* Stores values that the dtype represents exactly; only f16 goes through a rounding conversion. */
INLINE void store_pair(enum kumi_dtype t, void *p, int64_t i, int64_t some, const vf z[2],
                       int is_streamed)
{
    if (t == KUMI_F32) {
        const int64_t low = some < LANES ? some : LANES;
        store_bytes((float *)p + i, (vu)z[0], low * 4, is_streamed);
        if (some > low)
            store_bytes((float *)p + i + LANES, (vu)z[1], (some - low) * 4, is_streamed);
        return;
    }
    vu both = (vu)z[0] >> 16 | ((vu)z[1] & 0xffff0000u);
    if (t == KUMI_F16) {
        const vh half[2] = {narrow_f16(z[0]), narrow_f16(z[1])};
        memcpy(&both, half, sizeof both);
    }
    store_bytes((uint16_t *)p + i, both, some * 2, is_streamed);
}
/*
 * Rounds to nearest even, as round_upper without its handling of NaNs: NaNs from bf16 inputs and
 * from vectors without payload (ku_norm) are quiet and have zero lower halves.
 */
INLINE vu nearest_upper(vf x)
{
#if defined(__AVX512F__)
    const __m512i u = (__m512i)x, half = _mm512_set1_epi32(0x7fff);
    __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
    __m512i r = _mm512_add_epi32(u, half);
    return (vu)_mm512_mask_sub_epi32(r, odd, r, _mm512_set1_epi32(-1));
#else
    vu u = (vu)x;
    return u + ((u >> 16 & 1u) + 0x7fffu);
#endif
}
INLINE void round_pair(enum kumi_dtype t, vf z[2])
{
    if (t == KUMI_BF16)
        EACH(h, 2) z[h] = (vf)(nearest_upper(z[h]) & 0xffff0000u);
    if (t == KUMI_F16)
        EACH(h, 2) z[h] = rounded(t, z[h]);
}
INLINE void store_rounded(enum kumi_dtype t, void *p, int64_t i, int64_t some, vf z[2],
                          int is_streamed)
{
    if (t == KUMI_BF16)
        store_bytes((uint16_t *)p + i,
                    nearest_upper(z[0]) >> 16 | (nearest_upper(z[1]) & 0xffff0000u), some * 2,
                    is_streamed);
    else
        store_pair(t, p, i, some, z, is_streamed);
}
INLINE void load_vectors(int n_pairs, vf *to, const float *p, int64_t j)
{
    EACH(v, 2 * n_pairs) to[v] = load(KUMI_F32, p, j + v * LANES);
}
INLINE void store_vectors(int n_pairs, float *p, int64_t j, const vf *from)
{
    EACH(v, 2 * n_pairs) store(KUMI_F32, p, j + v * LANES, from[v]);
}
/* Zeroes the columns from `some` on, as load_pair does. */
INLINE void clear_rest(vf v[2], enum kumi_dtype t, int64_t some)
{
    if (some == PAIR)
        return;
    EACH(h, 2)
    {
        int64_t n = t == KUMI_BF16 ? (some - h + 1) / 2 : some - h * LANES;
        v[h] = select_f(first_lanes(n), v[h], (vf){0});
    }
}

/*
 * Sums relative to `mean`, a sample of each column: squares of the differences do not cancel as
 * squares of the elements would.
 */
INLINE void norm_sums_as(const struct ku_norm *o, int p, int64_t n, int64_t r, int64_t step,
                         int64_t j, int64_t some, enum kumi_dtype t)
{
    vf a[4], s[4], q[4], x[2];
    load_vectors(p, a, o->mean, j);
    clear_rest(a, t, some);
    load_vectors(p, s, o->sum, j);
    load_vectors(p, q, o->product, j);
    EACH_PAIR(k, n, v, p)
    {
        load_pair(x, t, o->x, (r + k * step) * o->width + j + v * PAIR, some);
        EACH(h, 2)
        {
            vf d = x[h] - a[2 * v + h];
            s[2 * v + h] += d;
            q[2 * v + h] += d * d;
        }
    }
    store_vectors(p, o->sum, j, s);
    store_vectors(p, o->product, j, q);
}
static void norm_sums(const struct ku_norm *o)
{
#define CALL(p, n, r, step, j, some) norm_sums_as(o, p, n, r, step, j, some, T)
    BY_DTYPE(o->dtype, FOR_ROWS(o, CALL));
#undef CALL
}

INLINE void norm_apply_as(const struct ku_norm *o, int p, int64_t n, int64_t r, int64_t step,
                          int64_t j, int64_t some, enum kumi_dtype t, int has_r, int act)
{
    vf mean[4], scale[4], bias[4], z[2], add[2];
    load_vectors(p, mean, o->mean, j);
    load_vectors(p, scale, o->scale, j);
    load_vectors(p, bias, o->bias, j);
    EACH_PAIR(k, n, v, p)
    {
        const int64_t i = (r + k * step) * o->width + j + v * PAIR;
        load_pair(z, t, o->x, i, some);
        EACH(h, 2) z[h] = (z[h] - mean[2 * v + h]) * scale[2 * v + h] + bias[2 * v + h];
        if (has_r) { /* rounded before and after the sum, as two ops would */
            load_pair(add, t, o->r, i, some);
            round_pair(t, z);
            EACH(h, 2) z[h] += add[h];
        }
        if (act == KU_ACT_RELU)
            EACH(h, 2) z[h] = act_f(KU_ACT_RELU, z[h]);
        store_rounded(t, o->out, i, some, z, o->is_streamed);
    }
}
INLINE void norm_apply_form(const struct ku_norm *o, enum kumi_dtype t, int has_r, int act)
{
#define CALL(p, n, r, step, j, some) norm_apply_as(o, p, n, r, step, j, some, t, has_r, act)
    FOR_ROWS(o, CALL);
#undef CALL
}
INLINE void norm_apply_of(const struct ku_norm *o, enum kumi_dtype t)
{
    if (!HAS_COPIES)
        norm_apply_form(o, t, o->r != NULL, o->act);
    else if (o->r && o->act)
        norm_apply_form(o, t, 1, KU_ACT_RELU);
    else if (o->r)
        norm_apply_form(o, t, 1, KU_ACT_NONE);
    else if (o->act)
        norm_apply_form(o, t, 0, KU_ACT_RELU);
    else
        norm_apply_form(o, t, 0, KU_ACT_NONE);
}
static void norm_apply(const struct ku_norm *o)
{
    BY_DTYPE(o->dtype, norm_apply_of(o, T));
}

INLINE void norm_dsums_as(const struct ku_norm *o, int p, int64_t n, int64_t r, int64_t step,
                          int64_t j, int64_t some, enum kumi_dtype t, int has_y)
{
    vf mean[4], s[4], q[4], d[2], x[2], y[2];
    load_vectors(p, mean, o->mean, j);
    load_vectors(p, s, o->sum, j);
    load_vectors(p, q, o->product, j);
    EACH_PAIR(k, n, v, p)
    {
        const int64_t i = (r + k * step) * o->width + j + v * PAIR;
        load_pair(d, t, o->dy, i, some);
        load_pair(x, t, o->x, i, some);
        if (has_y) {
            load_pair(y, t, o->y, i, some);
            EACH(h, 2) d[h] *= act_slope(KU_ACT_RELU, y[h]);
            if (o->out)
                store_pair(t, o->out, i, some, d, o->is_streamed);
        }
        EACH(h, 2)
        {
            s[2 * v + h] += d[h];
            q[2 * v + h] += d[h] * (x[h] - mean[2 * v + h]);
        }
    }
    store_vectors(p, o->sum, j, s);
    store_vectors(p, o->product, j, q);
}
INLINE void norm_dsums_of(const struct ku_norm *o, enum kumi_dtype t)
{
#define CALL(p, n, r, step, j, some)        norm_dsums_as(o, p, n, r, step, j, some, t, 0)
#define CALL_MASKED(p, n, r, step, j, some) norm_dsums_as(o, p, n, r, step, j, some, t, 1)
    if (o->y)
        FOR_ROWS(o, CALL_MASKED);
    else
        FOR_ROWS(o, CALL);
#undef CALL
#undef CALL_MASKED
}
static void norm_dsums(const struct ku_norm *o)
{
    BY_DTYPE(o->dtype, norm_dsums_of(o, T));
}

/* dx = scale dz - (x - mean) slope - bias */
INLINE void norm_dx_as(const struct ku_norm *o, int p, int64_t n, int64_t r, int64_t step,
                       int64_t j, int64_t some, enum kumi_dtype t)
{
    vf mean[4], scale[4], slope[4], bias[4], x[2], z[2];
    load_vectors(p, mean, o->mean, j);
    load_vectors(p, scale, o->scale, j);
    load_vectors(p, slope, o->slope, j);
    load_vectors(p, bias, o->bias, j);
    EACH_PAIR(k, n, v, p)
    {
        const int64_t i = (r + k * step) * o->width + j + v * PAIR;
        load_pair(z, t, o->dy, i, some);
        load_pair(x, t, o->x, i, some);
        EACH(h, 2)
        {
            vf d = x[h] - mean[2 * v + h];
            z[h] = z[h] * scale[2 * v + h] - bias[2 * v + h];
            z[h] -= d * slope[2 * v + h];
        }
        store_rounded(t, o->out, i, some, z, o->is_streamed);
    }
}
static void norm_dx(const struct ku_norm *o)
{
#define CALL(p, n, r, step, j, some) norm_dx_as(o, p, n, r, step, j, some, T)
    BY_DTYPE(o->dtype, FOR_ROWS(o, CALL));
#undef CALL
}

static void norm_widen(double *to, float *from, int64_t n)
{
    typedef double vd8_mem __attribute__((vector_size(64), aligned(8), may_alias));
    for (int64_t i = 0; i < n; i += 8)
        *(vd8_mem *)(to + i) += widen8(from + i);
    memset(from, 0, (size_t)n * sizeof *from);
}
