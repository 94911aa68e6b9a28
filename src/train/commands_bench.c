/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/os.h"
#include "device/bench.h"
#include "train/commands.h"
#include "train/commands_bench.h"
#include "train/peak.h"

int ku_bench_line(const struct ku_bench_out *o, struct ku_str *text)
{
    char *line;
    KU_TRY(ku_text_take(text, &line));
    o->line(o->ctx, line);
    kumi_text_free(line);
    return KUMI_OK;
}

int ku_bench_line_json(const struct ku_bench_out *o, json_t *row)
{
    char *line = row ? ku_json_print(row, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(row);
    if (line == NULL)
        return KU_ERR(KUMI_ENOMEM, "memory: no room for a line");
    o->line(o->ctx, line);
    kumi_text_free(line);
    return KUMI_OK;
}

static struct ku_device_opts device_opts(int threads)
{
    int n = threads > 0 ? threads : ku_os_n_cpus();
    return (struct ku_device_opts){.n_threads = n, .n_runnable_threads = n, .isa = ku_cpu_isa()};
}

int ku_bench_peak_run(const struct ku_bench_out *o, int threads)
{
    const struct ku_device_opts opts = device_opts(threads);
    struct ku_peak p;
    KU_TRY(ku_bench_peak(&opts, &p));
    if (ku_peak_write(&p) < 0) /* the figures are worth having all the same */
        KU_LOG(TRAIN, WARN, "%s", ku_err_get()->text);
    const struct {
        const char *what, *unit;
        double value;
    } row[] = {{"f32", "flop/s", p.flops_f32},
               {"bf16", "flop/s", p.flops_bf16},
               {"stream", "bytes/s", p.stream_bytes},
               {"first touch", "bytes/s", p.touch_bytes}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_str text = {0};
        if (o->as_json) {
            KU_TRY(
                ku_bench_line_json(o, json_pack("{s:s, s:f, s:s, s:s, s:i}", "what", row[i].what,
                                                "value", row[i].value, "unit", row[i].unit, "isa",
                                                ku_cpu_isa_name(p.isa), "threads", p.n_threads)));
            continue;
        }
        ku_str_add(&text, "%-12s %10.2f G%-8s %s, %d thread%s", row[i].what, row[i].value * 1e-9,
                   row[i].unit, ku_cpu_isa_name(p.isa), p.n_threads, p.n_threads == 1 ? "" : "s");
        KU_TRY(ku_bench_line(o, &text));
    }
    return KUMI_OK;
}

static int op_row(void *ctx, const struct ku_bench_row *r)
{
    const struct ku_bench_out *o = ctx;
    struct ku_str text = {0};
    double ns = r->median_ns > 0 ? (double)r->median_ns : 1; /* flop/ns and bytes/ns are G/s */
    if (o->as_json)
        return ku_bench_line_json(
            o, json_pack("{s:s, s:s, s:s, s:I, s:I, s:i, s:f, s:f, s:f}", "what", r->name, "dtype",
                         kumi_dtype_name(r->dtype), "shape", r->shape, "p50_ns",
                         (json_int_t)r->median_ns, "least_ns", (json_int_t)r->least_ns, "runs",
                         r->n_runs, "flops", r->flops, "bytes", r->bytes, "limit_ns", r->limit_ns));
    ku_str_add(&text, "%-28s %-4s %10.1f %10.1f %8.2f %8.2f %6.1f %%  %s", r->name,
               kumi_dtype_name(r->dtype), ns * 1e-3, (double)r->least_ns * 1e-3, r->flops / ns,
               r->bytes / ns, 100 * r->limit_ns / ns, r->shape);
    return ku_bench_line(o, &text);
}

int ku_bench_op_run(const struct ku_bench_out *o, int threads)
{
    struct ku_bench_opts opts = {.device = device_opts(threads), .only = o->only};
    struct ku_peak peak;
    KU_TRY(ku_bench_peak(&opts.device, &peak));
    if (!o->as_json) {
        struct ku_str text = {0};
        ku_str_add(&text, "%-28s %-4s %10s %10s %8s %8s %8s  %s", "op", "", "median us", "least us",
                   "GFLOP/s", "GB/s", "of limit", "shapes");
        KU_TRY(ku_bench_line(o, &text));
    }
    opts.dtype = KUMI_F32;
    KU_TRY(ku_bench_op(&opts, &peak, op_row, (void *)(uintptr_t)o));
    opts.dtype = KUMI_BF16;
    return ku_bench_op(&opts, &peak, op_row, (void *)(uintptr_t)o);
}

int kumi_bench(const char *what, int threads, int as_json,
               void (*line)(void *ctx, const char *text), void *ctx)
{
    const struct ku_bench_out out = {.line = line, .ctx = ctx, .as_json = as_json};
    if (threads < 0 || threads > KU_BENCH_THREADS_MAX)
        return KU_ERR(KUMI_EINVAL, "bench: --threads: %d; give 1 to %d, or 0 for the cores",
                      threads, (int)KU_BENCH_THREADS_MAX);
    if (strcmp(what, "peak") == 0)
        return ku_bench_peak_run(&out, threads);
    if (strcmp(what, "op") == 0)
        return ku_bench_op_run(&out, threads);
    if (strcmp(what, "comm") == 0)
        return ku_bench_comm_run(&out, threads);
    return KU_ERR(KUMI_EINVAL, "bench: %.60s: unknown; peak, op, comm or data", what);
}
