/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_APP_BENCH_BENCH_REPORT_H
#define KU_APP_BENCH_BENCH_REPORT_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

enum { KU_BENCH_THREADS_MAX = 512 /* max. ranks of a host */ };

/* Output and filters of kumi_bench. */
struct ku_bench_out {
    void (*line)(void *ctx, const char *text);
    void *ctx;
    int as_json;
    const char *only;  /* op, comm: prefix of the row names; NULL: all */
    const char *dtype; /* op, comm: "f32" or "bf16"; op: "f16"; NULL: the first two */
    int64_t bytes;     /* comm: size of a vector; 0: several sizes */
    int is_tune;       /* op: time shapes of tiles */
};
/* The first line of text output: the machine, and ranks x threads. */
KU_STATUS ku_bench_head(const struct ku_bench_out *o, int ranks, int threads);
/*
 * Pass a line to the callback. The text is emptied; the reference to the row is taken. The JSON
 * form adds the machine and ranks x threads to the row. Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_bench_line(const struct ku_bench_out *o, struct ku_str *text);
KU_STATUS ku_bench_line_json(const struct ku_bench_out *o, json_t *row, int ranks, int threads);

/*
 * Measure and store the limits for this number of threads (0: the cores); the matrix peaks alone,
 * in about 0.1 s, without storing them; and every op in f32 and bf16.
 */
KU_STATUS ku_bench_peak_run(const struct ku_bench_out *o, int threads);
KU_STATUS ku_bench_peak_quick_run(const struct ku_bench_out *o, int threads);
KU_STATUS ku_bench_op_run(const struct ku_bench_out *o, int threads);
/* Time products with the tiles of this machine's caches and of others: bench_tune.c. */
struct ku_device_opts;
KU_STATUS ku_bench_tune_run(const struct ku_bench_out *o, const struct ku_device_opts *device);
/*
 * Measure collectives among the ranks of the job. Without a launcher: among `threads` threads (0:
 * two).
 */
KU_STATUS ku_bench_comm_run(const struct ku_bench_out *o, int threads);

#endif
