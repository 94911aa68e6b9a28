/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bf16 products with f32 sums on AMX: up to 1,024 multiply-adds per cycle, sixteen times vdpbf16ps.
 */
#if defined(__x86_64__)
#include <immintrin.h>

#include "device/cpu/isa.h"
#include "device/cpu/simd.h"

#include "device/cpu/gemm/amx_body.h"

const struct ku_gemm_micro ku_gemm_amx = {
    AMX_MR, AMX_NR, AMX_SIDE, amx_parts, amx_micro, amx_peak, AMX_PEAK_FLOPS, amx_regroup, NULL, 0};
#else
typedef int ku_gemm_none; /* a translation unit must not be empty */
#endif
