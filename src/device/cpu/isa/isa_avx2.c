/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#define ISA_OPS    ku_isa_avx2
#define GEMM_BYTES 32
#define GEMM_MR    6
#include "device/cpu/isa/isa_body.h"
#else
typedef int ku_isa_none; /* a translation unit must not be empty */
#endif
