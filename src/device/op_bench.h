/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_OP_BENCH_H
#define KU_DEVICE_OP_BENCH_H

#include "base/err.h"
#include "device/device.h"
#include "device/peak_bench.h"

/* Measures how close the ops of the cpu device come to the limits: `kumi bench op`. */
struct ku_bench_row {
    const char *name; /* "linear_dw.fc": the op and its use in GPT-2 */
    char shape[160];  /* of the first two operands */
    char tiling[48];  /* "840x64x1024": rows, columns and units of a tile; "": not a product */
    enum kumi_dtype dtype;
    int64_t median_ns, min_ns, max_ns;
    int n_runs;
    int is_in_cache;     /* the operands of all copies together are too small to come from memory */
    double flops, bytes; /* of one run, by the op table: the min traffic */
    double limit_ns;     /* roofline: the larger of flops / peak and bytes / stream */
};
struct ku_bench_opts {
    struct ku_device_opts device;
    enum kumi_dtype dtype;            /* KUMI_F32, KUMI_BF16 or KUMI_F16 */
    int64_t samples, tokens;          /* tokens per sample; 0 = 2 and 256 */
    int64_t width, heads, vocabulary; /* 0 = GPT-2's 768, 12, 50304 */
    const char *only;                 /* only rows whose name has this prefix; NULL = all */
    int64_t time_ns;                  /* min time per row; 0 = 100 ms */
};
/*
 * Times every op of a GPT-2 step at the shape of one of two ranks. Runs cycle through enough copies
 * of the operands that they come from memory, as in a step whose state and activations exceed every
 * cache.
 *
 *   peak   from ku_bench_peak, or NULL: limit_ns is then 0
 *   row    called for each row; a non-zero result stops the benchmark and is returned
 */
KU_STATUS ku_bench_op(const struct ku_bench_opts *opts, const struct ku_peak *peak,
                      int (*row)(void *ctx, const struct ku_bench_row *row), void *ctx);
bool ku_bench_op_is_known(const char *only); /* 1 if a row's name has this prefix */

#endif
