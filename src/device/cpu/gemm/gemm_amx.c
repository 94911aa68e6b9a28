/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 with sums in f32 on matrix tiles: up to 1,024 multiply-adds a cycle, sixteen
 * times vdpbf16ps. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "device/cpu/isa.h"
#include "device/cpu/simd.h"

/* gcc 12 declares eight of the configuration's 64 bytes as read: without the barrier the others
 * need not be written. */
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

const struct ku_gemm_micro ku_gemm_amx = {
    AMX_MR, AMX_NR, AMX_SIDE, amx_parts, amx_micro, amx_peak, AMX_PEAK_FLOPS, amx_regroup, NULL, 0};
#else
typedef int ku_gemm_none; /* an empty file is not C */
#endif
