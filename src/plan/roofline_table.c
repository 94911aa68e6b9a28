/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The minimum time of a training step, by op: T = sum over the program's computations of max(FLOP /
 * matrix peak, minimum bytes / stream bandwidth), of a pipeline that of its slowest coordinate.
 * Collectives are not included, since they overlap with computation.
 */
#include <stdlib.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/log.h"
#include "base/str.h"
#include "config/deepspeed.h"
#include "device/peak_bench.h"
#include "sim/machine_limits.h"
#include "plan/plan.h"
#include "sim/roofline.h"

/* All computations with one op on a rank. */
struct row {
    int op;
    int64_t calls, n_flop_bound; /* n_flop_bound: calls limited by the matrix peak */
    double flops, bytes, ns;
};
struct roofline {
    struct row row[KU_N_OPS];
    struct ku_limits limits;
    int n_rows;
    double flops, bytes, ns; /* sums */
    double tokens;           /* loss positions of a step on all ranks, including padding */
};

int ku_plan_limits(const struct ku_plan *p, struct ku_limits *l)
{
    int n = ku_session_n_ranks(&p->s), n_cores = ku_session_cores(&p->s, n);
    struct ku_peak peak;
    ku_limits_read(n_cores, n, l);
    if (ku_limits_are_known(l))
        return KUMI_OK;
    const struct ku_device_opts opts = {
        .n_threads = n_cores, .n_runnable_threads = n_cores, .isa = ku_cpu_isa()};
    KU_TRY(ku_bench_peak(&opts, &peak));
    if (ku_peak_write(&peak, time(NULL)) == KUMI_OK) {
        ku_limits_read(n_cores, n, l);
        return KUMI_OK;
    }
    KU_LOG(TRAIN, WARN, "%s", ku_err_get()->text);
    l->flops_f32 = peak.flops_f32;
    l->flops_bf16 = peak.flops_bf16;
    l->stream_bytes = peak.stream_bytes;
    return KUMI_OK;
}

static int longest_first(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    return x->ns != y->ns ? (x->ns < y->ns) - (x->ns > y->ns) : x->op - y->op;
}

static void collect(const struct ku_plan *plan, struct roofline *r)
{
    const struct ku_program *p = plan->program[KU_PROG_TRAIN];
    const struct ku_coord first = ku_mesh_coord(&p->mesh, 0);
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        struct ku_op_case c;
        struct ku_cost cost;
        ku_program_types(p, at, &first, &c, &cost);
        if (c.op == KU_OP_NONE)
            continue;
        struct row *row = &r->row[c.op];
        double ns = ku_roofline_ns(&r->limits, &c, &cost);
        double bytes_ns = 1e9 * r->limits.n_ranks * (cost.bytes / r->limits.stream_bytes);
        row->op = c.op;
        row->calls++;
        row->n_flop_bound += ns > bytes_ns;
        row->flops += cost.flops, row->bytes += cost.bytes, row->ns += ns;
        r->flops += cost.flops, r->bytes += cost.bytes, r->ns += ns;
    }
    qsort(r->row, KU_N_OPS, sizeof *r->row, longest_first);
    while (r->n_rows < KU_N_OPS && r->row[r->n_rows].calls)
        r->n_rows++;
    const struct ku_batch_source *source = plan->s.source;
    const struct ku_batch_shape shape = source->ops->shape(source, plan->shape);
    r->tokens = (double)(shape.rows * shape.tgt_len);
}

static const char *bound_of(const struct row *row)
{
    return row->n_flop_bound == row->calls ? "peak" : row->n_flop_bound ? "both" : "bandwidth";
}

static int print(const struct ku_plan *plan, const struct roofline *r, char **text)
{
    const char *items = plan->s.model.properties.image[0] ? "images" : "tokens";
    const struct ku_limits *l = &r->limits;
    const int n_ranks = ku_session_n_ranks(&plan->s);
    struct ku_str out = {0};
    ku_str_add(&out,
               "roofline: %d rank%s on one host, %s, %s; a step of %.0f %s\n"
               "limits of %d core%s: f32 %.1f, bf16 %.1f GFLOP/s, stream %.2f GB/s%s%s\n\n",
               n_ranks, n_ranks == 1 ? "" : "s", plan->s.cfg.parallel_device,
               plan->s.cfg.precision_compute, r->tokens, items, l->n_cores,
               l->n_cores == 1 ? "" : "s", l->flops_f32 * 1e-9, l->flops_bf16 * 1e-9,
               l->stream_bytes * 1e-9, l->source[0] ? "; from " : "", l->source);
    if (plan->s.sharding.pp > 1)
        ku_str_add(&out, "coordinate %d of axis pp, the slowest\n", ku_plan_coordinate(plan));
    ku_str_add(&out, "%-18s %7s %10s %10s %10s %8s  %s\n", "op, on one rank", "calls", "GFLOP",
               "MB", "ms", "share", "limit");
    for (int i = 0; i < r->n_rows; i++) {
        const struct row *row = &r->row[i];
        ku_str_add(&out, "%-18s %7lld %10.3f %10.2f %10.3f %6.1f %%  %s\n", ku_ops[row->op].name,
                   (long long)row->calls, row->flops * 1e-9, row->bytes * 1e-6, row->ns * 1e-6,
                   100 * row->ns / r->ns, bound_of(row));
    }
    ku_str_add(&out, "%-18s %7s %10.3f %10.2f %10.3f\n\n", "total (T)", "", r->flops * 1e-9,
               r->bytes * 1e-6, r->ns * 1e-6);
    ku_str_add(&out, "T allows %.0f %s/s\n", r->tokens / (r->ns * 1e-9), items);
    return ku_text_take(&out, text);
}

static int as_object(const struct ku_plan *plan, const struct roofline *r, char **text)
{
    json_t *rows = json_array();
    for (int i = 0; i < r->n_rows; i++) {
        const struct row *row = &r->row[i];
        json_array_append_new(rows, json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:s}", "op",
                                              ku_ops[row->op].name, "calls", (json_int_t)row->calls,
                                              "flops", row->flops, "bytes", row->bytes, "least_ms",
                                              row->ns * 1e-6, "share", row->ns / r->ns, "limit",
                                              bound_of(row)));
    }
    return ku_text_json(
        json_pack("{s:i, s:i, s:s, s:s, s:o, s:o, s:f, s:f, s:f, s:f, s:f}", "ranks",
                  ku_session_n_ranks(&plan->s), "coordinate", ku_plan_coordinate(plan), "device",
                  plan->s.cfg.parallel_device, "compute", plan->s.cfg.precision_compute, "limits",
                  ku_limits_json(&r->limits), "ops", rows, "flops", r->flops, "bytes", r->bytes,
                  "least_ms", r->ns * 1e-6, "tokens", r->tokens, "tps", r->tokens / (r->ns * 1e-9)),
        text);
}

int kumi_plan_roofline(const struct kumi_settings *settings, int n_ranks, int as_json, char **text)
{
    KU_GIVEN(text, "text");
    struct ku_plan p;
    struct roofline r = {.n_rows = 0};
    KU_TRY(ku_plan_open(&p, settings, n_ranks, NULL));
    ku_deepspeed_warn(&p.s.cfg);
    p.limits = &r.limits;
    int status = ku_plan_limits(&p, &r.limits);
    if (status < 0)
        ku_plan_fini(&p);
    else
        status = ku_plan_compile(&p, NULL, NULL);
    KU_TRY(status);
    collect(&p, &r);
    status = as_json ? as_object(&p, &r, text) : print(&p, &r, text);
    ku_plan_fini(&p);
    return status;
}
