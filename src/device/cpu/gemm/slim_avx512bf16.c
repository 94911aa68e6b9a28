/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bf16 dot-product pairs one vector wide, for columns that would leave half of two vectors empty.
 */
#if defined(__x86_64__)
#define GEMM_BYTES   64
#define GEMM_VECTORS 1
#define GEMM_MR      28
#define GEMM_UNIT    int32_t
#define GEMM_DEPTH   2
#define GEMM_MADD(acc, unit, b)                                                                    \
    ((gemm_v)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)_mm512_set1_epi32(unit), (__m512bh)(b)))
#define GEMM_PEAK_MADD(acc, b)                                                                     \
    ((gemm_v)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)(b), (__m512bh)(b)))
#include "device/cpu/isa.h"
#include "device/cpu/simd.h"

#include "device/cpu/gemm/gemm_body.h"

const struct ku_gemm_micro ku_slim_avx512bf16 = {GEMM_MICRO};
#else
typedef int ku_slim_none; /* a translation unit must not be empty */
#endif
