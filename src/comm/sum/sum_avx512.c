/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__AVX512F__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define KU_F16_LANES 16
static inline void f16_load(float *to, const uint16_t *from)
{
    __m256i p;
    memcpy(&p, from, sizeof p);
    _mm512_storeu_ps(to, _mm512_cvtph_ps(p));
}
static inline void f16_store(uint16_t *to, const float *from)
{
    __m256i p = _mm512_cvtps_ph(_mm512_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
    memcpy(to, &p, sizeof p);
}
#define KU_SUM_TABLE ku_sum_avx512
#include "comm/sum/kernels.h"
#endif
