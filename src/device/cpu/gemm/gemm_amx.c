/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bf16 products with f32 sums on AMX: up to 1,024 multiply-adds per cycle, sixteen times vdpbf16ps.
 */
#if defined(__x86_64__)
#include <immintrin.h>

#include "device/cpu/isa.h"
#include "device/cpu/simd.h"

/*
 * gcc 12 declares only eight of the 64 bytes as read; without the barrier it may drop the stores of
 * the others.
 */
#define TILE_CONFIG(c)                                                                             \
    do {                                                                                           \
        __asm__ volatile("" : : "r"(c) : "memory");                                                \
        _tile_loadconfig(c);                                                                       \
    } while (0)
#define TILE_RELEASE()           _tile_release()
#define TILE_ZERO(t)             _tile_zero(t)
#define TILE_LOAD(t, at, bytes)  _tile_loadd(t, at, bytes)
#define TILE_STORE(t, at, bytes) _tile_stored(t, at, bytes)
#define TILE_DP(c, a, b)         _tile_dpbf16ps(c, a, b)
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
