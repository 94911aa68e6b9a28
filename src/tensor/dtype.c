/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/dtype.h"

#include <math.h>

#include "base/err.h"

static const struct {
    const char *name;
    size_t bytes;
} table[KUMI_N_DTYPES] = {
    [KUMI_F32] = {"f32", 4}, [KUMI_F64] = {"f64", 8}, [KUMI_BF16] = {"bf16", 2},
    [KUMI_F16] = {"f16", 2}, [KUMI_I64] = {"i64", 8}, [KUMI_I32] = {"i32", 4},
    [KUMI_U16] = {"u16", 2}, [KUMI_U8] = {"u8", 1}};

size_t kumi_dtype_bytes(enum kumi_dtype dtype)
{
    return (unsigned)dtype < KUMI_N_DTYPES ? table[dtype].bytes : 0;
}

const char *kumi_dtype_name(enum kumi_dtype dtype)
{
    return (unsigned)dtype < KUMI_N_DTYPES ? table[dtype].name : "?";
}

int ku_dtype_parse(const char *name, enum kumi_dtype *out)
{
    for (int d = 0; d < KUMI_N_DTYPES; d++)
        if (strcmp(name, table[d].name) == 0) {
            *out = (enum kumi_dtype)d;
            return KUMI_OK;
        }
    return KU_ERR(KUMI_EINVAL, "dtype: %s: unknown; one of f32 f64 bf16 f16 i64 i32 u16 u8", name);
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

float ku_f16_to_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, mantissa = x & 1023;
    if (exponent == 31) /* infinity; a NaN becomes quiet, its payload is preserved */
        return float_of(sign | 0x7f800000 | (mantissa ? 0x400000 : 0) | mantissa << 13);
    if (exponent == 0) /* units of 2^-24, exact */
        return float_of(sign | bits_of((float)mantissa * 0x1p-24f));
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t ku_f16_from_f32(float f)
{
    uint32_t u = bits_of(f);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x3ff));
    if (u >= 0x47800000)
        return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000) /* subnormal or zero: units of 2^-24; rintf rounds to nearest even */
        return (uint16_t)(sign | (uint16_t)rintf(float_of(u) * 0x1p24f));
    u += 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | (uint16_t)((u - 0x38000000) >> 13));
}

uint16_t ku_f16_from_f32_random(float x, uint32_t word)
{
    uint32_t u = bits_of(x);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x3ff));
    if (u >= 0x47800000)
        return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000) { /* units of 2^-24 */
        double units = (double)float_of(u) * 0x1p24, whole = floor(units);
        return (uint16_t)(sign | ((uint16_t)whole + (word * 0x1p-32 < units - whole)));
    }
    return (uint16_t)(sign | (((u - 0x38000000) >> 13) + ((word >> 19) < (u & 0x1fff))));
}

void ku_round_random(void *dst, enum kumi_dtype dtype, const float *x, const uint32_t *word,
                     int64_t count)
{
    uint16_t *to = dst;
    KU_ASSERT(dtype == KUMI_BF16 || dtype == KUMI_F16);
    if (dtype == KUMI_BF16)
        for (int64_t i = 0; i < count; i++)
            to[i] = ku_bf16_from_f32_random(x[i], word[i]);
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = ku_f16_from_f32_random(x[i], word[i]);
}

void ku_round_through(float *x, enum kumi_dtype dtype, int64_t count)
{
    uint16_t narrow[256];
    KU_ASSERT(kumi_dtype_bytes(dtype) == sizeof *narrow);
    for (int64_t n = sizeof narrow / sizeof *narrow; count > 0; x += n, count -= n) {
        n = count < n ? count : n;
        ku_convert(narrow, dtype, x, KUMI_F32, n);
        ku_convert(x, KUMI_F32, narrow, dtype, n);
    }
}

double ku_load_f64(const void *data, enum kumi_dtype dtype, int64_t i)
{
    switch (dtype) {
    case KUMI_F32:
        return (double)((const float *)data)[i];
    case KUMI_F64:
        return ((const double *)data)[i];
    case KUMI_BF16:
        return (double)ku_bf16_to_f32(((const uint16_t *)data)[i]);
    case KUMI_F16:
        return (double)ku_f16_to_f32(((const uint16_t *)data)[i]);
    case KUMI_I64:
        return (double)((const int64_t *)data)[i];
    case KUMI_I32:
        return ((const int32_t *)data)[i];
    case KUMI_U16:
        return ((const uint16_t *)data)[i];
    case KUMI_U8:
        return ((const uint8_t *)data)[i];
    case KUMI_N_DTYPES:
        break;
    }
    KU_ASSERT(!"a dtype");
    return 0;
}

/*
 * Rounds to odd: a rounding to f32 that does not change the result of the next rounding to fewer
 * bits (Boldo & Melquiond 2008).
 */
static float round_odd(double x)
{
    float f = (float)x;
    uint32_t u = bits_of(f);
    if (isnan(x) || isinf(f) || (double)f == x || u & 1)
        return f;
    return float_of(fabs((double)f) < fabs(x) ? u + 1 : u - 1);
}

/* The same from i64 to f64: above 2^53 the dropped bits set the last bit. */
static double round_odd_i64(int64_t x)
{
    uint64_t magnitude = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    int drop = magnitude >> 53 ? 11 - __builtin_clzll(magnitude) : 0;
    uint64_t kept = magnitude >> drop;
    if (kept << drop != magnitude)
        kept |= 1;
    double result = ldexp((double)kept, drop);
    return x < 0 ? -result : result;
}

static double clamp(double x, double low, double high)
{
    return isnan(x) ? 0 : x < low ? low : x > high ? high : trunc(x);
}

void ku_store_f64(void *data, enum kumi_dtype dtype, int64_t i, double x)
{
    switch (dtype) {
    case KUMI_F32:
        ((float *)data)[i] = (float)x;
        return;
    case KUMI_F64:
        ((double *)data)[i] = x;
        return;
    case KUMI_BF16:
        ((uint16_t *)data)[i] = ku_bf16_from_f32(round_odd(x));
        return;
    case KUMI_F16:
        ((uint16_t *)data)[i] = ku_f16_from_f32(round_odd(x));
        return;
    case KUMI_I64:
        ((int64_t *)data)[i] = x >= 0x1p63 ? INT64_MAX : (int64_t)clamp(x, -0x1p63, 0x1p63);
        return;
    case KUMI_I32:
        ((int32_t *)data)[i] = (int32_t)clamp(x, INT32_MIN, INT32_MAX);
        return;
    case KUMI_U16:
        ((uint16_t *)data)[i] = (uint16_t)clamp(x, 0, UINT16_MAX);
        return;
    case KUMI_U8:
        ((uint8_t *)data)[i] = (uint8_t)clamp(x, 0, UINT8_MAX);
        return;
    case KUMI_N_DTYPES:
        break;
    }
    KU_ASSERT(!"a dtype");
}

void ku_convert(void *dst, enum kumi_dtype dst_dtype, const void *src, enum kumi_dtype src_dtype,
                int64_t count)
{
#define EACH(to, from, x)                                                                          \
    for (int64_t i = 0; i < count; i++) {                                                          \
        const from v = ((const from *)src)[i];                                                     \
        ((to *)dst)[i] = x;                                                                        \
    }
    if (dst_dtype == src_dtype)
        memcpy(dst, src, (size_t)count * kumi_dtype_bytes(dst_dtype));
    else if (dst_dtype == KUMI_BF16 && src_dtype == KUMI_F32)
        EACH(uint16_t, float, ku_bf16_from_f32(v))
    else if (dst_dtype == KUMI_F16 && src_dtype == KUMI_F32)
        EACH(uint16_t, float, ku_f16_from_f32(v))
    else if (dst_dtype == KUMI_F32 && src_dtype == KUMI_BF16)
        EACH(float, uint16_t, ku_bf16_to_f32(v))
    else if (dst_dtype == KUMI_F32 && src_dtype == KUMI_F16)
        EACH(float, uint16_t, ku_f16_to_f32(v))
    else if (dst_dtype == KUMI_F32 && src_dtype == KUMI_F64)
        EACH(float, double, (float)v)
    else if (src_dtype == KUMI_I64 && ku_dtype_is_float(dst_dtype) && dst_dtype != KUMI_F64)
        for (int64_t i = 0; i < count; i++)
            ku_store_f64(dst, dst_dtype, i, round_odd_i64(((const int64_t *)src)[i]));
    else
        for (int64_t i = 0; i < count; i++)
            ku_store_f64(dst, dst_dtype, i, ku_load_f64(src, src_dtype, i));
#undef EACH
}
