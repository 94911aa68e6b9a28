/* SPDX-License-Identifier: Apache-2.0 */
#define ISA_OPS    ku_isa_base
#define GEMM_BYTES 16
#define GEMM_MR    4
#include "device/cpu/isa/isa_body.h"
