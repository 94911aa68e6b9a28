/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_KERNEL_RATES_H
#define KU_DEVICE_KERNEL_RATES_H

#include "base/cpu/cpu_features.h"
#include "base/err.h"
#include "kumi/dtype.h"

/*
 * Matrix kernels of the cpu device, and which instruction set a run uses.
 *
 * A CPU announces what it can run, not what is fast: dot products of bf16 run at twice the rate of
 * f32 multiply-adds on one model and at half of it on another, where AMX is masked. The kernels are
 * therefore timed, a few milliseconds in all, and a run uses the set whose kernel for its compute
 * dtype is the fastest:
 *
 *     set           f32 products       bf16 products
 *     amx           as avx512          tiles
 *     avx512bf16    as avx512          dot-product instruction
 *     avx512        16 lanes           f32 kernel on operands that packing widens
 *     avx2          8 lanes            f32 kernel on widened operands
 *
 * f16 products are computed in f32. Everything but products and attention of bf16 is the same in
 * the three upper sets.
 */
struct ku_kernel_rates {
    double f32[KU_N_ISAS], bf16[KU_N_ISAS]; /* FLOP/s of one core; 0: the CPU lacks the set */
};

/*
 * Times a product of operands in L1 with each kernel that this CPU runs, in turns, and takes the
 * best of each; 30 ms. The base set is timed only where it is the only one. KUMI_ENOMEM.
 */
KU_STATUS ku_kernel_rates_measure(struct ku_kernel_rates *out);

/*
 * The set with the fastest kernel for a compute dtype. A set replaces a higher one only if it is
 * KU_KERNEL_MARGIN times as fast: noise does not flip the choice, and of equal kernels the higher
 * set wins, whose operands take less cache.
 */
#define KU_KERNEL_MARGIN 1.1
enum ku_isa ku_kernel_choose(const struct ku_kernel_rates *rates, enum kumi_dtype compute);

/* FLOP/s of the kernel that a set uses for a compute dtype; 0: not measured. */
double ku_kernel_rate(const struct ku_kernel_rates *rates, enum kumi_dtype compute,
                      enum ku_isa isa);

#endif
