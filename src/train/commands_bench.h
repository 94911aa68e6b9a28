/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_COMMANDS_BENCH_H
#define KU_TRAIN_COMMANDS_BENCH_H

#include <jansson.h>

#include "base/str.h"

enum { KU_BENCH_THREADS_MAX = 512 /* as many as ranks of a host */ };

/* Where the lines of kumi_bench go. */
struct ku_bench_out {
    void (*line)(void *ctx, const char *text);
    void *ctx;
    int as_json;
};
/* Hands over a line; the text is emptied, the reference taken. KUMI_ENOMEM. */
int ku_bench_line(const struct ku_bench_out *o, struct ku_str *text);
int ku_bench_line_json(const struct ku_bench_out *o, json_t *row);

/* Collectives among the ranks of the job that this process is of; started alone, among so many
 * threads (0: two). */
int ku_bench_comm_run(const struct ku_bench_out *o, int threads);

#endif
