/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of a few rows (ku_gemm_thin), behind gemm_body.h: bound by reading the weight, which is
 * read once, where it lies. Sixteen columns are the lanes, so that every element stays one chain of
 * multiply-adds in ascending order, as in micro(); of a weight that lies by columns sixteen by
 * sixteen units are transposed in registers.
 */
enum {
    THIN_DEPTH = 8,  /* units of k that a row of sums takes at once, in registers */
    THIN_AHEAD = 128 /* units of a column fetched ahead: 16 columns, 8 KiB */
};
#if GEMM_DEPTH == 2
#define THIN_MADD(acc, x, w)                                                                       \
    ((vf)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)_mm512_set1_epi32(x), (__m512bh)(w)))
#else
#define THIN_MADD(acc, x, w) ((acc) + (x) * (vf)(w))
#endif
enum { THIN_PAIRS = GEMM_DEPTH == 2 };

#ifdef __AVX512F__
#define UNROLL_WIDE UNROLL /* sixteen vectors stay in registers */
#else
#define UNROLL_WIDE
#endif

/* At the edge alone: one copy of what is much code where lanes have no masks. */
static __attribute__((noinline, unused)) vf thin_edge(enum kumi_dtype dtype, const void *w,
                                                      int64_t at, int64_t n)
{
    return load_n(dtype, w, at, n);
}

/* A unit of columns [j, j + 16), of which n are there; row k + 1 of w may be missing. */
INLINE vu thin_unit(const struct ku_gemm_thin *t, enum kumi_dtype dtype, int64_t k, int64_t j,
                    int64_t n)
{
    const int64_t at = k * t->ld_w + j;
    if (!THIN_PAIRS)
        return (vu)(n >= LANES ? load(dtype, t->w, at) : thin_edge(dtype, t->w, at, n));
    const uint16_t *w = (const uint16_t *)t->w + at;
    n = n < LANES ? n : LANES;
    vu low = load_halves(w, n);
    return k + 1 < t->n_k ? low | load_halves(w + t->ld_w, n) << 16 : low;
}

/* Weight by rows. Units [u0, u0 + n) of the contraction, added to all columns' sums. */
INLINE void thin_block(const struct ku_gemm_thin *t, const int rows, const int n,
                       enum kumi_dtype dtype, int64_t u0)
{
    const int64_t per = THIN_PAIRS + 1, line = 64 / (dtype == KUMI_BF16 ? 2 : 4);
    const char *next = (const char *)t->w + (u0 + n) * per * t->ld_w * (64 / line);
    for (int64_t j = 0; j < t->n_cols; j += LANES) {
        vu w[THIN_DEPTH];
        UNROLL
        for (int u = 0; u < n; u++)
            w[u] = thin_unit(t, dtype, (u0 + u) * per, j, t->n_cols - j);
        for (int i = 0; j % line == 0 && i < n * per; i++)
            __builtin_prefetch(next + (i * t->ld_w + j) * (64 / line), 0, 2);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const gemm_unit *x = (const gemm_unit *)t->x + t->row[r] + u0;
            float *sum = t->sum + r * t->ld_sum + j;
            vf acc = load(KUMI_F32, sum, 0);
            UNROLL
            for (int u = 0; u < n; u++)
                acc = THIN_MADD(acc, x[u], w[u]);
            store(KUMI_F32, sum, 0, acc);
        }
    }
}
INLINE void thin_by_rows(const struct ku_gemm_thin *t, const int rows, enum kumi_dtype dtype)
{
    const int64_t n_units = THIN_PAIRS ? (t->n_k + 1) / 2 : t->n_k;
    int64_t u = 0;
    for (int r = 0; r < rows; r++)
        memset(t->sum + r * t->ld_sum, 0, (size_t)t->ld_sum * sizeof *t->sum);
    for (; u + THIN_DEPTH <= n_units; u += THIN_DEPTH)
        thin_block(t, rows, THIN_DEPTH, dtype, u);
    for (; u < n_units; u++)
        thin_block(t, rows, 1, dtype, u);
}

/* Weight by columns: sixteen of them, from j on. */
INLINE void thin_columns(const struct ku_gemm_thin *t, const int rows, enum kumi_dtype dtype,
                         int64_t j)
{
    const int64_t per = THIN_PAIRS + 1, step = per * LANES, bytes = dtype == KUMI_BF16 ? 2 : 4;
    vf acc[KU_THIN_ROWS];
    UNROLL
    for (int r = 0; r < rows; r++)
        acc[r] = (vf){0};
    for (int64_t k = 0; k < t->n_k; k += step) {
        const int64_t left = t->n_k - k, then = k + per * THIN_AHEAD;
        const char *next = (const char *)t->w + (j * t->ld_w + then) * bytes;
        vu v[LANES];
        if (then >= t->n_k) /* the next sixteen columns */
            next += (LANES * t->ld_w - t->n_k) * bytes;
        for (int c = 0; c < LANES; c++)
            __builtin_prefetch(next + c * t->ld_w * bytes, 0, 3);
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
        const int64_t n_units = left >= step ? LANES : (left + per - 1) / per;
        const gemm_unit *x = (const gemm_unit *)t->x + k / per;
        UNROLL_WIDE
        for (int u = 0; u < LANES; u++) {
            if (u >= n_units)
                break;
            UNROLL
            for (int r = 0; r < rows; r++)
                acc[r] = THIN_MADD(acc[r], x[t->row[r] + u], v[u]);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        store(KUMI_F32, t->sum + r * t->ld_sum, j, acc[r]);
}

INLINE void thin_of(const struct ku_gemm_thin *t, const int rows, enum kumi_dtype dtype)
{
    if (t->by_rows)
        thin_by_rows(t, rows, dtype);
    else
        for (int64_t j = 0; j < t->n_cols; j += LANES)
            thin_columns(t, rows, dtype, j);
}
INLINE void thin_rows(const struct ku_gemm_thin *t, enum kumi_dtype dtype)
{
    if (t->n_rows == 1)
        thin_of(t, 1, dtype);
    else if (t->n_rows == 2)
        thin_of(t, 2, dtype);
    else if (t->n_rows == 4)
        thin_of(t, 4, dtype);
    else
        thin_of(t, KU_THIN_ROWS, dtype);
}
static void thin(const struct ku_gemm_thin *t)
{
#if GEMM_DEPTH == 2
    thin_rows(t, KUMI_BF16);
#else
    BY_DTYPE(t->dtype, thin_rows(t, KUMI_F32), thin_rows(t, KUMI_BF16));
#endif
}
