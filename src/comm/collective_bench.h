/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_COLLECTIVE_BENCH_H
#define KU_COMM_COLLECTIVE_BENCH_H

#include "comm/job.h"
#include "kumi/dtype.h"

/* One line of `kumi bench comm`. Times are of the slowest rank: median and 99th percentile of many
 * calls that begin together. */
struct ku_bench_comm_row {
    char what[16];   /* "all_reduce"; "ping_pong": half of there and back; "bookkeeping": an
                        operation that waits for nobody */
    const char *how; /* where the buffers are: "owned", "private"; "program": compiled, owned, in
                        place; "" without data */
    enum kumi_dtype dtype;
    int64_t bytes; /* of the whole vector: blocks are bytes / ranks */
    double p50_ns, p99_ns;
    double gb_s;       /* bytes / p50 */
    double elements_s; /* bytes / bytes of the dtype / p50 */
    double ratio;      /* limit / p50; the limit is that of the same ranks storing and seeing one
                          flag each (to 88 bytes), else that of a loop without flags which reads and
                          writes as many bytes as this collective must; 0: none, ranks
                          without a core each */
};

/* All-zero means defaults. */
struct ku_bench_comm_opts {
    const char *only;  /* rows whose collective begins so; NULL: all */
    const char *dtype; /* "f32", "bf16"; NULL: both */
    int64_t bytes;     /* this size alone; 0: 8 B, 64 KiB, 1 MiB, 64 MiB */
};
enum { KU_BENCH_COMM_ROWS = 160 };
/*
 * Measure. Collective over the job; rank 0's rows are the result.
 *
 *   rows   [KU_BENCH_COMM_ROWS]; the number filled is returned, or a status
 *
 * Errors: KUMI_EINVAL (options), ENOMEM; the job's root cause.
 */
int ku_bench_comm(struct ku_job *job, const struct ku_bench_comm_opts *opts,
                  struct ku_bench_comm_row *rows);

#endif
