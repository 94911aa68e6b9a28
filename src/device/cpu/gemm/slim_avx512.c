/* SPDX-License-Identifier: Apache-2.0 */
/* f32 products one vector wide, for columns that would leave half of two vectors empty. */
#if defined(__x86_64__)
#define GEMM_BYTES              64
#define GEMM_VECTORS            1
#define GEMM_MR                 28
#define GEMM_UNIT               float
#define GEMM_DEPTH              1
#define GEMM_MADD(acc, unit, b) ((acc) + (unit) * (b))
#define GEMM_PEAK_MADD(acc, b)  ((acc) * (b) + (b))
#include "device/cpu/isa.h"
#include "device/cpu/simd.h"

#include "device/cpu/gemm/gemm_body.h"

const struct ku_gemm_micro ku_slim_avx512 = {GEMM_MICRO};
#else
typedef int ku_slim_none; /* a translation unit must not be empty */
#endif
