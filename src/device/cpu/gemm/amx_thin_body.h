/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of few rows (ku_gemm_thin) on AMX. Included after amx_body.h, whose bits they have: each
 * element passes through the same tile products in the same order, whichever operand is the left
 * one. The time is that of reading the weight, which is read once:
 *
 *     weight by rows      tiles 4, 5 (a)    rows of x, in place
 *                         tiles 6, 7 (b)    32 columns of 32 rows of the weight, interleaved in L1
 *     weight by columns   tiles 4, 5 (a)    sixteen columns each, in place
 *                         tiles 6, 7 (b)    x, turned by the caller: [units][rows]
 *
 * Tiles 0 to 3 are the sums. There is a second tile of x from 17 rows on.
 *
 * One sequential stream is limited by the line fill buffers of L1 (9 GB/s at 105 ns). Many streams
 * in as many pages engage the prefetcher of L2, which has more requests in flight: up to 15 GB/s.
 * So the columns of a tile of a are spaced evenly over the columns of the call, one stream each.
 */
enum {
    AMX_THIN_ROWS = 2 * AMX_SIDE,
    AMX_THIN_COLS = 2 * AMX_SIDE,
    AMX_THIN_AHEAD = 512 /* bytes of a stream prefetched ahead */
};

/*
 * Units of 32 columns of two rows. The hardware interleaves within runs of eight columns: `low` has
 * the first four of each run, `high` the others. amx_sort_columns undoes it in the sums.
 */
INLINE void amx_interleave(const uint16_t *even, const uint16_t *odd, uint32_t *low, uint32_t *high)
{
#if defined(__AVX512BW__)
    const __m512i x = _mm512_loadu_si512(even), y = _mm512_loadu_si512(odd);
    _mm512_store_si512(low, _mm512_unpacklo_epi16(x, y));
    _mm512_store_si512(high, _mm512_unpackhi_epi16(x, y));
#else
    for (int i = 0; i < AMX_THIN_COLS; i++)
        (i % 8 < 4 ? low : high)[i / 8 * 4 + i % 4] = even[i] | (uint32_t)odd[i] << 16;
#endif
}
INLINE void amx_sort_columns(float *sum)
{
    const vf low = *(const vf_mem *)sum, high = *(const vf_mem *)(sum + AMX_SIDE);
    *(vf_mem *)sum = SHUFFLE(low, high, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    *(vf_mem *)(sum + AMX_SIDE) =
        SHUFFLE(low, high, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
}

/* Both tiles of b: sixteen units from row k of w; at the edges of the weight zeros. */
typedef uint32_t amx_block[2][AMX_SIDE][AMX_SIDE];
INLINE void amx_pack_block(const struct ku_gemm_thin *t, int64_t k, int64_t j, amx_block b)
{
    const int64_t n_cols = t->n_cols - j < AMX_THIN_COLS ? t->n_cols - j : AMX_THIN_COLS;
    const uint16_t *w = (const uint16_t *)t->w + k * t->ld_w + j;
    if (n_cols == AMX_THIN_COLS && k + 2 * AMX_SIDE <= t->n_k) {
        for (int u = 0; u < AMX_SIDE; u++, w += 2 * t->ld_w)
            amx_interleave(w, w + t->ld_w, b[0][u], b[1][u]);
        return;
    }
    for (int u = 0; u < AMX_SIDE; u++) {
        uint16_t pair[2][AMX_THIN_COLS] = {{0}};
        for (int h = 0; h < 2 && k + 2 * u + h < t->n_k; h++)
            memcpy(pair[h], w + (2 * u + h) * t->ld_w, (size_t)n_cols * sizeof *w);
        amx_interleave(pair[0], pair[1], b[0][u], b[1][u]);
    }
}

/*
 * Prefetches to L2, while columns [j, j + 32) are computed, a part of the 32 rows from k: two lines
 * of sixteen rows, or, where the rows are contiguous, of sixteen runs of two rows.
 */
INLINE void amx_fetch_rows(const struct ku_gemm_thin *t, int64_t k, int64_t j)
{
    const int64_t row_bytes = t->ld_w * 2, part = j / AMX_THIN_COLS;
    const int is_whole = t->n_cols == t->ld_w;
    const int64_t run_bytes = is_whole ? 2 * row_bytes : row_bytes;
    const char *next = (const char *)t->w + k * row_bytes;
    next += is_whole ? part * 128 : part % 2 * AMX_SIDE * row_bytes + part / 2 * 128;
    for (int i = 0; i < AMX_SIDE; i++, next += run_bytes) {
        __builtin_prefetch(next, 0, 2);
        __builtin_prefetch(next + 64, 0, 2);
    }
}

/* lower: there are more than sixteen rows; a constant in both copies. */
INLINE void amx_thin_by_rows(const int lower, const struct ku_gemm_thin *t)
{
    _Alignas(64) amx_block block;
    const int64_t x_bytes = t->ld_x * 4, sum_bytes = t->ld_sum * 4;
    for (int64_t k = 0; k < t->n_k; k += 2 * AMX_SIDE) {
        const char *x = (const char *)t->x + k * 2;
        TILE_LOAD(4, x, x_bytes);
        if (lower)
            TILE_LOAD(5, x + AMX_SIDE * x_bytes, x_bytes);
        for (int64_t j = 0; j < t->n_cols; j += AMX_THIN_COLS) {
            float *sum = t->sum + j, *sum2 = sum + AMX_SIDE * t->ld_sum;
            amx_pack_block(t, k, j, block);
            amx_fetch_rows(t, k + 2 * AMX_SIDE, j);
            TILE_LOAD(0, sum, sum_bytes);
            TILE_LOAD(1, sum + AMX_SIDE, sum_bytes);
            TILE_LOAD(6, block[0], AMX_SIDE * 4);
            TILE_LOAD(7, block[1], AMX_SIDE * 4);
            TILE_DP(0, 4, 6);
            TILE_DP(1, 4, 7);
            TILE_STORE(0, sum, sum_bytes);
            TILE_STORE(1, sum + AMX_SIDE, sum_bytes);
            if (!lower)
                continue;
            TILE_LOAD(2, sum2, sum_bytes);
            TILE_LOAD(3, sum2 + AMX_SIDE, sum_bytes);
            TILE_DP(2, 5, 6);
            TILE_DP(3, 5, 7);
            TILE_STORE(2, sum2, sum_bytes);
            TILE_STORE(3, sum2 + AMX_SIDE, sum_bytes);
        }
    }
    for (int r = 0; r < t->n_rows; r++)
        for (int64_t j = 0; j < t->n_cols; j += AMX_THIN_COLS)
            amx_sort_columns(t->sum + r * t->ld_sum + j);
}

/* Columns from, from + step, .., or zeros from n_cols on; 32 elements from k of each. */
INLINE void amx_pad_columns(const struct ku_gemm_thin *t, int64_t from, int64_t step, int64_t k,
                            uint16_t to[AMX_SIDE][2 * AMX_SIDE])
{
    const int64_t n_k = t->n_k - k < 2 * AMX_SIDE ? t->n_k - k : 2 * AMX_SIDE;
    memset(to, 0, AMX_SIDE * sizeof *to);
    for (int64_t c = 0; c < AMX_SIDE && from + c * step < t->n_cols; c++)
        memcpy(to[c], (const uint16_t *)t->w + (from + c * step) * t->ld_w + k,
               (size_t)n_k * sizeof **to);
}
/*
 * Columns j, j + step, .., j + 31 step, of which some may not exist. The prefetches run on into the
 * columns of the next call.
 */
INLINE void amx_thin_columns(const int lower, const struct ku_gemm_thin *t, int64_t j, int64_t step)
{
    _Alignas(64) uint16_t pad[2][AMX_SIDE][2 * AMX_SIDE];
    const int64_t x_bytes = t->ld_x * 4, sum_bytes = step * t->ld_sum * 4;
    const int64_t col_bytes = step * t->ld_w * 2;
    float *sum = t->sum + j * t->ld_sum, *sum2 = sum + AMX_SIDE * step * t->ld_sum;
    TILE_ZERO(0);
    TILE_ZERO(1);
    if (lower) {
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t k = 0; k < t->n_k; k += 2 * AMX_SIDE) {
        const char *x = (const char *)t->x + k / 2 * x_bytes;
        const char *w = (const char *)t->w + (j * t->ld_w + k) * 2;
        const int fetched = k / (2 * AMX_SIDE) % 2 * AMX_SIDE;
        for (int i = fetched; i < fetched + AMX_SIDE; i++) {
            __builtin_prefetch(w + i * col_bytes + AMX_THIN_AHEAD, 0, 2);
            __builtin_prefetch(w + i * col_bytes + AMX_THIN_AHEAD + 64, 0, 2);
        }
        if (j + (AMX_THIN_COLS - 1) * step < t->n_cols && k + 2 * AMX_SIDE <= t->n_k) {
            TILE_LOAD(4, w, col_bytes);
            TILE_LOAD(5, w + AMX_SIDE * col_bytes, col_bytes);
        } else {
            amx_pad_columns(t, j, step, k, pad[0]);
            amx_pad_columns(t, j + AMX_SIDE * step, step, k, pad[1]);
            TILE_LOAD(4, pad[0], sizeof pad[0][0]);
            TILE_LOAD(5, pad[1], sizeof pad[1][0]);
        }
        TILE_LOAD(6, x, x_bytes);
        TILE_DP(0, 4, 6);
        TILE_DP(1, 5, 6);
        if (lower) {
            TILE_LOAD(7, x + AMX_SIDE * 4, x_bytes);
            TILE_DP(2, 4, 7);
            TILE_DP(3, 5, 7);
        }
    }
    TILE_STORE(0, sum, sum_bytes);
    TILE_STORE(1, sum2, sum_bytes);
    if (lower) {
        TILE_STORE(2, sum + AMX_SIDE, sum_bytes);
        TILE_STORE(3, sum2 + AMX_SIDE, sum_bytes);
    }
}
INLINE void amx_thin_by_columns(const int lower, const struct ku_gemm_thin *t)
{
    const int64_t step = t->n_cols / AMX_THIN_COLS;
    for (int64_t j = 0; j < step; j++)
        amx_thin_columns(lower, t, j, step);
    if (step * AMX_THIN_COLS < t->n_cols)
        amx_thin_columns(lower, t, step * AMX_THIN_COLS, 1);
}

/* left, right: columns of tiles 0, 1, 6 and 2, 3, 7; tiles 4 and 5 are full. */
static void amx_configure_turned(int left, int right)
{
    struct amx_config c = {.palette = 1};
    const int cols[8] = {left, left, right, right, AMX_SIDE, AMX_SIDE, left, right};
    for (int t = 0; t < 8; t++) {
        c.rows[t] = cols[t] ? AMX_SIDE : 0;
        c.row_bytes[t] = (uint16_t)(cols[t] * 4);
    }
    TILE_CONFIG(&c);
    amx_configured = -1; /* not the layout of amx_rows */
}

static void amx_thin(const struct ku_gemm_thin *t)
{
    const int upper = t->n_rows < AMX_SIDE ? t->n_rows : AMX_SIDE, lower = t->n_rows - upper;
    if (t->by_rows) {
        amx_configure_rows(t->n_rows);
        for (int r = 0; r < t->n_rows; r++)
            memset(t->sum + r * t->ld_sum, 0, (size_t)t->ld_sum * sizeof *t->sum);
        if (lower)
            amx_thin_by_rows(1, t);
        else
            amx_thin_by_rows(0, t);
    } else {
        amx_configure_turned(upper, lower);
        if (lower)
            amx_thin_by_columns(1, t);
        else
            amx_thin_by_columns(0, t);
    }
    amx_end();
}
