/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bf16 products with f32 sums on AMX: 512 multiply-adds per cycle.
 */
#if defined(__x86_64__)
#include <immintrin.h>

#include "device/cpu/isa.h"
#include "device/cpu/simd.h"

#include "device/cpu/gemm/amx_body.h"
#include "device/cpu/gemm/amx_thin_body.h"

const struct ku_gemm_micro ku_gemm_amx = {.mr = AMX_MR,
                                          .nr = AMX_NR,
                                          .step = AMX_SIDE,
                                          .run_parts = amx_parts,
                                          .run = amx_micro,
                                          .end = amx_end,
                                          .peak = amx_peak,
                                          .peak_flops = AMX_PEAK_FLOPS,
                                          .regroup = amx_regroup,
                                          .thin = amx_thin,
                                          .thin_rows = AMX_THIN_ROWS,
                                          .is_thin_turned = 1};
#else
typedef int ku_gemm_none; /* a translation unit must not be empty */
#endif
