/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_COLLECTIVE_BENCH_H
#define KU_COMM_COLLECTIVE_BENCH_H

#include "base/err.h"
#include "job/job.h"
#include "kumi/dtype.h"

/*
 * One row of `kumi bench comm`. Times are of the slowest rank: median and 99th percentile over many
 * calls that start together.
 */
struct ku_bench_comm_row {
    /*
     * "all_reduce", …; "ping_pong": half of a round trip, of at least two ranks; "bookkeeping": an
     * operation that does not wait
     */
    char what[16];
    /*
     * Where the buffers are: "owned", "private"; "program": compiled, owned, in place; "": no data
     */
    const char *how;
    enum kumi_dtype dtype;
    int64_t bytes; /* of the whole vector; a block has bytes / ranks */
    double p50_ns, p99_ns;
    double gb_s;       /* bytes / p50 */
    double elements_s; /* elements / p50 */
    /*
     * limit / p50; 0: no limit, because the ranks have no core each or are on several hosts. The
     * limit is the time of the same ranks in a loop without bookkeeping: up to 88 bytes each stores
     * a flag and waits for the others'; above, each reads and writes the bytes that this collective
     * must.
     */
    double ratio;
};

/* All-zero means defaults. */
struct ku_bench_comm_opts {
    const char *only;  /* rows whose collective begins with this; NULL: all */
    const char *dtype; /* "f32" or "bf16"; NULL: both */
    int64_t bytes;     /* this size only; 0: 8 B, 64 KiB, 1 MiB, 64 MiB */
};
enum { KU_BENCH_COMM_ROWS = 160 };
/*
 * Measure all rows. Collective over the job; rank 0's rows are the result.
 *
 *   rows   [KU_BENCH_COMM_ROWS]
 *
 * Returns the number of rows, or a status.
 * Errors: KUMI_EINVAL (options), ENOMEM; the job's root cause.
 */
KU_STATUS ku_bench_comm(struct ku_job *job, const struct ku_bench_comm_opts *opts,
                        struct ku_bench_comm_row *rows);

#endif
