/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_CPU_CPU_FEATURES_H
#define KU_BASE_CPU_CPU_FEATURES_H

#include <stdint.h>

#include "base/err.h"

/*
 * Instruction sets that our kernels dispatch on. Each includes those before it.
 */
enum ku_isa { KU_ISA_BASE, KU_ISA_AVX2, KU_ISA_AVX512, KU_ISA_AVX512BF16, KU_ISA_AMX, KU_N_ISAS };
/*
 * The best set that CPU and kernel (AMX permission) offer, or KUMI_CPU_ISA of the environment if
 * that is lower: for measurements and tests, the machine without its upper sets.
 */
enum ku_isa ku_cpu_isa(void);
KU_STATUS ku_cpu_isa_check(void);           /* KUMI_EINVAL: KUMI_CPU_ISA names no set */
const char *ku_cpu_isa_name(enum ku_isa i); /* "base", "avx2", "avx512", "avx512bf16", "amx" */
KU_STATUS ku_cpu_isa_parse(const char *name, enum ku_isa *out); /* KUMI_EINVAL with the list */
/* The named set, or this CPU's best set where it has less; NULL: its best. KUMI_EINVAL. */
KU_STATUS ku_cpu_isa_at_most(const char *name, enum ku_isa *out);
const char *ku_cpu_model(void); /* e.g. "AMD EPYC 9xx4"; static */

/*
 * Hash of the features that the CPU and its hypervisor announce. *signature: family, model and
 * stepping, as CPUID leaf 1 has them; 0: not an x86 CPU.
 */
uint64_t ku_cpu_feature_hash(unsigned *signature);

#endif
