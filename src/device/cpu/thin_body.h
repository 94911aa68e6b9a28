/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of a few rows (ku_gemm_thin), behind gemm_body.h: bound by reading the weight, which is
 * read once, where it lies. Sixteen columns are the lanes, so that every element stays one chain of
 * multiply-adds in ascending order, as in micro(); of a weight that lies by columns sixteen by
 * sixteen units are transposed in registers.
 */
enum {
    THIN_DEPTH = 8,             /* units of k that a row of sums takes at once, in registers */
    THIN_AHEAD = 128,           /* units of a column fetched ahead: 16 columns, 8 KiB */
    THIN_NEAR_BYTES = 256 << 10 /* of 16 columns: a quarter of a second cache */
};
#if GEMM_DEPTH == 2
#define THIN_MADD(acc, x, w)                                                                       \
    ((vf)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)_mm512_set1_epi32(x), (__m512bh)(w)))
#else
#define THIN_MADD(acc, x, w) ((acc) + (x) * (vf)(w))
#endif
enum { THIN_PAIRS = GEMM_DEPTH == 2 };

/* A unit of columns [j, j + 16), of which n are there; row k + 1 of w may be missing. */
INLINE vu thin_unit(const struct ku_gemm_thin *t, enum kumi_dtype dtype, int64_t k, int64_t j,
                    int64_t n)
{
    const int64_t at = k * t->ld_w + j;
    if (!THIN_PAIRS)
        return (vu)(n >= LANES ? load(dtype, t->w, at) : load_n(dtype, t->w, at, n));
    const uint16_t *w = (const uint16_t *)t->w + at;
    n = n < LANES ? n : LANES;
    vu low = load_halves(w, n);
    return k + 1 < t->n_k ? low | load_halves(w + t->ld_w, n) << 16 : low;
}

/* sum += x w over n units of a row of x: one chain, for which those of other rows and columns do
 * not wait. */
INLINE void thin_chain(const gemm_unit *x, const vu *w, const int n, float *sum)
{
    vf acc = load(KUMI_F32, sum, 0);
    UNROLL
    for (int u = 0; u < n; u++)
        acc = THIN_MADD(acc, x[u], w[u]);
    store(KUMI_F32, sum, 0, acc);
}

/* Weight by rows: n units from u0 on, added to all columns' sums. */
INLINE void thin_block(const struct ku_gemm_thin *t, const int n, enum kumi_dtype dtype, int64_t u0)
{
    const int64_t per = THIN_PAIRS + 1, bytes = dtype == KUMI_BF16 ? 2 : 4, line = 64 / bytes;
    const char *next = (const char *)t->w + (u0 + n) * per * t->ld_w * bytes;
    for (int64_t j = 0; j < t->n_cols; j += LANES) {
        vu w[THIN_DEPTH];
        UNROLL
        for (int u = 0; u < n; u++)
            w[u] = thin_unit(t, dtype, (u0 + u) * per, j, t->n_cols - j);
        for (int i = 0; j % line == 0 && i < n * per; i++)
            __builtin_prefetch(next + (i * t->ld_w + j) * bytes, 0, 2);
        for (int r = 0; r < t->n_rows; r++)
            thin_chain((const gemm_unit *)t->x + r * t->ld_x + u0, w, n,
                       t->sum + r * t->ld_sum + j);
    }
}
INLINE void thin_by_rows(const struct ku_gemm_thin *t, enum kumi_dtype dtype)
{
    const int64_t n_units = THIN_PAIRS ? (t->n_k + 1) / 2 : t->n_k;
    int64_t u = 0;
    for (; u + THIN_DEPTH <= n_units; u += THIN_DEPTH)
        thin_block(t, THIN_DEPTH, dtype, u);
    for (; u < n_units; u++)
        thin_block(t, 1, dtype, u);
}

/* Weight by columns. Sixteen of them lie in a row of memory: what the next ones need is fetched in
 * that order into the second cache, block by block; of longer ones a few blocks ahead. */
INLINE void thin_fetch(const struct ku_gemm_thin *t, int64_t bytes, int64_t j, int64_t k)
{
    const char *next = (const char *)t->w + j * t->ld_w * bytes;
    int64_t stride = 64;
    if (LANES * t->ld_w * bytes <= THIN_NEAR_BYTES) {
        next += (2 * LANES * t->ld_w + k * LANES) * bytes; /* behind the two that are worked on */
    } else {
        stride = t->ld_w * bytes;
        k += THIN_AHEAD * (THIN_PAIRS + 1);
        next += (k < t->n_k ? k : 2 * LANES * t->ld_w + k - t->n_k) * bytes;
    }
    for (int c = 0; c < LANES; c++)
        __builtin_prefetch(next + c * stride, 0, 2);
}

/* Units from k on of columns [j, j + 16), added to their sums. */
INLINE void thin_square(const struct ku_gemm_thin *t, enum kumi_dtype dtype, int64_t j, int64_t k)
{
    const int64_t per = THIN_PAIRS + 1, step = per * LANES, left = t->n_k - k;
    vu v[LANES];
    if (left >= step && j + LANES <= t->n_cols) {
        UNROLL
        for (int c = 0; c < LANES; c++)
            v[c] = load_units(t->w, dtype, (j + c) * t->ld_w + k, step, THIN_PAIRS);
    } else {
        for (int c = 0; c < LANES; c++)
            v[c] = j + c < t->n_cols
                       ? load_units(t->w, dtype, (j + c) * t->ld_w + k, left, THIN_PAIRS)
                       : (vu){0};
    }
    transpose_16(v);
    for (int r = 0; r < t->n_rows; r++) {
        const gemm_unit *x = (const gemm_unit *)t->x + r * t->ld_x + k / per;
        float *sum = t->sum + r * t->ld_sum + j;
        if (left >= step)
            thin_chain(x, v, LANES, sum);
        for (int64_t u = 0; left < step && u < (left + per - 1) / per; u++)
            thin_chain(x + u, v + u, 1, sum);
    }
}
/* Two groups of sixteen columns in turn: two chains that do not wait for each other. */
INLINE void thin_by_columns(const struct ku_gemm_thin *t, enum kumi_dtype dtype)
{
    for (int64_t j0 = 0; j0 < t->n_cols; j0 += 2 * LANES)
        for (int64_t k = 0; k < t->n_k; k += LANES * (THIN_PAIRS + 1))
            for (int64_t j = j0; j < j0 + 2 * LANES && j < t->n_cols; j += LANES) {
                thin_fetch(t, dtype == KUMI_BF16 ? 2 : 4, j, k);
                thin_square(t, dtype, j, k);
            }
}

INLINE void thin_as(const struct ku_gemm_thin *t, enum kumi_dtype dtype)
{
    for (int r = 0; r < t->n_rows; r++)
        memset(t->sum + r * t->ld_sum, 0, (size_t)t->ld_sum * sizeof *t->sum);
    if (t->by_rows)
        thin_by_rows(t, dtype);
    else
        thin_by_columns(t, dtype);
}
static void thin(const struct ku_gemm_thin *t)
{
#if GEMM_DEPTH == 2
    thin_as(t, KUMI_BF16);
#else
    BY_DTYPE(t->dtype, thin_as(t, KUMI_F32), thin_as(t, KUMI_BF16));
#endif
}
