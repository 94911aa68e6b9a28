/* SPDX-License-Identifier: Apache-2.0 */
#define ISA_OPS                 ku_isa_base
#define GEMM_BYTES              16
#define GEMM_MR                 4
#define GEMM_UNIT               float
#define GEMM_DEPTH              1
#define GEMM_MADD(acc, unit, b) ((acc) + (unit) * (b))
#define GEMM_PEAK_MADD(acc, b)  ((acc) * (b) + (b))
#include "device/cpu/isa/isa_body.h"
