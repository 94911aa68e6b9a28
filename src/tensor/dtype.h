/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TENSOR_DTYPE_H
#define KU_TENSOR_DTYPE_H

#include "base/err.h"
#include "kumi/dtype.h"

#include <stdbool.h>
#include <string.h>

KU_STATUS ku_dtype_parse(const char *name, enum kumi_dtype *out); /* KUMI_EINVAL with the list */
static inline bool ku_dtype_is_float(enum kumi_dtype d)
{
    return d <= KUMI_F16;
}

/* bf16 <-> f32, to nearest even; NaN stays NaN (quiet). */
static inline float ku_bf16_to_f32(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint16_t ku_bf16_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
/* f16 <-> f32, to nearest even, with subnormals. */
float ku_f16_to_f32(uint16_t x);
uint16_t ku_f16_from_f32(float f);

/*
 * Stochastic rounding to a 16-bit dtype. Of the two neighbours of x, the one away from zero is
 * taken if word * 2^-32 is below the distance of x from the other, in units of the distance between
 * them. The mean over uniform words is x. Representable values are unchanged; NaN stays NaN
 * (quiet).
 */
static inline uint16_t ku_bf16_from_f32_random(float x, uint32_t word)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u >> 16) + ((word >> 16) < (u & 0xffffu)));
}
uint16_t ku_f16_from_f32_random(float x, uint32_t word);
/* Rounds x[i] with word[i] into an array of a 16-bit float dtype. */
void ku_round_random(void *dst, enum kumi_dtype dtype, const float *x, const uint32_t *word,
                     int64_t count);

/* Rounds x to a narrower float dtype and back, in place. */
void ku_round_through(float *x, enum kumi_dtype dtype, int64_t count);

/*
 * Element i of an array of any dtype as f64, and back (rounded once to nearest even; integers are
 * truncated and saturate). For the reference device, tests and tools.
 */
double ku_load_f64(const void *data, enum kumi_dtype dtype, int64_t i);
void ku_store_f64(void *data, enum kumi_dtype dtype, int64_t i, double x);
/*
 * Converts count elements, rounding once. Vectorized for f32 <-> bf16.
 */
void ku_convert(void *dst, enum kumi_dtype dst_dtype, const void *src, enum kumi_dtype src_dtype,
                int64_t count);

#endif
