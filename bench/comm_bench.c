/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on this machine: comm_bench [ranks [bytes [collective]]]. The core is
 * src/comm/bench.c. */
#include "base/err.h"
#include "comm/bench.h"
#include "comm/launch.h"

#include <stdio.h>
#include <stdlib.h>

static int run(void *arg)
{
    static struct ku_bench_comm_row rows[KU_BENCH_COMM_ROWS];
    struct ku_job *job;
    KU_TRY(ku_job_join(NULL, &job));
    int n = ku_bench_comm(job, arg, rows);
    for (int i = 0; i < n && job->rank == 0; i++) {
        const struct ku_bench_comm_row *r = &rows[i];
        printf("%d ranks  %-14s %-8s %-4s %10lld B  p50 %10.2f us  p99 %10.2f us  %7.2f GB/s  "
               "%.2f of the limit\n",
               job->n, r->what, r->how, kumi_dtype_name(r->dtype), (long long)r->bytes,
               r->p50_ns * 1e-3, r->p99_ns * 1e-3, r->gb_s, r->ratio);
    }
    int left = ku_job_leave(job);
    return n < 0 ? n : left;
}

int main(int argc, char **argv)
{
    struct ku_bench_comm_opts opts = {.bytes = argc > 2 ? atoll(argv[2]) : 0,
                                      .only = argc > 3 ? argv[3] : NULL};
    int status = kumi_launch(run, &opts, argc > 1 ? atoi(argv[1]) : 2);
    if (status < 0)
        ku_err_print();
    return -status;
}
