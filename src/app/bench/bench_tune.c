/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `kumi bench op --tune`: products and convolutions with the tiles of other caches. The shapes of
 * tiles are functions of the caches (device/cpu/tiling.h), so each round times every op under
 * several assumed sizes of L2; an op whose tile is the same under two of them is timed twice as
 * often. The table compares this machine's shape with the fastest one.
 */
#include <stdio.h>
#include <string.h>

#include "app/bench/bench_report.h"
#include "base/cpu/caches.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "device/op_bench.h"

enum { MAX_ROWS = 96, N_ROUNDS = 2, ROW_NS = 50 * 1000 * 1000 };

/* Factors of L2. From 1/8 to 2: the shapes of larger caches are those of 1 MiB or 2 MiB. */
static const struct {
    int num, den;
} factors[] = {{1, 1}, {1, 8}, {1, 4}, {1, 2}, {2, 1}};
enum { N_FACTORS = sizeof factors / sizeof factors[0] };

struct tuned {
    struct ku_bench_row row; /* of the first run */
    int n;                   /* shapes; the first is the model's */
    struct {
        char tiling[sizeof((struct ku_bench_row *)0)->tiling];
        int64_t ns;
    } shape[N_FACTORS];
};
struct tuning {
    int n;
    struct tuned row[MAX_ROWS];
};

static int add_run(void *ctx, const struct ku_bench_row *r)
{
    struct tuning *all = ctx;
    int i = 0, s = 0;
    if (r->tiling[0] == '\0')
        return KUMI_OK;
    while (i < all->n && strcmp(all->row[i].row.name, r->name) != 0)
        i++;
    KU_ASSERT(i < MAX_ROWS);
    struct tuned *t = &all->row[i];
    if (i == all->n)
        all->n++, t->row = *r;
    while (s < t->n && strcmp(t->shape[s].tiling, r->tiling) != 0)
        s++;
    KU_ASSERT(s < N_FACTORS);
    if (s == t->n) {
        memcpy(t->shape[s].tiling, r->tiling, sizeof r->tiling);
        t->shape[t->n++].ns = r->min_ns;
    }
    t->shape[s].ns = r->min_ns < t->shape[s].ns ? r->min_ns : t->shape[s].ns;
    return KUMI_OK;
}

static int print_tuned(const struct ku_bench_out *o, const struct tuned *t, int threads)
{
    struct ku_str text = {0};
    int best = 0;
    for (int s = 1; s < t->n; s++)
        best = t->shape[s].ns < t->shape[best].ns ? s : best;
    const int64_t model_ns = t->shape[0].ns,
                  best_ns = t->shape[best].ns > 0 ? t->shape[best].ns : 1;
    const double ratio = (double)model_ns / (double)best_ns;
    const char *dtype = kumi_dtype_name(t->row.dtype);
    if (o->as_json)
        return ku_bench_line_json(
            o,
            json_pack("{s:s, s:s, s:s, s:s, s:I, s:s, s:I, s:f, s:i}", "what", t->row.name, "dtype",
                      dtype, "shape", t->row.shape, "tile", t->shape[0].tiling, "min_ns",
                      (json_int_t)model_ns, "fastest_tile", t->shape[best].tiling, "fastest_ns",
                      (json_int_t)best_ns, "ratio", ratio, "tiles", t->n),
            1, threads);
    ku_str_add(&text, "%-26s %-4s %-14s %10.1f  %-14s %10.1f %6.2f %5d  %s", t->row.name, dtype,
               t->shape[0].tiling, (double)model_ns * 1e-3, t->shape[best].tiling,
               (double)best_ns * 1e-3, ratio, t->n, t->row.shape);
    return ku_bench_line(o, &text);
}

static int run_with(struct ku_bench_opts *opts, int factor, struct tuning *all)
{
    struct ku_caches caches = *ku_caches_here();
    caches.l2_bytes = caches.l2_bytes * factors[factor].num / factors[factor].den;
    opts->device.caches = &caches;
    return ku_bench_op(opts, NULL, add_run, all);
}

/* The first run lists the ops and times this machine's shapes; the others go op by op. */
static int tune(const struct ku_bench_out *o, struct ku_bench_opts *opts, struct tuning *all)
{
    opts->only = o->only ? o->only : "linear";
    all->n = 0;
    KU_TRY(run_with(opts, 0, all));
    for (int i = 0; i < all->n; i++) {
        opts->only = all->row[i].row.name;
        for (int run = 1; run < N_ROUNDS * N_FACTORS; run++)
            KU_TRY(run_with(opts, run % N_FACTORS, all));
        KU_TRY(print_tuned(o, &all->row[i], opts->device.n_threads));
    }
    return KUMI_OK;
}

int ku_bench_tune_run(const struct ku_bench_out *o, const struct ku_device_opts *device)
{
    static const enum kumi_dtype dtypes[] = {KUMI_F32, KUMI_BF16, KUMI_F16};
    struct ku_bench_opts opts = {.device = *device, .time_ns = ROW_NS};
    struct ku_str text = {0};
    struct tuning *all = ku_calloc(1, sizeof *all);
    int status;
    if (all == NULL)
        return KUMI_ENOMEM;
    KU_TRY_OUT(ku_bench_head(o, 1, device->n_threads));
    if (!o->as_json) {
        ku_str_add(&text, "%-26s %-4s %-14s %10s  %-14s %10s %6s %5s  %s", "op", "", "tile",
                   "min us", "fastest", "min us", "ratio", "tiles", "shapes");
        KU_TRY_OUT(ku_bench_line(o, &text));
    }
    for (int i = 0; i < 3; i++) {
        opts.dtype = dtypes[i];
        if (o->dtype == NULL ? i < 2 : strcmp(o->dtype, kumi_dtype_name(dtypes[i])) == 0)
            KU_TRY_OUT(tune(o, &opts, all));
    }
out:
    ku_free(all);
    return status;
}
