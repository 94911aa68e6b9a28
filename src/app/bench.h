/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_APP_BENCH_H
#define KU_APP_BENCH_H

#include <jansson.h>
#include <stdint.h>

#include "base/str.h"

enum { KU_BENCH_THREADS_MAX = 512 /* as many as ranks of a host */ };

/* Where the lines of kumi_bench go, and what of it is wanted. */
struct ku_bench_out {
    void (*line)(void *ctx, const char *text);
    void *ctx;
    int as_json;
    const char *only;  /* op, comm: rows whose name begins so; NULL: all */
    const char *dtype; /* op, comm: "f32" or "bf16"; op: "f16"; NULL: the first two */
    int64_t bytes;     /* comm: of one vector; 0: several */
};
/* Text: the first line, which names the machine and ranks x threads. */
int ku_bench_head(const struct ku_bench_out *o, int ranks, int threads);
/* Hands over a line; the text is emptied, the reference taken. KUMI_ENOMEM. JSON: the machine and
 * ranks x threads join the row. */
int ku_bench_line(const struct ku_bench_out *o, struct ku_str *text);
int ku_bench_line_json(const struct ku_bench_out *o, json_t *row, int ranks, int threads);

/* Limits of so many threads (0: the cores), also written to the cache; every op in f32 and bf16. */
int ku_bench_peak_run(const struct ku_bench_out *o, int threads);
int ku_bench_op_run(const struct ku_bench_out *o, int threads);
/* Collectives among the ranks of the job that this process is of; started alone, among so many
 * threads (0: two). */
int ku_bench_comm_run(const struct ku_bench_out *o, int threads);

#endif
