/* SPDX-License-Identifier: Apache-2.0 */
/* `kumi bench peak` and `kumi bench op`, the output of all benchmarks, and their options. */
#include "kumi/run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/log.h"
#include "base/os/os.h"
#include "base/str.h"
#include "device/memory_bench.h"
#include "device/op_bench.h"
#include "device/peak_bench.h"
#include "app/bench/bench_report.h"
#include "sim/kernel_choice.h"
#include "sim/machine_limits.h"

int ku_bench_line(const struct ku_bench_out *o, struct ku_str *text)
{
    char *line;
    KU_TRY(ku_text_take(text, &line));
    o->line(o->ctx, line);
    kumi_text_free(line);
    return KUMI_OK;
}

int ku_bench_line_json(const struct ku_bench_out *o, json_t *row, int ranks, int threads)
{
    char *line = NULL;
    json_t *machine =
        json_pack("{s:s, s:i, s:s, s:i, s:i}", "cpu", ku_cpu_model(), "cores", ku_os_n_cpus_host(),
                  "isa", ku_cpu_isa_name(ku_cpu_isa()), "ranks", ranks, "threads", threads);
    if (row && machine && json_object_update_missing(row, machine) == 0)
        line = ku_json_print(row, JSON_COMPACT | JSON_REAL_PRECISION(6));
    json_decref(row);
    json_decref(machine);
    if (line == NULL)
        return KU_ERR(KUMI_ENOMEM, "memory: no memory for a line of output");
    o->line(o->ctx, line);
    kumi_text_free(line);
    return KUMI_OK;
}

int ku_bench_head(const struct ku_bench_out *o, int ranks, int threads)
{
    struct ku_str text = {0};
    if (o->as_json)
        return KUMI_OK;
    ku_str_add(&text, "%s, %d core%s, %s; %d rank%s x %d thread%s", ku_cpu_model(),
               ku_os_n_cpus_host(), ku_os_n_cpus_host() == 1 ? "" : "s",
               ku_cpu_isa_name(ku_cpu_isa()), ranks, ranks == 1 ? "" : "s", threads,
               threads == 1 ? "" : "s");
    return ku_bench_line(o, &text);
}

static struct ku_device_opts device_opts(int threads)
{
    int n = threads > 0 ? threads : ku_os_n_cpus();
    return (struct ku_device_opts){.n_threads = n, .n_runnable_threads = n, .isa = ku_cpu_isa()};
}

static void take_better(struct ku_peak *best, const struct ku_peak *p)
{
    const struct {
        struct ku_spread *best;
        const struct ku_spread *other;
    } row[] = {{&best->f32, &p->f32}, {&best->bf16, &p->bf16}, {&best->stream, &p->stream}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (row[i].other->max > row[i].best->max)
            *row[i].best = *row[i].other;
    best->flops_f32 = best->f32.max;
    best->flops_bf16 = best->bf16.max;
    best->stream_bytes = best->stream.max;
}

/*
 * Measure the limits, up to three times while other load disturbs the result, and store them. The
 * limits are then the best of all stored measurements.
 */
static int measure(const struct ku_device_opts *opts, struct ku_peak *p, struct ku_peak_kept *kept)
{
    enum { ROUNDS = 3 };
    struct ku_peak again;
    KU_TRY(ku_bench_peak(opts, p));
    for (int i = 1; i < ROUNDS && ku_peak_is_disturbed(p); i++) {
        KU_TRY(ku_bench_peak(opts, &again));
        take_better(p, &again);
    }
    if (ku_peak_write(p, time(NULL)) < 0) /* the figures are valid without the file */
        KU_LOG(TRAIN, WARN, "%s", ku_err_get()->text);
    if (!ku_peak_look(p->n_threads, kept))
        return KUMI_OK;
    p->flops_f32 = fmax(p->flops_f32, kept->figure[KU_PEAK_F32].best);
    p->flops_bf16 = fmax(p->flops_bf16, kept->figure[KU_PEAK_BF16].best);
    p->stream_bytes = fmax(p->stream_bytes, kept->figure[KU_PEAK_STREAM].best);
    return KUMI_OK;
}

struct peak_row {
    const char *what, *unit;
    double value;
    struct ku_spread spread;
    int figure; /* enum ku_peak_figure; KU_N_PEAK_FIGURES: not a stored one */
};

/* Rates are printed in giga per second, times as they are. */
static int print_peak(const struct ku_bench_out *o, const struct peak_row *row,
                      const struct ku_peak_kept *kept, int threads)
{
    const struct ku_spread *s = &row->spread;
    int is_kept = row->figure < KU_N_PEAK_FIGURES && kept->figure[row->figure].n_starts > 0;
    int n_starts = is_kept ? kept->figure[row->figure].n_starts : 1;
    int is_confirmed = is_kept && kept->figure[row->figure].is_confirmed;
    const int is_time = strcmp(row->unit, "ns") == 0;
    const double scale = is_time ? 1 : 1e-9;
    struct ku_str text = {0};
    if (o->as_json)
        return ku_bench_line_json(
            o,
            json_pack("{s:s, s:f, s:s, s:f, s:f, s:f, s:i, s:i, s:b, s:o}", "what", row->what,
                      "value", row->value, "unit", row->unit, "median", s->median, "min", s->min,
                      "max", s->max, "runs", (int)KU_PEAK_TRIES, "starts", n_starts, "confirmed",
                      is_confirmed, "date", is_kept ? json_string(kept->date) : json_null()),
            1, threads);
    ku_str_add(&text, "%-12s %10.2f %10.2f %10.2f %10.2f   %s%s", row->what, row->value * scale,
               s->median * scale, s->min * scale, s->max * scale, is_time ? "" : "G", row->unit);
    if (is_kept)
        ku_str_add(&text, ", best of %d start%s%s", n_starts, n_starts == 1 ? "" : "s",
                   is_confirmed ? "" : " (?)");
    return ku_bench_line(o, &text);
}

static int print_peaks(const struct ku_bench_out *o, const struct peak_row *row, size_t n_rows,
                       const struct ku_peak_kept *kept, int threads)
{
    struct ku_str text = {0};
    KU_TRY(ku_bench_head(o, 1, threads));
    if (!o->as_json) {
        ku_str_add(&text, "%-12s %10s %10s %10s %10s", "limit", "limit", "median", "min", "max");
        KU_TRY(ku_bench_line(o, &text));
    }
    for (size_t i = 0; i < n_rows; i++)
        KU_TRY(print_peak(o, &row[i], kept, threads));
    return KUMI_OK;
}

int ku_bench_peak_quick_run(const struct ku_bench_out *o, int threads)
{
    const struct ku_device_opts opts = device_opts(threads);
    const struct ku_peak_kept none = {0};
    struct ku_peak p;
    KU_TRY(ku_bench_peak_quick(&opts, &p));
    const struct peak_row row[] = {{"f32", "flop/s", p.flops_f32, p.f32, KU_N_PEAK_FIGURES},
                                   {"bf16", "flop/s", p.flops_bf16, p.bf16, KU_N_PEAK_FIGURES}};
    return print_peaks(o, row, sizeof row / sizeof row[0], &none, p.n_threads);
}

/* One row for each kernel that products of a dtype may use, per core: "bf16 avx512". */
static int print_kernels(const struct ku_bench_out *o)
{
    static const enum kumi_dtype dtypes[] = {KUMI_F32, KUMI_BF16};
    const struct ku_peak_kept none = {0};
    struct ku_kernel_rates rates;
    KU_TRY(ku_kernel_rates_measure(&rates));
    for (int d = 0; d < 2; d++)
        for (int isa = 0; isa < KU_N_ISAS; isa++) {
            char what[32];
            const double rate = ku_kernel_rate(&rates, dtypes[d], (enum ku_isa)isa);
            struct peak_row row = {what, "flop/s", rate, {rate, rate, rate}, KU_N_PEAK_FIGURES};
            /* the sets above avx512 have its f32 kernel */
            if (!(rate > 0) || (d == 0 && isa > KU_ISA_AVX512))
                continue;
            snprintf(what, sizeof what, "%s %s", kumi_dtype_name(dtypes[d]),
                     ku_cpu_isa_name((enum ku_isa)isa));
            KU_TRY(print_peak(o, &row, &none, 1));
        }
    return KUMI_OK;
}

int ku_bench_peak_run(const struct ku_bench_out *o, int threads)
{
    const struct ku_device_opts opts = device_opts(threads);
    struct ku_peak p;
    struct ku_memory_rates m;
    struct ku_peak_kept kept = {0};
    struct ku_str text = {0};
    KU_TRY(measure(&opts, &p, &kept));
    KU_TRY(ku_bench_memory(&opts, &m));
    const struct peak_row row[] = {
        {"f32", "flop/s", p.flops_f32, p.f32, KU_PEAK_F32},
        {"bf16", "flop/s", p.flops_bf16, p.bf16, KU_PEAK_BF16},
        {"stream", "bytes/s", p.stream_bytes, p.stream, KU_PEAK_STREAM},
        {"read", "bytes/s", m.read.max, m.read, KU_N_PEAK_FIGURES},
        {"write", "bytes/s", m.write.max, m.write, KU_N_PEAK_FIGURES},
        {"copy", "bytes/s", m.copy.max, m.copy, KU_N_PEAK_FIGURES},
        {"triad", "bytes/s", m.triad.max, m.triad, KU_N_PEAK_FIGURES},
        {"first touch", "bytes/s", p.touch_bytes, p.touch, KU_N_PEAK_FIGURES},
        {"barrier", "ns", m.meet_ns.median, m.meet_ns, KU_N_PEAK_FIGURES}};
    KU_TRY(print_peaks(o, row, sizeof row / sizeof row[0], &kept, p.n_threads));
    KU_TRY(print_kernels(o));
    if (o->as_json || kept.date[0] == '\0')
        return KUMI_OK;
    ku_str_add(&text, "limits: the best of all starts, last raised on %s", kept.date);
    for (int f = 0; f < KU_N_PEAK_FIGURES; f++)
        if (!kept.figure[f].is_confirmed) {
            ku_str_add(&text, "; (?): no second start came within 5 %% of it: run `kumi bench "
                              "peak` again, without other load");
            break;
        }
    return ku_bench_line(o, &text);
}

struct op_rows {
    const struct ku_bench_out *out;
    int threads;
    enum ku_isa isa;
};

/*
 * Print the share of the roofline. Operands in cache have no share, since they need no memory
 * bandwidth. Reads alone may exceed the stream limit, which includes writes.
 */
static void print_share(const struct ku_bench_row *r, struct ku_str *text)
{
    double share = 100 * r->limit_ns / (r->median_ns > 0 ? (double)r->median_ns : 1);
    if (r->is_in_cache)
        ku_str_add(text, " %8s", "cache");
    else if (share > 100)
        ku_str_add(text, " %8s", "> 100 %");
    else
        ku_str_add(text, " %6.1f %%", share);
}

static int op_row(void *ctx, const struct ku_bench_row *r)
{
    const struct op_rows *rows = ctx;
    const struct ku_bench_out *o = rows->out;
    struct ku_str text = {0};
    double ns = r->median_ns > 0 ? (double)r->median_ns : 1; /* flop/ns and bytes/ns are G/s */
    if (o->as_json)
        return ku_bench_line_json(
            o,
            json_pack(
                "{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:i, s:f, s:f, s:f, s:s}", "what", r->name,
                "dtype", kumi_dtype_name(r->dtype), "isa", ku_cpu_isa_name(rows->isa), "shape",
                r->shape, "p50_ns", (json_int_t)r->median_ns, "min_ns", (json_int_t)r->min_ns,
                "max_ns", (json_int_t)r->max_ns, "runs", r->n_runs, "flops", r->flops, "bytes",
                r->bytes, "limit_ns", r->limit_ns, "operands", r->is_in_cache ? "cache" : "memory"),
            1, rows->threads);
    ku_str_add(&text, "%-20s %-4s %10.1f %10.1f %10.1f %4d %8.2f %8.2f", r->name,
               kumi_dtype_name(r->dtype), ns * 1e-3, (double)r->min_ns * 1e-3,
               (double)r->max_ns * 1e-3, r->n_runs, r->flops / ns, r->bytes / ns);
    print_share(r, &text);
    ku_str_add(&text, "  %s", r->shape);
    return ku_bench_line(o, &text);
}

int ku_bench_op_run(const struct ku_bench_out *o, int threads)
{
    static const enum kumi_dtype dtypes[] = {KUMI_F32, KUMI_BF16, KUMI_F16};
    struct ku_bench_opts opts = {.device = device_opts(threads), .only = o->only};
    struct op_rows rows = {.out = o, .threads = opts.device.n_threads};
    struct ku_peak peak;
    struct ku_peak_kept kept = {0};
    if (o->only && !ku_bench_op_is_known(o->only))
        return KU_ERR(KUMI_EINVAL,
                      "bench: %.60s: no op has a name with this prefix; `kumi bench op` lists all",
                      o->only);
    if (o->is_tune)
        return ku_bench_tune_run(o, &opts.device);
    KU_TRY(measure(&opts.device, &peak, &kept));
    KU_TRY(ku_bench_head(o, 1, rows.threads));
    if (!o->as_json) {
        struct ku_str text = {0};
        ku_str_add(&text, "%-20s %-4s %10s %10s %10s %4s %8s %8s %8s  %s", "op", "", "median us",
                   "min", "max", "runs", "GFLOP/s", "GB/s", "of limit", "shapes");
        KU_TRY(ku_bench_line(o, &text));
    }
    for (int i = 0; i < 3; i++) {
        opts.dtype = dtypes[i];
        if (o->dtype == NULL ? i == 2 : strcmp(o->dtype, kumi_dtype_name(dtypes[i])) != 0)
            continue;
        KU_TRY(ku_isa_resolve(NULL, dtypes[i], &rows.isa)); /* as in a run */
        opts.device.isa = rows.isa;
        KU_TRY(ku_bench_op(&opts, &peak, op_row, &rows));
    }
    return KUMI_OK;
}

int kumi_bench(const struct kumi_bench_options *b)
{
    KU_GIVEN(b, "options");
    KU_GIVEN(b->what, "options.what");
    KU_GIVEN(b->line, "options.line");
    const struct ku_bench_out out = {.line = b->line,
                                     .ctx = b->ctx,
                                     .as_json = b->as_json,
                                     .only = b->only,
                                     .dtype = b->dtype,
                                     .bytes = b->bytes,
                                     .is_tune = b->tune};
    int is_op = strcmp(b->what, "op") == 0, is_comm = strcmp(b->what, "comm") == 0;
    if (b->threads < 0 || b->threads > KU_BENCH_THREADS_MAX)
        return KU_ERR(KUMI_EINVAL, "bench: --threads: %d; give 1 to %d, or 0 for the cores",
                      b->threads, (int)KU_BENCH_THREADS_MAX);
    if (!is_op && !is_comm && (b->only || b->dtype))
        return KU_ERR(KUMI_EINVAL, "bench: %.60s: %s applies to op and comm only", b->what,
                      b->only ? b->only : "--dtype");
    if (!is_op && b->tune)
        return KU_ERR(KUMI_EINVAL, "bench: %.60s: --tune applies to op only", b->what);
    if (!is_comm && b->bytes)
        return KU_ERR(KUMI_EINVAL, "bench: %.60s: --bytes applies to comm only", b->what);
    if (b->is_quick && strcmp(b->what, "peak") != 0)
        return KU_ERR(KUMI_EINVAL, "bench: %.60s: --quick applies to peak only", b->what);
    if (b->dtype && strcmp(b->dtype, "f32") != 0 && strcmp(b->dtype, "bf16") != 0 &&
        !(is_op && strcmp(b->dtype, "f16") == 0))
        return KU_ERR(KUMI_EINVAL, "bench: --dtype: %.60s; give %s", b->dtype,
                      is_op ? "f32, bf16 or f16" : "f32 or bf16");
    if (is_op)
        return ku_bench_op_run(&out, b->threads);
    if (strcmp(b->what, "peak") == 0)
        return b->is_quick ? ku_bench_peak_quick_run(&out, b->threads)
                           : ku_bench_peak_run(&out, b->threads);
    if (is_comm)
        return ku_bench_comm_run(&out, b->threads);
    return KU_ERR(KUMI_EINVAL, "bench: %.60s: unknown; one of peak, op, comm, scaling, data",
                  b->what);
}
