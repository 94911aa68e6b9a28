/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which elements dropout keeps (base/math/random.h, docs/internals/numerics.md), as bits. Included
 * once per instruction set after elem_body.h.
 *
 * With AVX-512 each 64-bit lane is one Philox counter. The next round reads only the lower halves
 * of the lanes c0 .. c3. So the 64-bit products serve directly as the next c1 and c3, and shifted
 * down by 32 bits they enter the sums (exclusive or) of c0 and c2. A round is two products, two
 * shifts and two three-operand exclusive ors.
 */
#if defined(__AVX512F__)
/*
 * The random numbers of blocks block .. block + 15: element 4 block + i is lane i % 16 of w[i /
 * 16].
 */
INLINE void philox_words(const struct ku_dropout *d, uint64_t block, __m512i w[4])
{
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
    const __m512i at = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    __m512i c[2][4];
    UNROLL
    for (int i = 0; i < 2; i++) {
        c[i][0] = _mm512_add_epi64(_mm512_set1_epi64((int64_t)block + 8 * i), at);
        c[i][1] = _mm512_srli_epi64(c[i][0], 32);
        c[i][2] = _mm512_set1_epi64(d->step);
        c[i][3] = _mm512_set1_epi64(d->stream);
    }
    UNROLL
    for (int round = 0; round < 10; round++) {
        const __m512i k0 = _mm512_set1_epi64((int64_t)d->key[round][0]);
        const __m512i k1 = _mm512_set1_epi64((int64_t)d->key[round][1]);
        UNROLL
        for (int i = 0; i < 2; i++) {
            const __m512i a = _mm512_mul_epu32(c[i][0], m0), b = _mm512_mul_epu32(c[i][2], m1);
            c[i][0] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(b, 32), c[i][1], k0, 0x96);
            c[i][2] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(a, 32), c[i][3], k1, 0x96);
            c[i][1] = b, c[i][3] = a;
        }
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        __m512i x = _mm512_mask_blend_epi32(0xaaaa, c[i][0], _mm512_slli_epi64(c[i][1], 32));
        __m512i y = _mm512_mask_blend_epi32(0xaaaa, c[i][2], _mm512_slli_epi64(c[i][3], 32));
        w[2 * i] = _mm512_unpacklo_epi64(x, y);
        w[2 * i + 1] = _mm512_unpackhi_epi64(x, y);
    }
}
/* Bit i: element 4 block + i is kept, because its upper 24 bits are at least d->least. */
INLINE uint64_t keep_64(const struct ku_dropout *d, uint64_t block)
{
    if (d->least == 0)
        return ~(uint64_t)0;
    /* least = 2^24 gives 2^32 - 1: no element is kept */
    const __m512i below = _mm512_set1_epi32((int)((d->least << 8) - 1));
    __m512i w[4];
    philox_words(d, block, w);
    uint64_t bits = 0;
    UNROLL
    for (int i = 0; i < 4; i++)
        bits |= (uint64_t)_mm512_cmpgt_epu32_mask(w[i], below) << 16 * i;
    return bits;
}
#else
INLINE uint64_t keep_64(const struct ku_dropout *d, uint64_t block)
{
    const vu add = (vu)lane_index();
    vu c0 = (uint32_t)block + add, w[4];
    vu c1 = (uint32_t)(block >> 32) - (vu)(c0 < add); /* carry: the comparison is -1 */
    philox_lanes(d->seed, d->step, d->stream, c0, c1, w);
    uint64_t bits = 0;
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++)
            bits |= (uint64_t)(w[i][l] >> 8 >= d->least) << (4 * l + i);
    return bits;
}
#endif

/*
 * Bit i: element first / 4 * 4 + i is kept. Covers at least n elements from `first`.
 */
INLINE void keep_bits(const struct ku_dropout *d, uint64_t first, int64_t n, uint64_t *bits)
{
    n += (int64_t)(first % 4);
    for (int64_t i = 0; i < n; i += 64)
        bits[i / 64] = keep_64(d, first / 4 + (uint64_t)i / 4);
}
/* Bits [at, at + 32), which may span two uint64. */
INLINE uint32_t bits_at(const uint64_t *bits, int64_t at)
{
    const uint64_t *b = bits + at / 64;
    return (uint32_t)(b[0] >> at % 64 | b[1] << 1 << (63 - at % 64));
}

/* x * scale where the bit of the lane is set, else 0. */
INLINE vf keep_lanes(vf x, uint32_t bits, float scale)
{
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_mul_ps((__mmask16)bits, (__m512)x, _mm512_set1_ps(scale));
#else
    vi on = -(vi)(bits >> (vu)lane_index() & 1u);
    return select_f(on, x * scale, (vf){0});
#endif
}
/*
 * 64 elements. For bf16 a NaN of the product has zero lower bits, so rounding needs no special
 * case.
 */
INLINE void dropout_64(void *dst, const void *x, enum kumi_dtype t, int64_t at, uint64_t bits,
                       float scale)
{
    vf y[4];
    UNROLL
    for (int v = 0; v < 4; v++)
        y[v] =
            keep_lanes(load(t, x, at + v * LANES), (uint32_t)(bits >> v * LANES) & 0xffff, scale);
#if defined(__AVX512BW__)
    if (t == KUMI_BF16) {
        const vi odd = {0x030001, 0x070005, 0x0b0009, 0x0f000d, 0x130011, 0x170015,
                        0x1b0019, 0x1f001d, 0x230021, 0x270025, 0x2b0029, 0x2f002d,
                        0x330031, 0x370035, 0x3b0039, 0x3f003d};
        UNROLL
        for (int v = 0; v < 4; v += 2) {
            vu a = (vu)y[v], b = (vu)y[v + 1];
            a += (a >> 16 & 1u) + 0x7fffu, b += (b >> 16 & 1u) + 0x7fffu;
            *(vu_mem *)((uint16_t *)dst + at + v * LANES) =
                (vu)_mm512_permutex2var_epi16((__m512i)a, (__m512i)odd, (__m512i)b);
        }
        return;
    }
#endif
    UNROLL
    for (int v = 0; v < 4; v++)
        store(t, dst, at + v * LANES, y[v]);
}
INLINE void dropout_as(void *dst, const void *x, enum kumi_dtype t, int64_t n,
                       const struct ku_dropout *d, uint64_t first)
{
    for (int64_t at = 0; at < n;) {
        const int64_t skip = (int64_t)((first + (uint64_t)at) % 4);
        const int64_t end = at + 64 - skip < n ? at + 64 - skip : n;
        uint64_t bits = keep_64(d, (first + (uint64_t)at) / 4) >> skip;
        if (end - at == 64) {
            dropout_64(dst, x, t, at, bits, d->scale);
            at = end;
            continue;
        }
        for (; at < end; at += LANES, bits >>= LANES) {
            const int64_t some = end - at < LANES ? end - at : LANES;
            vf y = keep_lanes(load_n(t, x, at, some), (uint32_t)bits, d->scale);
            store_n(t, dst, at, some, y);
        }
        at = end;
    }
}
KERNEL void dropout(void *dst, const void *x, enum kumi_dtype t, int64_t n,
                    const struct ku_dropout *d, uint64_t first)
{
    BY_DTYPE(t, dropout_as(dst, x, T, n, d, first));
}
