/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "comm/bench.h"
#include "train/commands_bench.h"

enum { MAX_ROWS = 64 };

static int print_rows(const struct ku_bench_out *o, const struct ku_job *job,
                      const struct ku_bench_row *row, int n)
{
    struct ku_str text = {0};
    KU_TRY(ku_bench_head(o, job->n, 1));
    if (!o->as_json) {
        ku_str_add(&text, "%-16s %-8s %12s %12s %12s %9s %14s   %d %s", "collective", "memory",
                   "bytes", "median us", "p99 us", "GB/s", "of the limit", job->n,
                   strcmp(job->launcher, "threads") == 0 ? "threads" : "processes");
        KU_TRY(ku_bench_line(o, &text));
    }
    for (int i = 0; i < n; i++) {
        if (o->as_json) {
            KU_TRY(ku_bench_line_json(
                o,
                json_pack("{s:s, s:s, s:i, s:I, s:f, s:f, s:f, s:o}", "what", row[i].what, "how",
                          row[i].how, "ranks", job->n, "bytes", (json_int_t)row[i].bytes, "p50_ns",
                          row[i].p50_ns, "p99_ns", row[i].p99_ns, "gb_s", row[i].gb_s, "ratio",
                          row[i].ratio > 0 ? json_real(row[i].ratio) : json_null()),
                job->n, 1));
            continue;
        }
        ku_str_add(&text, "%-16s %-8s %12lld %12.2f %12.2f %9.2f", row[i].what, row[i].how,
                   (long long)row[i].bytes, row[i].p50_ns * 1e-3, row[i].p99_ns * 1e-3,
                   row[i].gb_s);
        if (row[i].ratio > 0)
            ku_str_add(&text, " %12.1f %%", 100 * row[i].ratio);
        KU_TRY(ku_bench_line(o, &text));
    }
    return KUMI_OK;
}

static int run(struct ku_job *job, void *arg)
{
    const struct ku_bench_out *o = arg;
    struct ku_bench_row *row = ku_calloc(MAX_ROWS, sizeof *row);
    int n = row ? ku_bench_comm(job, o->max_bytes, row, MAX_ROWS) : KUMI_ENOMEM;
    int status = n < 0 ? n : KUMI_OK;
    if (n > 0 && job->rank == 0)
        status = print_rows(o, job, row, n);
    ku_free(row);
    return status < 0 && job->n > 1 ? ku_job_fail(job) : status;
}

int ku_bench_comm_run(const struct ku_bench_out *o, int threads)
{
    struct ku_job *job = NULL;
    KU_TRY(ku_job_join(NULL, &job));
    int is_alone = job->n == 1;
    int status = is_alone ? KUMI_OK : run(job, (void *)(uintptr_t)o);
    struct kumi_error error = *ku_err_get();
    int left = ku_job_leave(job);
    if (status < 0)
        return ku_err_put(&error);
    KU_TRY(left);
    if (!is_alone)
        return KUMI_OK;
    return ku_job_threads(threads > 0 ? threads : 2, NULL, run, (void *)(uintptr_t)o);
}
