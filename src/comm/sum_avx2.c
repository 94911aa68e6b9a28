/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__AVX2__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/*
 * Eight f16 at a time through f32. The rest goes through a padded copy, so every element takes the
 * same path.
 */
#define KU_F16_PAIR(name, op)                                                                      \
    static void name##_8(uint16_t *o, const uint16_t *x, const uint16_t *y)                        \
    {                                                                                              \
        float a[8], b[8];                                                                          \
        __m128i p, q;                                                                              \
        memcpy(&p, x, 16);                                                                         \
        memcpy(&q, y, 16);                                                                         \
        _mm256_storeu_ps(a, _mm256_cvtph_ps(p));                                                   \
        _mm256_storeu_ps(b, _mm256_cvtph_ps(q));                                                   \
        for (int i = 0; i < 8; i++)                                                                \
            a[i] = op(a[i], b[i]);                                                                 \
        p = _mm256_cvtps_ph(_mm256_loadu_ps(a), _MM_FROUND_TO_NEAREST_INT);                        \
        memcpy(o, &p, 16);                                                                         \
    }                                                                                              \
    static void name(void *out, void *out2, const void *a, const void *b, int64_t count)           \
    {                                                                                              \
        uint16_t *o = out, *o2 = out2;                                                             \
        const uint16_t *x = a, *y = b;                                                             \
        int64_t i = 0;                                                                             \
        for (; i + 8 <= count; i += 8) {                                                           \
            name##_8(o + i, x + i, y + i);                                                         \
            if (o2)                                                                                \
                memcpy(o2 + i, o + i, 16);                                                         \
        }                                                                                          \
        if (i < count) {                                                                           \
            uint16_t u[8] = {0}, v[8] = {0};                                                       \
            memcpy(u, x + i, (size_t)(count - i) * 2);                                             \
            memcpy(v, y + i, (size_t)(count - i) * 2);                                             \
            name##_8(u, u, v);                                                                     \
            memcpy(o + i, u, (size_t)(count - i) * 2);                                             \
            if (o2)                                                                                \
                memcpy(o2 + i, u, (size_t)(count - i) * 2);                                        \
        }                                                                                          \
    }
#define KU_SUM_TABLE ku_sum_avx2
#include "comm/sum_kernels.h"
#endif
