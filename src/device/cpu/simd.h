/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_CPU_SIMD_H
#define KU_DEVICE_CPU_SIMD_H

/*
 * Vectors of sixteen f32 lanes in the compilers' vector extension. One source serves every
 * instruction set; the compile flags of the including file choose it (isa_base.c, isa_avx2.c,
 * isa_avx512.c). The number of lanes is the same everywhere, so sums have the same tree on every
 * machine. bf16 and f16 are widened when read and rounded to nearest even when written.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kumi/dtype.h"
#include "base/math/random.h"

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#define INLINE static inline __attribute__((always_inline, unused))
#define KERNEL static __attribute__((unused)) /* a file uses only some of the functions of a body */

/*
 * Whether loops have a copy of the code for each dtype, activation, form and partial vector. On the
 * baseline a vector takes at least four instructions and an f16 many more; copies would more than
 * double the code and the time of compilation, so its loops branch inside instead.
 */
#if defined(__AVX512F__) || defined(__F16C__)
#define HAS_COPIES 1
#else
#define HAS_COPIES 0
#endif

enum { LANES = 16 };
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef double vd8 __attribute__((vector_size(64)));
typedef float vf_mem __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t vu_mem __attribute__((vector_size(64), aligned(2), may_alias)); /* or two bf16 */
typedef uint16_t vh __attribute__((vector_size(32)));
typedef uint16_t vh_mem __attribute__((vector_size(32), aligned(2), may_alias));

INLINE vf splat(float x)
{
    return x - (vf){0};
}
INLINE vf select_f(vi mask, vf a, vf b) /* mask lanes are 0 or -1 */
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}
INLINE vf max_f(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return select_f(a > b, a, b);
#endif
}
INLINE vf min_f(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return select_f(a < b, a, b);
#endif
}
/*
 * Comparisons with a constant. gcc compiles those of vectors wider than the machine's to a branch
 * per lane, but integer arithmetic to arithmetic on halves; and as integers, magnitudes have the
 * order of the floats, a NaN above infinity.
 */
INLINE vi is_magnitude_above(vf x, float limit)
{
    union {
        float f;
        int32_t bits;
    } u = {limit};
    return ((u.bits & 0x7fffffff) - ((vi)x & 0x7fffffff)) >> 31;
}
INLINE vi is_nan(vf x)
{
    return is_magnitude_above(x, INFINITY);
}
INLINE vi is_above(vf x, float c)
{
#if defined(__AVX512F__)
    return x > splat(c);
#else
    const vi is_negative = (vi)x >> 31;
    union {
        float f;
        int32_t bits;
    } u = {-c};
    if (c < 0)
        return (~is_negative | (((vi)x & 0x7fffffff) - u.bits) >> 31) & ~is_nan(x);
    return ~is_negative & is_magnitude_above(x, c) & ~is_nan(x);
#endif
}
INLINE vi is_below(vf x, float c)
{
    return is_above(-x, -c);
}
/* The bounds keep a NaN. */
INLINE vf max_with(vf x, float c)
{
#if defined(__AVX512F__)
    return max_f(splat(c), x);
#else
    return select_f(is_below(x, c), splat(c), x);
#endif
}
INLINE vf min_with(vf x, float c)
{
#if defined(__AVX512F__)
    return min_f(splat(c), x);
#else
    return select_f(is_above(x, c), splat(c), x);
#endif
}
INLINE vf sqrt_f(vf a)
{
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)a);
#elif defined(__AVX__)
    __m256 half[2];
    memcpy(half, &a, sizeof half);
    for (int i = 0; i < 2; i++)
        half[i] = _mm256_sqrt_ps(half[i]);
    memcpy(&a, half, sizeof a);
    return a;
#else
    for (int l = 0; l < LANES; l++)
        a[l] = sqrtf(a[l]);
    return a;
#endif
}

/*
 * bf16 bits <-> f32. Rounds to nearest even; a NaN becomes a quiet NaN.
 */
INLINE vf widen_bf16(vh h)
{
#if defined(__AVX512F__)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#else
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}
/* The upper 16 bits of each lane are the bf16. */
INLINE vu round_upper(vf x)
{
    vu u = (vu)x, r = u + ((u >> 16 & 1u) + 0x7fffu);
#if defined(__AVX512F__)
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    return (vu)_mm512_mask_or_epi32((__m512i)r, nan, (__m512i)u, _mm512_set1_epi32(0x400000));
#else
    vu nan = (vu)is_nan(x);
    return (r & ~nan) | ((u | 0x400000u) & nan);
#endif
}
INLINE vh narrow_bf16(vf x)
{
    vu r = round_upper(x);
#if defined(__AVX512BW__)
    /* gathers the upper halves of all lanes in one permutation */
    const vi odd = {0x030001, 0x070005, 0x0b0009, 0x0f000d, 0x130011, 0x170015, 0x1b0019, 0x1f001d};
    return (vh)_mm512_castsi512_si256(_mm512_permutexvar_epi16((__m512i)odd, (__m512i)r));
#elif defined(__AVX2__)
    __m256i half[2], packed;
    vh h;
    r >>= 16;
    memcpy(half, &r, sizeof half);
    packed = _mm256_packus_epi32(half[0], half[1]); /* by quarters: 0 2 1 3 */
    packed = _mm256_permute4x64_epi64(packed, 0xd8);
    memcpy(&h, &packed, sizeof h);
    return h;
#else
    return __builtin_convertvector(r >> 16, vh);
#endif
}

/*
 * f16 bits <-> f32, likewise. Subnormals are kept; values of at least 65,520 (65,504 and half a
 * unit) become infinite.
 */
INLINE vf widen_f16(vh h)
{
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
    __m128i half[2];
    __m256 whole[2];
    vf x;
    memcpy(half, &h, sizeof half);
    for (int i = 0; i < 2; i++)
        whole[i] = _mm256_cvtph_ps(half[i]);
    memcpy(&x, whole, sizeof x);
    return x;
#else
    vu u = __builtin_convertvector(h, vu), low = (u & 0x7fffu) << 13;
    vu sign = (u & 0x8000u) << 16, is_nan = (vu)(low > 0x0f800000u) & 0x400000u;
    vi top = (vi)(low >= 0x0f800000u);
    vf x = (vf)low * 0x1p112f; /* the difference of exponent biases: 127 - 15 */
    return (vf)((vu)select_f(top, (vf)(low | 0x7f800000u | is_nan), x) | sign);
#endif
}
INLINE vh narrow_f16(vf x)
{
#if defined(__AVX512F__)
    return (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
    __m128i half[2];
    __m256 whole[2];
    vh h;
    memcpy(whole, &x, sizeof whole);
    for (int i = 0; i < 2; i++)
        half[i] = _mm256_cvtps_ph(whole[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    memcpy(&h, half, sizeof h);
    return h;
#else
    vu u = (vu)x, sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    vu r = (a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13;
    vu tiny = (vu)((vf)a + 0.5f) - 0x3f000000u; /* 0.5f has the unit of subnormal f16, 2^-24 */
    r = (vu)select_f((vi)(a < 0x38800000u), (vf)tiny, (vf)r);
    r = (vu)select_f((vi)(a >= 0x47800000u), (vf)(0x7c00u - (vu){0}), (vf)r);
    r = (vu)select_f((vi)(a > 0x7f800000u), (vf)(0x7e00u | (u >> 13 & 0x3ffu)), (vf)r);
    return __builtin_convertvector(r | sign, vh);
#endif
}
INLINE vf widen(enum kumi_dtype dtype, vh h)
{
    return dtype == KUMI_F16 ? widen_f16(h) : widen_bf16(h);
}
INLINE vh narrow(enum kumi_dtype dtype, vf x)
{
    return dtype == KUMI_F16 ? narrow_f16(x) : narrow_bf16(x);
}
INLINE int64_t bytes_of(enum kumi_dtype dtype)
{
    return dtype == KUMI_F32 ? 4 : 2;
}

/*
 * Sixteen elements of p from index i. The dtype is a constant wherever these are inlined.
 */
INLINE vf load(enum kumi_dtype dtype, const void *p, int64_t i)
{
    if (dtype != KUMI_F32)
        return widen(dtype, *(const vh_mem *)((const uint16_t *)p + i));
    return *(const vf_mem *)((const float *)p + i);
}
INLINE void store(enum kumi_dtype dtype, void *p, int64_t i, vf x)
{
    if (dtype != KUMI_F32)
        *(vh_mem *)((uint16_t *)p + i) = narrow(dtype, x);
    else
        *(vf_mem *)((float *)p + i) = x;
}
/* The n < 16 elements after the last full vector; the other lanes are zero. */
INLINE vf load_n(enum kumi_dtype dtype, const void *p, int64_t i, int64_t n)
{
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
    __mmask16 some = (__mmask16)((1u << n) - 1);
    if (dtype != KUMI_F32)
        return widen(dtype, (vh)_mm256_maskz_loadu_epi16(some, (const uint16_t *)p + i));
    return (vf)_mm512_maskz_loadu_ps(some, (const float *)p + i);
#else
    if (dtype != KUMI_F32) {
        vh h = {0};
        memcpy(&h, (const uint16_t *)p + i, (size_t)n * 2);
        return widen(dtype, h);
    }
    vf f = {0};
    memcpy(&f, (const float *)p + i, (size_t)n * 4);
    return f;
#endif
}
INLINE void store_n(enum kumi_dtype dtype, void *p, int64_t i, int64_t n, vf x)
{
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
    __mmask16 some = (__mmask16)((1u << n) - 1);
    if (dtype != KUMI_F32)
        _mm256_mask_storeu_epi16((uint16_t *)p + i, some, (__m256i)narrow(dtype, x));
    else
        _mm512_mask_storeu_ps((float *)p + i, some, (__m512)x);
#else
    if (dtype != KUMI_F32) {
        vh h = narrow(dtype, x);
        memcpy((uint16_t *)p + i, &h, (size_t)n * 2);
    } else {
        memcpy((float *)p + i, &x, (size_t)n * 4);
    }
#endif
}
INLINE vi lane_index(void)
{
    return (vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}
INLINE vi first_lanes(int64_t n)
{
    return (lane_index() - (int32_t)n) >> 31;
}

/*
 * Constant shuffles of two vectors, which gcc and clang spell differently. LOW_n and HIGH_n
 * exchange the off-diagonal blocks of n lanes.
 */
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif
#define LOW_8  0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define LOW_4  0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define HIGH_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define LOW_2  0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define LOW_1  0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define HIGH_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31

/*
 * Transposes sixteen vectors in place; each round swaps off-diagonal blocks of two vectors. A
 * shuffle wider than the machine's vectors compiles to one move per lane (1,024 per call), so
 * narrower machines use one out-of-line function that works in memory.
 */
#ifdef __AVX512F__
#define ROUND(block)                                                                               \
    UNROLL                                                                                         \
    for (int r = 0; r < 16; r++)                                                                   \
        if ((r & (block)) == 0) {                                                                  \
            vu a = v[r], b = v[r + (block)];                                                       \
            v[r] = SHUFFLE(a, b, LOW_##block);                                                     \
            v[r + (block)] = SHUFFLE(a, b, HIGH_##block);                                          \
        }
INLINE void transpose_16(vu v[16])
{
    ROUND(8) ROUND(4) ROUND(2) ROUND(1)
}
#else
static __attribute__((noinline, unused)) void transpose_16(vu v[16])
{
    uint32_t from[16][16], to[16][16];
    memcpy(from, v, sizeof from);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            to[j][i] = from[i][j];
    memcpy(v, to, sizeof to);
}
#endif

/* Lane i of the result is the sum of the lanes of v[i]. */
#define ADD_ROUND(block)                                                                           \
    UNROLL                                                                                         \
    for (int r = 0; r < (block); r++) {                                                            \
        vf a = v[r], b = v[r + (block)];                                                           \
        v[r] = SHUFFLE(a, b, LOW_##block) + SHUFFLE(a, b, HIGH_##block);                           \
    }
#if HAS_COPIES
INLINE
#else
static __attribute__((noinline, unused))
#endif
vf sum_lanes_16(vf v[16])
{
    ADD_ROUND(8) ADD_ROUND(4) ADD_ROUND(2) ADD_ROUND(1) return v[0];
}

/* The sum of the lanes: neighbours, then pairs of pairs; the same tree on every machine. */
INLINE float sum_lanes(vf v)
{
    v += SHUFFLE(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    v += SHUFFLE(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    v += SHUFFLE(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v += SHUFFLE(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    return v[0];
}
INLINE float max_lanes(vf v)
{
    v = max_f(v, SHUFFLE(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
    v = max_f(v, SHUFFLE(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    v = max_f(v, SHUFFLE(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    v = max_f(v, SHUFFLE(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    return v[0];
}

/*
 * e^x. Relative error below 2e-7 where the result is not 0; 0 below -87.3 (the result would be
 * subnormal), without AVX-512 below -86.99 (2^(n-1) would be), infinity above 88.72, a NaN stays.
 * x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 is split in two parts so that n ln2_hi is exact. Taylor
 * series to r^7 (the next term is 5e-9), scaled by 2^(n-1) and by 2.
 */
INLINE vf exp_f(vf x)
{
    vf inside = min_with(max_with(x, -88.0f), 89.0f);
#if defined(__AVX512F__)
    __m512 n = _mm512_roundscale_ps((__m512)(inside * 1.44269504088896341f), 0);
    vf r = inside - (vf)n * 0.693359375f + (vf)n * 2.12194440e-4f;
#else
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    vf shifted = inside * 1.44269504088896341f + magic;
    vf n = shifted - magic;
    vf r = inside - n * 0.693359375f + n * 2.12194440e-4f;
#endif
    vf p = splat(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;
#if defined(__AVX512F__)
    __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ);
    return (vf)_mm512_maskz_scalef_ps(normal, (__m512)p, n); /* 2^128 overflows to infinity */
#else
    vi bits = (((vi)shifted - 0x4b400000) + 126) << 23; /* 2^(n-1), but 0 for n = -126; n >= -127 */
    vf y = p * (vf)bits * 2.0f;
    y = select_f(is_below(x, -87.3f), (vf){0}, y);
    y = select_f(is_above(x, 88.722839f), splat(INFINITY), y);
    return select_f(is_nan(x), x, y);
#endif
}
/*
 * 2^x for EXP2_ZERO <= x <= 126; 0 at EXP2_ZERO. x = n + r with |r| <= 1/2, both exact. The
 * polynomial in r is a minimax fit with p(0) = 1, relative error 2.6e-9 before rounding.
 */
#if defined(__AVX512F__)
#define EXP2_ZERO splat(-152.0f)
#else
#define EXP2_ZERO splat(-127.0f) /* gives an exponent field of zero */
#endif
INLINE vf exp2_f(vf x)
{
#if defined(__AVX512F__)
    vf n = (vf)_mm512_roundscale_ps((__m512)x, 0), r = x - n;
#else
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    vf shifted = x + magic, r = x - (shifted - magic);
#endif
    vf p = splat(1.5594678e-4f);
    p = p * r + 1.3406644e-3f;
    p = p * r + 9.6176930e-3f;
    p = p * r + 5.5503106e-2f;
    p = p * r + 2.4022653e-1f;
    p = p * r + 6.9314721e-1f;
    p = p * r + 1.0f;
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    return p * (vf)(((vi)shifted - 0x4b400000 + 127) << 23);
#endif
}
/* 1 / x within 2 ulp, for normal x whose reciprocal is normal. */
INLINE vf reciprocal(vf x)
{
#if defined(__AVX512F__)
    vf y = (vf)_mm512_rcp14_ps((__m512)x);
    return y + y * (1.0f - x * y);
#else
    return 1.0f / x;
#endif
}

/*
 * Philox-4x32-10 (base/math/random.h) for sixteen counters {c0, c1, step, stream}: w[0] .. w[3] of
 * each lane's block.
 */
#if defined(__AVX512F__)
INLINE void mul_wide(vu a, uint32_t m, vu *hi, vu *lo)
{
    __m512i x = (__m512i)a, k = _mm512_set1_epi32((int)m);
    __m512i even = _mm512_mul_epu32(x, k), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), k);
    *lo = (vu)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    *hi = (vu)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}
#elif defined(__AVX2__)
INLINE void mul_wide(vu a, uint32_t m, vu *hi, vu *lo)
{
    const __m256i k = _mm256_set1_epi32((int)m);
    __m256i x[2], h[2], l[2];
    memcpy(x, &a, sizeof x);
    for (int i = 0; i < 2; i++) {
        __m256i even = _mm256_mul_epu32(x[i], k);
        __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x[i], 32), k);
        l[i] = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
        h[i] = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    }
    memcpy(hi, h, sizeof h);
    memcpy(lo, l, sizeof l);
}
#else
INLINE void mul_wide(vu a, uint32_t m, vu *hi, vu *lo)
{
    for (int l = 0; l < LANES; l++) {
        uint64_t p = (uint64_t)a[l] * m;
        (*hi)[l] = (uint32_t)(p >> 32);
        (*lo)[l] = (uint32_t)p;
    }
}
#endif
INLINE void philox_lanes(uint64_t seed, uint32_t step, uint32_t stream, vu c0, vu c1, vu w[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    vu c2 = step - (vu){0}, c3 = stream - (vu){0};
    for (int round = 0; round < 10; round++) {
        vu h0, l0, h1, l1;
        mul_wide(c0, 0xD2511F53u, &h0, &l0);
        mul_wide(c2, 0xCD9E8D57u, &h1, &l1);
        vu n0 = h1 ^ c1 ^ k0, n2 = h0 ^ c3 ^ k1;
        c1 = l1, c3 = l0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;
}

#endif
