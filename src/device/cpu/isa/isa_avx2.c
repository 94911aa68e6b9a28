/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#define ISA_OPS                 ku_isa_avx2
#define GEMM_BYTES              32
#define GEMM_MR                 6
#define GEMM_UNIT               float
#define GEMM_DEPTH              1
#define GEMM_MADD(acc, unit, b) ((acc) + (unit) * (b))
#define GEMM_PEAK_MADD(acc, b)  ((acc) * (b) + (b))
#include "device/cpu/isa/isa_body.h"
#else
typedef int ku_isa_none; /* a translation unit must not be empty */
#endif
