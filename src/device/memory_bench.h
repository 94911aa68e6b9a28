/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_MEMORY_BENCH_H
#define KU_DEVICE_MEMORY_BENCH_H

#include "device/device.h"
#include "device/peak_bench.h"

/*
 * How fast all threads together read and write memory, and how fast they meet: further rows of
 * `kumi bench peak`. No limit of the roofline rests on them; device/peak_bench.h has those.
 */
struct ku_memory_rates {
    /*
     * Bytes per second, with 1, 1, 2 and 3 accesses per element. The better of one stream and four
     * (reads), and of plain and non-temporal stores (the others).
     */
    struct ku_spread read, write, copy, triad;
    /*
     * ns, not a rate: a job of the thread pool in which every thread waits for all others, from its
     * start to its end.
     */
    struct ku_spread meet_ns;
};
/*
 * Takes about half a second. Errors: those of ku_pool_create, KUMI_ENOMEM; *out is then unchanged.
 */
KU_STATUS ku_bench_memory(const struct ku_device_opts *opts, struct ku_memory_rates *out);

#endif
