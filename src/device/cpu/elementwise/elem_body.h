/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elementwise loops. Included once per instruction set (isa_*.c).
 */

/*
 * Runs the statement for each vector of [0, n), i the index of its first element: LOAD and STORE
 * access its `some` elements, 16 or, in the last vector, fewer.
 *
 * The last vector has a copy of the code with masked or short accesses. Without copies its elements
 * go through a buffer.
 */
#if HAS_COPIES
#define FOR_VECTORS(n, ...)                                                                        \
    do {                                                                                           \
        int64_t i = 0;                                                                             \
        for (; i + LANES <= (n); i += LANES) {                                                     \
            const int64_t some = LANES;                                                            \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
        if (i < (n)) {                                                                             \
            const int64_t some = (n)-i;                                                            \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)
#define LOAD_AT(dtype, p, at) (some == LANES ? load(dtype, p, at) : load_n(dtype, p, at, some))
#define STORE(dtype, p, x)                                                                         \
    do {                                                                                           \
        if (some == LANES)                                                                         \
            store(dtype, p, i, x);                                                                 \
        else                                                                                       \
            store_n(dtype, p, i, some, x);                                                         \
    } while (0)
#else
#define FOR_VECTORS(n, ...)                                                                        \
    do {                                                                                           \
        for (int64_t i = 0; i < (n); i += LANES) {                                                 \
            const int64_t some = (n)-i < LANES ? (n)-i : LANES;                                    \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)
#define LOAD_AT(dtype, p, at)                                                                      \
    load(dtype,                                                                                    \
         some == LANES                                                                             \
             ? (const void *)((const char *)(p) + (at)*bytes_of(dtype))                            \
             : first_bytes((char[sizeof(vf)]){0}, (const char *)(p) + (at)*bytes_of(dtype),        \
                           bytes_of(dtype) * some),                                                \
         0)
#define STORE(dtype, p, x)                                                                         \
    do {                                                                                           \
        char last[sizeof(vf)];                                                                     \
        char *to_last = (char *)(p) + i * bytes_of(dtype);                                         \
        store(dtype, some == LANES ? to_last : last, 0, x);                                        \
        if (some != LANES)                                                                         \
            first_bytes(to_last, last, bytes_of(dtype) * some);                                    \
    } while (0)
static __attribute__((noinline)) const void *first_bytes(void *to, const void *from, int64_t n)
{
    return memcpy(to, from, (size_t)n);
}
#endif
#define LOAD(dtype, p) LOAD_AT(dtype, p, i)

/*
 * Runs the statement in a copy of the code in which the dtype is a constant, T. Without copies T is
 * a variable for the 16-bit dtypes.
 */
#if HAS_COPIES
#define BY_DTYPE_AS(T, dtype, ...)                                                                 \
    do {                                                                                           \
        if ((dtype) == KUMI_BF16) {                                                                \
            const enum kumi_dtype T = KUMI_BF16;                                                   \
            __VA_ARGS__;                                                                           \
        } else if ((dtype) == KUMI_F16) {                                                          \
            const enum kumi_dtype T = KUMI_F16;                                                    \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            const enum kumi_dtype T = KUMI_F32;                                                    \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)
#else
#define BY_DTYPE_AS(T, dtype, ...)                                                                 \
    do {                                                                                           \
        if ((dtype) != KUMI_F32) {                                                                 \
            const enum kumi_dtype T = (dtype);                                                     \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            const enum kumi_dtype T = KUMI_F32;                                                    \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)
#endif
#define BY_DTYPE(dtype, ...) BY_DTYPE_AS(T, dtype, __VA_ARGS__)

INLINE void cast_as(void *dst, enum kumi_dtype to, const void *src, enum kumi_dtype from, int64_t n)
{
    FOR_VECTORS(n, STORE(to, dst, LOAD(from, src)));
}
KERNEL void cast(void *dst, enum kumi_dtype to, const void *src, enum kumi_dtype from, int64_t n)
{
    if (to == from)
        memmove(dst, src, (size_t)n * kumi_dtype_bytes(to));
    else
        BY_DTYPE_AS(TO, to, BY_DTYPE_AS(FROM, from, cast_as(dst, TO, src, FROM, n)));
}

INLINE void add_as(void *dst, const void *a, const void *b, enum kumi_dtype t, int64_t n)
{
    FOR_VECTORS(n, STORE(t, dst, LOAD(t, a) + LOAD(t, b)));
}
KERNEL void add(void *dst, const void *a, const void *b, enum kumi_dtype t, int64_t n)
{
    BY_DTYPE(t, add_as(dst, a, b, T, n));
}
INLINE void mul_as(void *dst, const void *a, const void *b, enum kumi_dtype t, int64_t n)
{
    FOR_VECTORS(n, STORE(t, dst, LOAD(t, a) * LOAD(t, b)));
}
KERNEL void mul(void *dst, const void *a, const void *b, enum kumi_dtype t, int64_t n)
{
    BY_DTYPE(t, mul_as(dst, a, b, T, n));
}
INLINE void scale_as(void *dst, const void *x, float by, enum kumi_dtype t, int64_t n)
{
    FOR_VECTORS(n, STORE(t, dst, LOAD(t, x) * by));
}
KERNEL void scale(void *dst, const void *x, float by, enum kumi_dtype t, int64_t n)
{
    BY_DTYPE(t, scale_as(dst, x, by, T, n));
}

INLINE void clamp_as(void *dst, const void *x, float limit, enum kumi_dtype t, int64_t n)
{
    const vf most = splat(limit), least = splat(-limit); /* a NaN, the second operand, stays */
    FOR_VECTORS(n, STORE(t, dst, min_f(most, max_f(least, LOAD(t, x)))));
}
KERNEL void clamp(void *dst, const void *x, float limit, enum kumi_dtype t, int64_t n)
{
    BY_DTYPE(t, clamp_as(dst, x, limit, T, n));
}

/*
 * GELU. tanh form: x / (1 + e) with e = e^-2u, u = sqrt(2/pi) (x + 0.044715 x^3); it keeps relative
 * accuracy for negative x, where 1 + tanh u cancels. erf form: x erfc(-x / sqrt 2) / 2, with erfc
 * from Numerical Recipes (erfcc: relative error 1.2e-7).
 */
INLINE vf gelu_e(vf x)
{
    /*
     * constants: -2 sqrt(2/pi) log2 e, and 0.044715 times that; the limits avoid a NaN in e / (1 +
     * e)
     */
    vf t = x * (-2.3022082f + -0.10294324f * (x * x));
    return exp2_f(max_with(min_with(t, 115.0f), -126.0f));
}
INLINE vf logistic(vf x) /* limits as above, so that the slope of x logistic(x) is finite too */
{
    vf t = x * -1.44269504f;
    return reciprocal(1.0f + exp2_f(max_with(min_with(t, 126.0f), -126.0f)));
}
INLINE vf normal_cdf(vf x)
{
    vf z = min_with((vf)((vi)x & 0x7fffffff) * 0.70710678118654752f, 30);
    vf t = reciprocal(1.0f + 0.5f * z);
    vf p = splat(0.17087277f);
    p = p * t - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    p = p * t - 1.26551223f;
    vf half = 0.5f * t * exp_f(p - z * z);
    return select_f(is_below(x, 0), half, 1.0f - half);
}
/*
 * `term` is x times a factor that tends to 0. The computed factor is bounded below, so that for a
 * large x the term would grow: it is 0 there, and NaN for an infinite x, as in the definition.
 */
INLINE vf zero_if(vi is_far, vf x, vf term)
{
    return select_f(is_far, x * 0.0f, term);
}
INLINE vf act_f(int act, vf x)
{
    if (act == KU_ACT_RELU)
        return max_with(x, 0);
    if (act == KU_ACT_GELU_TANH)
        return zero_if(is_below(x, -32), x, x * reciprocal(1.0f + gelu_e(x)));
    if (act == KU_ACT_GELU_ERF)
        return zero_if(is_below(x, -32), x, x * normal_cdf(x));
    if (act == KU_ACT_SILU)
        return zero_if(is_below(x, -100), x, x * logistic(x));
    return x;
}
INLINE vf act_slope(int act, vf x)
{
    if (act == KU_ACT_RELU)
        return select_f(is_above(x, 0), splat(1), (vf){0});
    if (act == KU_ACT_GELU_TANH) {
        vf e = gelu_e(x), s = reciprocal(1.0f + e);
        vf du = 1.5957691216057308f * (1.0f + 0.134145f * x * x);
        return s + zero_if(is_magnitude_above(x, 32), x, x * du * (e * s) * s);
    }
    if (act == KU_ACT_GELU_ERF) {
        vf term = x * 0.3989422804014327f * exp_f(-0.5f * x * x);
        return normal_cdf(x) + zero_if(is_magnitude_above(x, 32), x, term);
    }
    if (act == KU_ACT_SILU) {
        vf s = logistic(x);
        return s + zero_if(is_magnitude_above(x, 100), x, x * s * logistic(-x));
    }
    return splat(1);
}
/* Runs f in a copy of the code in which the activation is a constant. */
#if HAS_COPIES
#define BY_ACT(act, f)                                                                             \
    do {                                                                                           \
        switch ((enum ku_act)(act)) {                                                              \
        case KU_ACT_NONE:                                                                          \
            f(KU_ACT_NONE);                                                                        \
            break;                                                                                 \
        case KU_ACT_RELU:                                                                          \
            f(KU_ACT_RELU);                                                                        \
            break;                                                                                 \
        case KU_ACT_GELU_TANH:                                                                     \
            f(KU_ACT_GELU_TANH);                                                                   \
            break;                                                                                 \
        case KU_ACT_GELU_ERF:                                                                      \
            f(KU_ACT_GELU_ERF);                                                                    \
            break;                                                                                 \
        case KU_ACT_SILU:                                                                          \
            f(KU_ACT_SILU);                                                                        \
            break;                                                                                 \
        }                                                                                          \
    } while (0)
#else
#define BY_ACT(act, f) f(act)
#endif

INLINE void act_as(void *dst, const void *x, int act, enum kumi_dtype t, int64_t n)
{
    FOR_VECTORS(n, STORE(t, dst, act_f(act, LOAD(t, x))));
}
KERNEL void act_all(void *dst, const void *x, int act, enum kumi_dtype t, int64_t n)
{
#define ONE(a) BY_DTYPE(t, act_as(dst, x, a, T, n))
    BY_ACT(act, ONE);
#undef ONE
}
INLINE void act_dx_as(void *dx, const void *dy, const void *x, int act, enum kumi_dtype t,
                      int64_t n)
{
    FOR_VECTORS(n, STORE(t, dx, LOAD(t, dy) * act_slope(act, LOAD(t, x))));
}
KERNEL void act_dx(void *dx, const void *dy, const void *x, int act, enum kumi_dtype t, int64_t n)
{
#define ONE(a) BY_DTYPE(t, act_dx_as(dx, dy, x, a, T, n))
    BY_ACT(act, ONE);
#undef ONE
}

INLINE void glu_as(void *dst, const void *gate, const void *up, int act, enum kumi_dtype t,
                   int64_t n)
{
    FOR_VECTORS(n, STORE(t, dst, act_f(act, LOAD(t, gate)) * LOAD(t, up)));
}
KERNEL void glu(void *dst, const void *gate, const void *up, int act, enum kumi_dtype t, int64_t n)
{
#define ONE(a) BY_DTYPE(t, glu_as(dst, gate, up, a, T, n))
    BY_ACT(act, ONE);
#undef ONE
}
/* Value and slope of act; SiLU computes its exponential once for both. */
INLINE void act_both(int act, vf x, vf *value, vf *slope)
{
    if (act == KU_ACT_SILU) {
        vf s = logistic(x);
        *value = zero_if(is_below(x, -100), x, x * s);
        *slope = s + zero_if(is_magnitude_above(x, 100), x, *value * (1.0f - s));
    } else {
        *value = act_f(act, x);
        *slope = act_slope(act, x);
    }
}
INLINE void glu_dx_as(void *dgate, void *dup, const void *dy, const void *gate, const void *up,
                      int act, enum kumi_dtype t, int64_t n)
{
    FOR_VECTORS(n, {
        vf d = LOAD(t, dy), u = LOAD(t, up), value, slope;
        act_both(act, LOAD(t, gate), &value, &slope);
        STORE(t, dgate, d * u * slope);
        STORE(t, dup, d * value);
    });
}
KERNEL void glu_dx(void *dgate, void *dup, const void *dy, const void *gate, const void *up,
                   int act, enum kumi_dtype t, int64_t n)
{
#define ONE(a) BY_DTYPE(t, glu_dx_as(dgate, dup, dy, gate, up, a, T, n))
    BY_ACT(act, ONE);
#undef ONE
}

INLINE void sum_into_as(float *sum, const void *x, enum kumi_dtype t, int64_t n)
{
    FOR_VECTORS(n, STORE(KUMI_F32, sum, LOAD(KUMI_F32, sum) + LOAD(t, x)));
}
KERNEL void sum_into(float *sum, const void *x, enum kumi_dtype t, int64_t n)
{
    BY_DTYPE(t, sum_into_as(sum, x, T, n));
}
INLINE void prod_into_as(float *sum, const void *a, const void *b, enum kumi_dtype t, float shift,
                         float factor, int64_t n)
{
    FOR_VECTORS(n, STORE(KUMI_F32, sum,
                         LOAD(KUMI_F32, sum) + LOAD(t, a) * ((LOAD(t, b) - shift) * factor)));
}
KERNEL void prod_into(float *sum, const void *a, const void *b, enum kumi_dtype t, float shift,
                      float factor, int64_t n)
{
    BY_DTYPE(t, prod_into_as(sum, a, b, T, shift, factor, n));
}

INLINE void finish_as(void *dst, enum kumi_dtype t, const float *sum, int accumulate, int64_t n)
{
    if (accumulate)
        FOR_VECTORS(n, STORE(t, dst, LOAD(t, dst) + LOAD(KUMI_F32, sum)));
    else
        FOR_VECTORS(n, STORE(t, dst, LOAD(KUMI_F32, sum)));
}
KERNEL void finish(void *dst, enum kumi_dtype t, const float *sum, int accumulate, int64_t n)
{
    BY_DTYPE(t, finish_as(dst, T, sum, accumulate, n));
}

/*
 * Non-temporal stores of full cache lines, which read no line. The caller must call ku_cpu_fence.
 */
INLINE void stream_f32(float *dst, const float *x, int64_t n)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    if ((uintptr_t)dst % 64 == 0)
        for (; i + LANES <= n; i += LANES)
            _mm512_stream_ps(dst + i, *(const __m512_u *)(x + i));
#endif
    if (i < n)
        memcpy(dst + i, x + i, (size_t)(n - i) * sizeof *dst);
}
INLINE void stream_halves(enum kumi_dtype t, uint16_t *dst, const float *x, int64_t n)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    if ((uintptr_t)dst % 64 == 0)
        for (; i + 2 * LANES <= n; i += 2 * LANES) {
            __m512i low = _mm512_castsi256_si512((__m256i)narrow(t, load(KUMI_F32, x, i)));
            __m256i high = (__m256i)narrow(t, load(KUMI_F32, x, i + LANES));
            _mm512_stream_si512((__m512i *)(void *)(dst + i), _mm512_inserti64x4(low, high, 1));
        }
#endif
    cast_as(dst + i, t, x + i, KUMI_F32, n - i);
}
INLINE void stream(enum kumi_dtype t, void *out, int64_t at, const float *x, int64_t n)
{
    if (t == KUMI_F32)
        stream_f32((float *)out + at, x, n);
    else
        stream_halves(t, (uint16_t *)out + at, x, n);
}

INLINE vf rounded(enum kumi_dtype t, vf x)
{
    if (t == KUMI_F16)
        return widen_f16(narrow_f16(x));
    return t == KUMI_BF16 ? (vf)(round_upper(x) & 0xffff0000u) : x;
}
INLINE void finish_rows_as(const struct ku_finish *f, enum kumi_dtype t, int act, int64_t n_rows,
                           const float *sum, int64_t ld_sum)
{
    const size_t row_bytes = (size_t)(f->ld * bytes_of(t));
    char *out = f->out, *raw = f->raw;
    for (int64_t r = 0; r < n_rows; r++) {
        FOR_VECTORS(f->n, {
            vf x = LOAD(KUMI_F32, sum);
            if (f->bias)
                x += LOAD(KUMI_F32, f->bias);
            if (f->accumulate)
                x += LOAD(t, out);
            if (act != KU_ACT_NONE)
                x = rounded(t, x);
            if (raw)
                STORE(t, raw, x);
            STORE(t, out, act_f(act, x));
        });
        sum += ld_sum, out += row_bytes;
        raw = raw ? raw + row_bytes : NULL;
    }
}
KERNEL void finish_rows(const struct ku_finish *f, int64_t n_rows, const float *sum, int64_t ld_sum)
{
    if (f->stream) {
        for (int64_t r = 0; r < n_rows; r++, sum += ld_sum)
            BY_DTYPE(f->dtype, stream(T, f->out, r * f->ld, sum, f->n));
        return;
    }
#define ONE(a) BY_DTYPE(f->dtype, finish_rows_as(f, T, a, n_rows, sum, ld_sum))
    BY_ACT(f->act, ONE);
#undef ONE
}

/* The transpose: column j of the sums is row j of out, of n_rows elements. */
INLINE void finish_cols_as(const struct ku_finish *f, enum kumi_dtype t, int64_t n_rows,
                           const float *sum, int64_t ld_sum)
{
    const int64_t bytes = bytes_of(t);
    for (int64_t j0 = 0; j0 < f->n; j0 += LANES)
        for (int64_t i = 0; i < n_rows; i += LANES) {
            const int64_t some = n_rows - i < LANES ? n_rows - i : LANES;
            vu v[LANES];
            for (int r = 0; r < LANES; r++)
                v[r] = r < some ? (vu)load(KUMI_F32, sum, (i + r) * ld_sum + j0) : (vu){0};
            transpose_16(v);
            for (int64_t j = 0; j < LANES && j0 + j < f->n; j++) {
                char *out = (char *)f->out + (j0 + j) * f->ld * bytes;
                vf x = (vf)v[j];
                if (f->accumulate)
                    x += LOAD(t, out);
                if (f->stream)
                    stream_f32((float *)(void *)out + i, (const float *)&x, some);
                else
                    STORE(t, out, x);
            }
        }
}
KERNEL void finish_cols(const struct ku_finish *f, int64_t n_rows, const float *sum, int64_t ld_sum)
{
    BY_DTYPE(f->dtype, finish_cols_as(f, T, n_rows, sum, ld_sum));
}
