/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_BENCH_H
#define KU_COMM_BENCH_H

#include "comm/job.h"

/* What `kumi bench comm` prints, measured by the ranks of a job. Times are medians (p50) of many
 * calls, in ns. */
struct ku_bench_row {
    char what[48]; /* "all_reduce", "barrier" */
    char how[16];  /* "owned", "private", "program" */
    int64_t bytes; /* of one rank's vector */
    double p50_ns, p99_ns;
    double gb_s;  /* bytes / p50 */
    double ratio; /* against the same sum without synchronisation on the same cores; 0: none
                     measured */
};
/*
 * Measure. Collective over the job; rank 0's rows are the result.
 *
 *   max_bytes   largest vector; 0: 64 MiB
 *   rows        cap of them, e.g. 64; the number filled is returned, or a status
 */
int ku_bench_comm(struct ku_job *job, int64_t max_bytes, struct ku_bench_row *rows, int cap);

#endif
