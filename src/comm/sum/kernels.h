/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pair kernels as plain loops, compiled once per instruction set by the file that defines
 * KU_SUM_TABLE. No kernel both multiplies and adds, so contraction cannot make the sets differ.
 * Integer arithmetic wraps.
 */
#include "comm/sum.h"
#include "tensor/dtype.h"

#include <string.h>

#define KU_OP_SUM(a, b)  ((a) + (b))
#define KU_OP_PROD(a, b) ((a) * (b))
/* If either operand is NaN, the result is NaN. */
#define KU_OP_MIN(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define KU_OP_MAX(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

/*
 * An output may be an input: element i is read before it is written, and iterations are
 * independent.
 */
#if defined(__clang__)
/* a loop that cannot be vectorized is fine (f16 without the instructions) */
#pragma clang diagnostic ignored "-Wpass-failed"
#define KU_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define KU_INDEPENDENT _Pragma("GCC ivdep")
#endif

#define KU_PAIR_LOOP(name, type, wide, load, store, op)                                            \
    static void name(void *out, void *out2, const void *a, const void *b, int64_t count)           \
    {                                                                                              \
        type *o = out, *o2 = out2;                                                                 \
        const type *x = a, *y = b;                                                                 \
        if (!o2) {                                                                                 \
            KU_INDEPENDENT                                                                         \
            for (int64_t i = 0; i < count; i++) {                                                  \
                wide p = load(x[i]), q = load(y[i]);                                               \
                o[i] = (type)store((wide)op(p, q));                                                \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        KU_INDEPENDENT                                                                             \
        for (int64_t i = 0; i < count; i++) {                                                      \
            wide p = load(x[i]), q = load(y[i]);                                                   \
            type z = (type)store((wide)op(p, q));                                                  \
            o[i] = z;                                                                              \
            o2[i] = z;                                                                             \
        }                                                                                          \
    }
#define KU_PAIRS(dt, type, wide, load, store)                                                      \
    KU_PAIR_LOOP(dt##_sum, type, wide, load, store, KU_OP_SUM)                                     \
    KU_PAIR_LOOP(dt##_min, type, wide, load, store, KU_OP_MIN)                                     \
    KU_PAIR_LOOP(dt##_max, type, wide, load, store, KU_OP_MAX)                                     \
    KU_PAIR_LOOP(dt##_prod, type, wide, load, store, KU_OP_PROD)
#define KU_AS_IS(x) (x)

KU_PAIRS(f32, float, float, KU_AS_IS, KU_AS_IS)
KU_PAIRS(f64, double, double, KU_AS_IS, KU_AS_IS)
KU_PAIR_LOOP(i32_min, int32_t, int32_t, KU_AS_IS, KU_AS_IS, KU_OP_MIN)
KU_PAIR_LOOP(i32_max, int32_t, int32_t, KU_AS_IS, KU_AS_IS, KU_OP_MAX)
KU_PAIR_LOOP(i32_sum, uint32_t, uint32_t, KU_AS_IS, KU_AS_IS, KU_OP_SUM)
KU_PAIR_LOOP(i32_prod, uint32_t, uint32_t, KU_AS_IS, KU_AS_IS, KU_OP_PROD)
KU_PAIR_LOOP(i64_min, int64_t, int64_t, KU_AS_IS, KU_AS_IS, KU_OP_MIN)
KU_PAIR_LOOP(i64_max, int64_t, int64_t, KU_AS_IS, KU_AS_IS, KU_OP_MAX)
KU_PAIR_LOOP(i64_sum, uint64_t, uint64_t, KU_AS_IS, KU_AS_IS, KU_OP_SUM)
KU_PAIR_LOOP(i64_prod, uint64_t, uint64_t, KU_AS_IS, KU_AS_IS, KU_OP_PROD)
KU_PAIRS(u8, uint8_t, uint8_t, KU_AS_IS, KU_AS_IS)

/*
 * bf16, two elements per 32-bit lane. Each half becomes an f32 by a mask or a shift, without
 * widening the vector: twice the speed. Rounds as ku_bf16_from_f32. Lanes may be unaligned.
 */
typedef uint32_t __attribute__((aligned(2), may_alias)) ku_bf16x2;
static inline float ku_bf16_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* The bf16 in the upper half; the lower half is undefined. */
static inline uint32_t ku_bf16_round(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return f != f ? u | 0x400000u : u + 0x7fffu + (u >> 16 & 1);
}
#define KU_BF16_LANE(op, to)                                                                       \
    do {                                                                                           \
        uint32_t p = x[i], q = y[i];                                                               \
        float p1 = ku_bf16_float(p & 0xffff0000u), q1 = ku_bf16_float(q & 0xffff0000u);            \
        float p0 = ku_bf16_float(p << 16), q0 = ku_bf16_float(q << 16);                            \
        uint32_t r1 = ku_bf16_round(op(p1, q1)), r0 = ku_bf16_round(op(p0, q0));                   \
        to(r1 & 0xffff0000u) | r0 >> 16;                                                           \
    } while (0)
#define KU_BF16_PAIR(name, op)                                                                     \
    static void name(void *out, void *out2, const void *a, const void *b, int64_t count)           \
    {                                                                                              \
        ku_bf16x2 *o = out, *o2 = out2;                                                            \
        const ku_bf16x2 *x = a, *y = b;                                                            \
        if (o2) {                                                                                  \
            KU_INDEPENDENT                                                                         \
            for (int64_t i = 0; i < count / 2; i++)                                                \
                KU_BF16_LANE(op, o[i] = o2[i] =);                                                  \
        } else {                                                                                   \
            KU_INDEPENDENT                                                                         \
            for (int64_t i = 0; i < count / 2; i++)                                                \
                KU_BF16_LANE(op, o[i] =);                                                          \
        }                                                                                          \
        if (count % 2) {                                                                           \
            float p = ku_bf16_to_f32(((const uint16_t *)a)[count - 1]);                            \
            float q = ku_bf16_to_f32(((const uint16_t *)b)[count - 1]);                            \
            uint16_t z = ku_bf16_from_f32(op(p, q));                                               \
            ((uint16_t *)out)[count - 1] = z;                                                      \
            if (o2)                                                                                \
                ((uint16_t *)out2)[count - 1] = z;                                                 \
        }                                                                                          \
    }
KU_BF16_PAIR(bf16_sum, KU_OP_SUM)
KU_BF16_PAIR(bf16_min, KU_OP_MIN)
KU_BF16_PAIR(bf16_max, KU_OP_MAX)
KU_BF16_PAIR(bf16_prod, KU_OP_PROD)

#ifdef KU_F16_LANES
/*
 * The including file loads and stores KU_F16_LANES f16 as f32 (f16_load, f16_store). The rest goes
 * through a padded copy, so every element takes the same path.
 */
#define KU_F16_PAIR(name, op)                                                                      \
    static void name##_lanes(uint16_t *o, const uint16_t *x, const uint16_t *y)                    \
    {                                                                                              \
        float a[KU_F16_LANES], b[KU_F16_LANES];                                                    \
        f16_load(a, x);                                                                            \
        f16_load(b, y);                                                                            \
        for (int i = 0; i < KU_F16_LANES; i++)                                                     \
            a[i] = op(a[i], b[i]);                                                                 \
        f16_store(o, a);                                                                           \
    }                                                                                              \
    static void name(void *out, void *out2, const void *a, const void *b, int64_t count)           \
    {                                                                                              \
        uint16_t *o = out, *o2 = out2;                                                             \
        const uint16_t *x = a, *y = b;                                                             \
        int64_t i = 0;                                                                             \
        for (; i + KU_F16_LANES <= count; i += KU_F16_LANES) {                                     \
            name##_lanes(o + i, x + i, y + i);                                                     \
            if (o2)                                                                                \
                memcpy(o2 + i, o + i, KU_F16_LANES * 2);                                           \
        }                                                                                          \
        if (i < count) {                                                                           \
            uint16_t u[KU_F16_LANES] = {0}, v[KU_F16_LANES] = {0};                                 \
            memcpy(u, x + i, (size_t)(count - i) * 2);                                             \
            memcpy(v, y + i, (size_t)(count - i) * 2);                                             \
            name##_lanes(u, u, v);                                                                 \
            memcpy(o + i, u, (size_t)(count - i) * 2);                                             \
            if (o2)                                                                                \
                memcpy(o2 + i, u, (size_t)(count - i) * 2);                                        \
        }                                                                                          \
    }
KU_F16_PAIR(f16_sum, KU_OP_SUM)
KU_F16_PAIR(f16_min, KU_OP_MIN)
KU_F16_PAIR(f16_max, KU_OP_MAX)
KU_F16_PAIR(f16_prod, KU_OP_PROD)
#else
KU_PAIRS(f16, uint16_t, float, ku_f16_to_f32, ku_f16_from_f32)
#endif

#define KU_ROW(dt)                                                                                 \
    {                                                                                              \
        [KU_PAIR_SUM] = dt##_sum, [KU_PAIR_MIN] = dt##_min, [KU_PAIR_MAX] = dt##_max,              \
        [KU_PAIR_PROD] = dt##_prod                                                                 \
    }
const struct ku_sum_kernels KU_SUM_TABLE = {.pair = {[KUMI_F32] = KU_ROW(f32),
                                                     [KUMI_F64] = KU_ROW(f64),
                                                     [KUMI_BF16] = KU_ROW(bf16),
                                                     [KUMI_F16] = KU_ROW(f16),
                                                     [KUMI_I64] = KU_ROW(i64),
                                                     [KUMI_I32] = KU_ROW(i32),
                                                     [KUMI_U8] = KU_ROW(u8)}};
