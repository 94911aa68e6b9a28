/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "comm/collective_bench.h"
#include "comm/world.h"
#include "app/bench/bench_report.h"

static int print_rows(const struct ku_bench_out *o, const struct ku_job *job,
                      const struct ku_bench_comm_row *row, int n)
{
    struct ku_str text = {0};
    KU_TRY(ku_bench_head(o, job->n, 1));
    if (!o->as_json) {
        ku_str_add(&text, "%-14s %-8s %-4s %10s %11s %11s %8s %10s %8s   %d %s", "collective",
                   "memory", "", "bytes", "median us", "p99 us", "GB/s", "elements/s", "of limit",
                   job->n,
                   job->n == 1                             ? "rank"
                   : strcmp(job->launcher, "threads") == 0 ? "threads"
                                                           : "processes");
        if (job->n_hosts > 1)
            ku_str_add(&text, " on %d hosts", job->n_hosts);
        KU_TRY(ku_bench_line(o, &text));
    }
    for (int i = 0; i < n; i++) {
        const struct ku_bench_comm_row *r = &row[i];
        if (o->as_json) {
            KU_TRY(ku_bench_line_json(
                o,
                json_pack("{s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:o, s:i}", "collective",
                          r->what, "memory", r->how, "dtype", kumi_dtype_name(r->dtype), "bytes",
                          (json_int_t)r->bytes, "median_us", r->p50_ns * 1e-3, "p99_us",
                          r->p99_ns * 1e-3, "gbps", r->gb_s, "elements_s", r->elements_s, "ratio",
                          r->ratio > 0 ? json_real(r->ratio) : json_null(), "hosts", job->n_hosts),
                job->n, 1));
            continue;
        }
        ku_str_add(&text, "%-14s %-8s %-4s %10lld %11.2f %11.2f %8.2f %10.3g", r->what, r->how,
                   kumi_dtype_name(r->dtype), (long long)r->bytes, r->p50_ns * 1e-3,
                   r->p99_ns * 1e-3, r->gb_s, r->elements_s);
        if (r->ratio > 0)
            ku_str_add(&text, " %6.0f %%", 100 * r->ratio);
        KU_TRY(ku_bench_line(o, &text));
    }
    return KUMI_OK;
}

static int run(struct ku_job *job, void *arg)
{
    const struct ku_bench_out *o = arg;
    const struct ku_bench_comm_opts opts = {.only = o->only, .dtype = o->dtype, .bytes = o->bytes};
    struct ku_bench_comm_row *row = ku_calloc(KU_BENCH_COMM_ROWS, sizeof *row);
    int n = row ? ku_bench_comm(job, &opts, row) : KUMI_ENOMEM;
    int status = n < 0 ? n : KUMI_OK;
    if (n > 0 && job->rank == 0)
        status = print_rows(o, job, row, n);
    ku_free(row);
    return status < 0 && job->n > 1 ? ku_job_fail(job) : status;
}

int ku_bench_comm_run(const struct ku_bench_out *o, int threads)
{
    struct ku_job *job = NULL;
    KU_TRY(ku_comm_join(NULL, &job));
    const bool is_alone = strcmp(job->launcher, "none") == 0;
    int status = is_alone ? KUMI_OK : run(job, (void *)(uintptr_t)o);
    struct kumi_error error = *ku_err_get();
    int left = ku_comm_leave(job);
    if (status < 0)
        return ku_err_put(&error);
    KU_TRY(left);
    if (!is_alone)
        return KUMI_OK;
    return ku_comm_threads(threads > 0 ? threads : 2, NULL, run, (void *)(uintptr_t)o);
}
