/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of bf16 on matrix tiles. */
#if defined(__x86_64__)
#define GEMM_NR   32
#define ATTN_KEYS 128
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"
#include "op/attr.h"

#include "device/cpu/elementwise/elem_body.h"
#include "device/cpu/elementwise/dropout_body.h"
#include "device/cpu/gemm/amx_tiles.h"
#include "device/cpu/attention/attn_common.h"
#include "device/cpu/attention/tiles_body.h"
#include "device/cpu/attention/tiles_back_body.h"

const struct ku_attn_bf16 ku_attn_amx = {TILE_BLOCKS * QUERIES, tiles_forward, tiles_backward};
#else
typedef int ku_attn_none; /* a translation unit must not be empty */
#endif
