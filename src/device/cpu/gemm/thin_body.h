/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of few rows (ku_gemm_thin). Included after gemm_body.h. The time is that of reading the
 * weight, which is read once, in place. Sixteen columns are the lanes, so each element is one chain
 * of multiply-adds in ascending order, as in micro(). If the weight is stored by columns, 16 x 16
 * units are transposed in registers.
 */
enum {
    THIN_DEPTH = LANES, /* units of k per update of the sums, held in registers */
    /*
     * Rows at once: at least as many chains as a multiply-add has cycles of latency, 4 or (pairs)
     * 6.
     */
    THIN_CHAINS = 4 * GEMM_DEPTH,
    THIN_AHEAD = 128,           /* units of a column prefetched ahead: 16 columns, 8 KiB */
    THIN_NEAR_BYTES = 256 << 10 /* of 16 columns: a quarter of L2 */
};
/* More rows if sixteen vectors of the weight and the sums fit the registers. */
#if defined(__AVX512F__)
enum { THIN_ROWS_MAX = 64 };
#else
enum { THIN_ROWS_MAX = 8 };
#endif
#if GEMM_DEPTH == 2
#define THIN_MADD(acc, x, w)                                                                       \
    ((vf)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)_mm512_set1_epi32(x), (__m512bh)(w)))
#else
#define THIN_MADD(acc, x, w) ((acc) + (x) * (vf)(w))
#endif
enum { THIN_PAIRS = GEMM_DEPTH == 2 };

/* A unit of columns [j, j + 16), of which n exist; row k + 1 of w may be missing. */
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

/* sum += x w over n units and n_rows rows of x; the chains are independent. */
INLINE void thin_chains(const int n_rows, const int n, const gemm_unit *x, int64_t ld_x,
                        const vu *w, float *sum, int64_t ld_sum)
{
    vf acc[THIN_CHAINS];
    UNROLL
    for (int r = 0; r < n_rows; r++)
        acc[r] = load(KUMI_F32, sum, r * ld_sum);
    UNROLL
    for (int u = 0; u < n; u++) {
        UNROLL
        for (int r = 0; r < n_rows; r++)
            acc[r] = THIN_MADD(acc[r], x[r * ld_x + u], w[u]);
    }
    UNROLL
    for (int r = 0; r < n_rows; r++)
        store(KUMI_F32, sum, r * ld_sum, acc[r]);
}
/* All rows, n_chains at once: n units from u0, sixteen columns from j. */
INLINE void thin_add_as(const struct ku_gemm_thin *t, const int n_chains, const int n, const vu *w,
                        int64_t u0, int64_t j)
{
    const gemm_unit *x = (const gemm_unit *)t->x + u0;
    float *sum = t->sum + j;
    int r = t->n_rows;
    for (; r >= n_chains; r -= n_chains) {
        thin_chains(n_chains, n, x, t->ld_x, w, sum, t->ld_sum);
        x += n_chains * t->ld_x, sum += n_chains * t->ld_sum;
    }
    if (n_chains > 4 && r >= 4) {
        thin_chains(4, n, x, t->ld_x, w, sum, t->ld_sum);
        r -= 4, x += 4 * t->ld_x, sum += 4 * t->ld_sum;
    }
    for (; n_chains > 1 && r > 0; r--, x += t->ld_x, sum += t->ld_sum)
        thin_chains(1, n, x, t->ld_x, w, sum, t->ld_sum);
}

#if HAS_COPIES
#define thin_add thin_add_as
#else
#define THIN_ADD(name, n_chains, n)                                                                \
    static __attribute__((noinline)) void name(const struct ku_gemm_thin *t, const vu *w,          \
                                               int64_t u0, int64_t j)                              \
    {                                                                                              \
        thin_add_as(t, n_chains, n, w, u0, j);                                                     \
    }
THIN_ADD(thin_add_chains, THIN_CHAINS, THIN_DEPTH)
THIN_ADD(thin_add_whole, 1, THIN_DEPTH)
THIN_ADD(thin_add_half, 1, THIN_DEPTH / 2)
THIN_ADD(thin_add_one, 1, 1)
INLINE void thin_add(const struct ku_gemm_thin *t, const int n_chains, const int n, const vu *w,
                     int64_t u0, int64_t j)
{
    if (n_chains > 1)
        thin_add_chains(t, w, u0, j);
    else if (n == THIN_DEPTH)
        thin_add_whole(t, w, u0, j);
    else if (n > 1)
        thin_add_half(t, w, u0, j);
    else
        thin_add_one(t, w, u0, j);
}
#endif

/* Weight by rows: adds n units from u0 to the sums of all columns. */
INLINE void thin_block(const struct ku_gemm_thin *t, const int n_chains, const int n,
                       enum kumi_dtype dtype, int64_t u0)
{
    const int64_t per = THIN_PAIRS + 1, bytes = bytes_of(dtype), line = 64 / bytes;
    const int64_t row_bytes = t->ld_w * bytes;
    const char *from = (const char *)t->w + u0 * per * row_bytes;
    const char *next = from + n * per * row_bytes;
    const int is_whole = (u0 + n) * per <= t->n_k;
    for (int64_t j = 0; j < t->n_cols; j += LANES) {
        vu w[THIN_DEPTH];
        if (is_whole && j + LANES <= t->n_cols) {
            const char *row = from + j * bytes;
            UNROLL
            for (int u = 0; u < n; u++, row += per * row_bytes)
                w[u] = THIN_PAIRS ? zip_halves((const uint16_t *)(const void *)row,
                                               (const uint16_t *)(const void *)(row + row_bytes))
                                  : (vu)load(dtype, row, 0);
        } else {
            for (int u = 0; u < n; u++)
                w[u] = thin_unit(t, dtype, (u0 + u) * per, j, t->n_cols - j);
        }
        for (int i = 0; j % line == 0 && i < n * per; i++)
            __builtin_prefetch(next + i * row_bytes + j * bytes, 0, 2);
        thin_add(t, n_chains, n, w, u0, j);
    }
}
INLINE void thin_by_rows(const struct ku_gemm_thin *t, const int n_chains, const int depth,
                         enum kumi_dtype dtype)
{
    const int64_t n_units = THIN_PAIRS ? (t->n_k + 1) / 2 : t->n_k;
    int64_t u = 0;
    for (; u + depth <= n_units; u += depth)
        thin_block(t, n_chains, depth, dtype, u);
    for (; u < n_units; u++)
        thin_block(t, 1, 1, dtype, u);
}

/*
 * Weight by columns. Sixteen columns are contiguous in memory: the data of the next columns is
 * prefetched to L2 in memory order, block by block; for longer columns, THIN_AHEAD units ahead.
 */
INLINE void thin_fetch(const struct ku_gemm_thin *t, int64_t bytes, int64_t j, int64_t k)
{
    const char *next = (const char *)t->w + j * t->ld_w * bytes;
    int64_t stride = 64;
    if (LANES * t->ld_w * bytes <= THIN_NEAR_BYTES) {
        next += (2 * LANES * t->ld_w + k * LANES) * bytes; /* after the two groups in progress */
    } else {
        stride = t->ld_w * bytes;
        k += THIN_AHEAD * (THIN_PAIRS + 1);
        next += (k < t->n_k ? k : 2 * LANES * t->ld_w + k - t->n_k) * bytes;
    }
    for (int c = 0; c < LANES; c++)
        __builtin_prefetch(next + c * stride, 0, 2);
}

/* Adds sixteen units (with pairs 32 elements) from k of columns [j, j + 16) to their sums. */
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
    if (left >= step)
        thin_add(t, 1, LANES, v, k / per, j);
    for (int64_t u = 0; left < step && u < (left + per - 1) / per; u++)
        thin_add(t, 1, 1, v + u, k / per + u, j);
}
/* Alternates between two groups of sixteen columns: two independent chains. */
INLINE void thin_by_columns(const struct ku_gemm_thin *t, enum kumi_dtype dtype)
{
    for (int64_t j0 = 0; j0 < t->n_cols; j0 += 2 * LANES)
        for (int64_t k = 0; k < t->n_k; k += LANES * (THIN_PAIRS + 1))
            for (int64_t j = j0; j < j0 + 2 * LANES && j < t->n_cols; j += LANES) {
                thin_fetch(t, bytes_of(dtype), j, k);
                thin_square(t, dtype, j, k);
            }
}

INLINE void thin_as(const struct ku_gemm_thin *t, enum kumi_dtype dtype)
{
    for (int r = 0; r < t->n_rows; r++)
        memset(t->sum + r * t->ld_sum, 0, (size_t)t->ld_sum * sizeof *t->sum);
    if (t->by_rows && t->n_rows <= THIN_CHAINS)
        thin_by_rows(t, 1, THIN_DEPTH / 2, dtype); /* so few rows need no chains in parallel */
    else if (t->by_rows)
        thin_by_rows(t, THIN_CHAINS, THIN_DEPTH, dtype);
    else
        thin_by_columns(t, dtype);
}
static void thin(const struct ku_gemm_thin *t)
{
#if GEMM_DEPTH == 2
    thin_as(t, KUMI_BF16);
#else
    BY_DTYPE(t->dtype, thin_as(t, T));
#endif
}
