/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on this machine: comm_bench [ranks] [max MiB]. The core is src/comm/bench.c. */
#include "base/err.h"
#include "comm/bench.h"
#include "comm/launch.h"

#include <stdio.h>
#include <stdlib.h>

static int run(void *arg)
{
    enum { CAP = 64 };
    struct ku_bench_row rows[CAP];
    struct ku_job *job;
    KU_TRY(ku_job_join(NULL, &job));
    int n = ku_bench_comm(job, *(int64_t *)arg, rows, CAP);
    for (int i = 0; i < n && job->rank == 0; i++) {
        const struct ku_bench_row *r = &rows[i];
        printf("%d ranks  %-14s %-8s %10lld B  p50 %10.2f us  p99 %10.2f us  %7.2f GB/s", job->n,
               r->what, r->how, (long long)r->bytes, r->p50_ns * 1e-3, r->p99_ns * 1e-3, r->gb_s);
        if (r->ratio > 0)
            printf("  %.2f of the sum alone", r->ratio);
        printf("\n");
    }
    int left = ku_job_leave(job);
    return n < 0 ? n : left;
}

int main(int argc, char **argv)
{
    int64_t max_bytes = (argc > 2 ? atoll(argv[2]) : 64) << 20;
    int status = kumi_launch(run, &max_bytes, argc > 1 ? atoi(argv[1]) : 2);
    if (status < 0)
        ku_err_print();
    return -status;
}
