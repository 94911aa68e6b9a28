/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__AVX512F__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/*
 * Sixteen f16 at a time through f32. The rest goes through a padded copy.
 */
#define KU_F16_PAIR(name, op)                                                                      \
    static void name##_16(uint16_t *o, const uint16_t *x, const uint16_t *y)                       \
    {                                                                                              \
        float a[16], b[16];                                                                        \
        __m256i p, q;                                                                              \
        memcpy(&p, x, 32);                                                                         \
        memcpy(&q, y, 32);                                                                         \
        _mm512_storeu_ps(a, _mm512_cvtph_ps(p));                                                   \
        _mm512_storeu_ps(b, _mm512_cvtph_ps(q));                                                   \
        for (int i = 0; i < 16; i++)                                                               \
            a[i] = op(a[i], b[i]);                                                                 \
        p = _mm512_cvtps_ph(_mm512_loadu_ps(a), _MM_FROUND_TO_NEAREST_INT);                        \
        memcpy(o, &p, 32);                                                                         \
    }                                                                                              \
    static void name(void *out, void *out2, const void *a, const void *b, int64_t count)           \
    {                                                                                              \
        uint16_t *o = out, *o2 = out2;                                                             \
        const uint16_t *x = a, *y = b;                                                             \
        int64_t i = 0;                                                                             \
        for (; i + 16 <= count; i += 16) {                                                         \
            name##_16(o + i, x + i, y + i);                                                        \
            if (o2)                                                                                \
                memcpy(o2 + i, o + i, 32);                                                         \
        }                                                                                          \
        if (i < count) {                                                                           \
            uint16_t u[16] = {0}, v[16] = {0};                                                     \
            memcpy(u, x + i, (size_t)(count - i) * 2);                                             \
            memcpy(v, y + i, (size_t)(count - i) * 2);                                             \
            name##_16(u, u, v);                                                                    \
            memcpy(o + i, u, (size_t)(count - i) * 2);                                             \
            if (o2)                                                                                \
                memcpy(o2 + i, u, (size_t)(count - i) * 2);                                        \
        }                                                                                          \
    }
#define KU_SUM_TABLE ku_sum_avx512
#include "comm/sum_kernels.h"
#endif
