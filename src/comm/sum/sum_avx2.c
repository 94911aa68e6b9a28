/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__AVX2__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define KU_F16_LANES 8
static inline void f16_load(float *to, const uint16_t *from)
{
    __m128i p;
    memcpy(&p, from, sizeof p);
    _mm256_storeu_ps(to, _mm256_cvtph_ps(p));
}
static inline void f16_store(uint16_t *to, const float *from)
{
    __m128i p = _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
    memcpy(to, &p, sizeof p);
}
#define KU_SUM_TABLE ku_sum_avx2
#include "comm/sum/kernels.h"
#endif
