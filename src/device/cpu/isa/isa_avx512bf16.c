/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 matrix products with f32 sums, and attention, on vdpbf16ps: twice the rate of f32. */
#if defined(__x86_64__)
#define GEMM_BYTES 64
#define GEMM_MR    14
#define GEMM_UNIT  int32_t
#define GEMM_DEPTH 2
#define GEMM_MADD(acc, unit, b)                                                                    \
    ((gemm_v)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)_mm512_set1_epi32(unit), (__m512bh)(b)))
#define GEMM_PEAK_MADD(acc, b)                                                                     \
    ((gemm_v)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)(b), (__m512bh)(b)))
#include "device/cpu/isa.h"
#include "device/cpu/simd.h"
#include "op/attr.h"

#include "device/cpu/elementwise/elem_body.h"
#include "device/cpu/elementwise/dropout_body.h"
#include "device/cpu/gemm/pack_body.h"
#include "device/cpu/gemm/gemm_body.h"
#include "device/cpu/gemm/thin_body.h"
#include "device/cpu/attention/attn_common.h"
#include "device/cpu/attention/dot_pairs_body.h"
#include "device/cpu/attention/short_body.h"

const struct ku_isa_pairs ku_pairs_avx512bf16 = {
    .gemm = {GEMM_MICRO, .thin = thin, .thin_rows = THIN_ROWS_MAX},
    .attn = {PAIRS_BLOCKS * QUERIES, pairs_forward, pairs_backward},
    .attn_short_forward = short_forward,
    .attn_short_backward = short_backward,
};
#else
typedef int ku_pairs_none; /* a translation unit must not be empty */
#endif
