/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/roofline.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/peak_bench.h"
#include "sim/machine_limits.h"

void ku_limits_read(int n_cores, int n_ranks, struct ku_limits *out)
{
    *out = (struct ku_limits){.n_cores = n_cores, .n_ranks = n_ranks};
    const struct {
        const char *what;
        double *to;
    } row[] = {
        {"f32", &out->flops_f32}, {"bf16", &out->flops_bf16}, {"stream", &out->stream_bytes}};
    int n_known = 0;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        double value;
        if (ku_peak_read(row[i].what, n_cores, &value) == KUMI_OK) {
            *row[i].to = value;
            n_known++;
        }
    }
    char *path = n_known ? ku_peak_path() : NULL;
    snprintf(out->source, sizeof out->source, "%s", path ? path : "");
    ku_free(path);
}

void ku_limits_measure(struct ku_job *job, int n_cores, int n_ranks, struct ku_limits *out)
{
    const struct ku_device_opts opts = {.n_threads = n_cores,
                                        .n_runnable_threads = n_cores,
                                        .n_cpus = n_cores,
                                        .isa = ku_cpu_isa()};
    uint64_t own[KU_OS_CPU_WORDS], all[KU_OS_CPU_WORDS];
    struct ku_peak peak = {0};
    int is_kept = 1;
    if (ku_peak_is_due(n_cores, time(NULL))) {
        ku_os_cpus(own);
        ku_job_cpus(job, all);
        (void)ku_os_set_cpus(all);
        if (ku_bench_peak_quick(&opts, &peak) < 0)
            KU_LOG(TRAIN, WARN, "%s: the matrix peak is not measured", ku_err_get()->text);
        else if ((is_kept = ku_peak_write(&peak, time(NULL)) == KUMI_OK) == 0)
            KU_LOG(TRAIN, INFO, "%s: the matrix peak was not saved", ku_err_get()->text);
        (void)ku_os_set_cpus(own);
    }
    ku_limits_read(n_cores, n_ranks, out);
    if (!is_kept) {
        out->flops_f32 = fmax(out->flops_f32, peak.flops_f32);
        out->flops_bf16 = fmax(out->flops_bf16, peak.flops_bf16);
    }
}

bool ku_limits_are_known(const struct ku_limits *l)
{
    return l->flops_f32 > 0 && l->flops_bf16 > 0 && l->stream_bytes > 0;
}

static json_t *known(double x)
{
    return x > 0 ? json_real(x) : json_null();
}

json_t *ku_limits_json(const struct ku_limits *l)
{
    return json_pack("{s:i, s:{s:o, s:o}, s:o, s:o}", "cores", l->n_cores, "flops", "f32",
                     known(l->flops_f32), "bf16", known(l->flops_bf16), "stream_bytes",
                     known(l->stream_bytes), "source",
                     l->source[0] ? json_string(l->source) : json_null());
}

double ku_roofline_ns(const struct ku_limits *l, const struct ku_op_case *c,
                      const struct ku_cost *cost)
{
    int is_bf16 = c->n_in && c->in[0].dtype == KUMI_BF16;
    double peak = is_bf16 ? l->flops_bf16 : l->flops_f32;
    if (!(peak > 0 && l->stream_bytes > 0))
        return 0;
    return 1e9 * l->n_ranks * fmax(cost->flops / peak, cost->bytes / l->stream_bytes);
}

double ku_roofline_program_ns(const struct ku_limits *l, const struct ku_program *p)
{
    struct ku_coord first = ku_mesh_coord(&p->mesh, 0);
    double ns = 0;
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        struct ku_op_case c;
        struct ku_cost cost;
        ku_program_types(p, at, &first, &c, &cost);
        ns += ku_roofline_ns(l, &c, &cost);
    }
    return ns;
}
