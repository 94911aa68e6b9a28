/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packs panels of matrix products (isa.h). Included once per instruction set after elem_body.h.
 */

INLINE void pack_row_f32(float *out, int64_t width, const void *src, enum kumi_dtype t, int64_t at,
                         int64_t n)
{
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES)
        store(KUMI_F32, out, j, load(t, src, at + j));
    if (j < n)
        store_n(KUMI_F32, out, j, n - j, load_n(t, src, at + j, n - j));
    for (j = n; j < width; j++)
        out[j] = 0;
}
INLINE vu load_halves(const uint16_t *p, int64_t n) /* n <= 16; the rest is zero */
{
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return (vu)_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p));
#else
    vh h = {0};
    memcpy(&h, p, (size_t)n * 2);
    return __builtin_convertvector(h, vu);
#endif
}
INLINE vu zip_halves(const uint16_t *a, const uint16_t *b) /* {a[j], b[j]} for sixteen j */
{
#if defined(__AVX512BW__)
    /* 16-bit indices of lane j: j in a, 32 + j in b */
    vi order;
    UNROLL
    for (int j = 0; j < LANES; j++)
        order[j] = j | (32 + j) << 16;
    return (vu)_mm512_permutex2var_epi16(_mm512_castsi256_si512((__m256i) * (const vh_mem *)a),
                                         (__m512i)order,
                                         _mm512_castsi256_si512((__m256i) * (const vh_mem *)b));
#else
    return __builtin_convertvector(*(const vh_mem *)a, vu) |
           __builtin_convertvector(*(const vh_mem *)b, vu) << 16;
#endif
}
/* Interleaves two rows of bf16: unit j = {a[j], b[j]}. */
INLINE void pack_row_pairs(uint32_t *out, int64_t width, const uint16_t *a, const uint16_t *b,
                           int64_t n)
{
    int64_t j = 0;
    for (; j + LANES <= n && b; j += LANES)
        *(vu_mem *)(out + j) = zip_halves(a + j, b + j);
    for (; j < width; j += LANES) {
        const int64_t some = n - j > 0 ? n - j < LANES ? n - j : LANES : 0;
        vu unit = load_halves(a + (some ? j : 0), some);
        if (b)
            unit |= load_halves(b + (some ? j : 0), some) << 16;
        store_n(KUMI_F32, out, j, width - j < LANES ? width - j : LANES, (vf)unit);
    }
}
KERNEL void pack_rows(void *panel, int64_t width, const void *src, enum kumi_dtype dtype,
                      int64_t ld, int64_t n_k, int64_t n_cols, int pairs)
{
    if (pairs) {
        const uint16_t *s = src;
        for (int64_t k = 0; k < n_k; k += 2)
            pack_row_pairs((uint32_t *)panel + k / 2 * width, width, s + k * ld,
                           k + 1 < n_k ? s + (k + 1) * ld : NULL, n_cols);
        return;
    }
    for (int64_t k = 0; k < n_k; k++)
        BY_DTYPE(dtype, pack_row_f32((float *)panel + k * width, width, src, T, k * ld, n_cols));
}

/*
 * Sixteen units of one column from element `at`; a unit is an f32, a widened bf16 or f16, or two
 * adjacent bf16.
 */
INLINE vu load_units(const void *src, enum kumi_dtype t, int64_t at, int64_t n_k, int pairs)
{
    if (pairs) {
        int64_t n = n_k * 2 < 64 ? n_k * 2 : 64; /* bytes */
        if (n == 64)
            return *(const vu_mem *)((const uint16_t *)src + at);
        vu v = {0};
        memcpy(&v, (const uint16_t *)src + at, (size_t)n);
        return v;
    }
    return (vu)(n_k >= LANES ? load(t, src, at) : load_n(t, src, at, n_k));
}
INLINE void pack_cols_as(uint32_t *panel, int64_t width, const void *src, enum kumi_dtype t,
                         int64_t ld, int64_t n_k, int64_t n_cols, int pairs)
{
    const int64_t step = pairs ? 2 * LANES : LANES;
    for (int64_t j0 = 0; j0 < width; j0 += LANES)
        for (int64_t k = 0; k < n_k; k += step) {
            vu v[LANES];
            for (int j = 0; j < LANES; j++)
                v[j] = j0 + j < n_cols ? load_units(src, t, (j0 + j) * ld + k, n_k - k, pairs)
                                       : (vu){0};
            transpose_16(v);
            int64_t n_units = pairs ? (n_k - k + 1) / 2 : n_k - k;
            for (int u = 0; u < LANES && u < n_units; u++) {
                uint32_t *out = panel + (k / (pairs ? 2 : 1) + u) * width + j0;
                if (j0 + LANES <= width)
                    *(vu_mem *)out = v[u];
                else
                    memcpy(out, &v[u], (size_t)(width - j0) * 4);
            }
        }
}
KERNEL void pack_cols(void *panel, int64_t width, const void *src, enum kumi_dtype dtype,
                      int64_t ld, int64_t n_k, int64_t n_cols, int pairs)
{
    if (pairs)
        pack_cols_as(panel, width, src, KUMI_BF16, ld, n_k, n_cols, 1);
    else
        BY_DTYPE(dtype, pack_cols_as(panel, width, src, T, ld, n_k, n_cols, 0));
}
