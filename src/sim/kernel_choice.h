/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_SIM_KERNEL_CHOICE_H
#define KU_SIM_KERNEL_CHOICE_H

#include "device/kernel_rates.h"

/*
 * The kernels' rates on this machine, measured once and stored in kernels.json of the cache folder
 * (sim/machine_file.h), a row for each machine:
 *
 *     {"identity", "machine",               key: ku_machine_cpu, ku_machine_id
 *      "f32": {"avx2": FLOP/s, ..}, "bf16": {..}, "date"}
 *
 * A row stands until the machine's identity changes, so all runs on a machine make one choice; of
 * runs that measure at the same time the first that stores its row makes it. To measure again,
 * delete the file.
 */
enum { KU_KERNEL_DAY_BYTES = 11 };

/*
 * Reads the rates of this machine; measures and stores them if they are not there.
 *
 *   day   "2026-03-01": when they were measured; NULL: not wanted
 *
 * A cache that cannot be written is no error. KUMI_ENOMEM; KUMI_EINVAL: KUMI_CPU_ISA names no set.
 */
KU_STATUS ku_kernel_rates_get(struct ku_kernel_rates *out, char day[KU_KERNEL_DAY_BYTES]);

/*
 * The instruction set of a run with this compute dtype: parallel.isa (`pinned`), or the highest
 * that the CPU has where it lacks that one; NULL: the fastest as measured. KUMI_EINVAL: `pinned`
 * or KUMI_CPU_ISA names no set.
 */
KU_STATUS ku_isa_resolve(const char *pinned, enum kumi_dtype compute, enum ku_isa *out);

#endif
