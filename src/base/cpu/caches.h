/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_CPU_CACHES_H
#define KU_BASE_CPU_CACHES_H

#include <stdint.h>

/*
 * Sizes of the data caches. Where cores differ, or a cache serves several of them, these are the
 * smallest size and a core's share of it. Shapes of tiles follow from them, bits never do.
 */
struct ku_caches {
    int64_t l1d_bytes, l2_bytes; /* of one core */
    int64_t l3_bytes;            /* of one last-level cache; 0: none */
    int l3_cores;                /* cores that share it; 1 if there is none */
};

/*
 * The caches of this machine (hwloc). What the topology does not tell, as in some containers and
 * virtual machines, is assumed: L1d 32 KiB, L2 512 KiB, no L3. Read once per process.
 */
const struct ku_caches *ku_caches_here(void);

#endif
