/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_PEAK_BENCH_H
#define KU_DEVICE_PEAK_BENCH_H

#include "device/device.h"

/* What this machine allows, and how near the cpu device comes: behind `kumi bench peak|op`. */
struct ku_spread { /* of a rate, per second */
    double least, median, most;
};
struct ku_peak {
    enum ku_isa isa;
    int n_threads;
    double flops_f32,
        flops_bf16;      /* per second: best of the instruction loop and a product in cache */
    double stream_bytes; /* per second, read + written: best of a copy and an in-place pass */
    double touch_bytes;  /* per second: first touch of fresh memory, the median */
    struct ku_spread f32, bf16, stream, touch; /* where those stand among KU_PEAK_TRIES */
};
enum { KU_PEAK_TRIES = 7 };
/* Takes two seconds. Errors: of the device's open, KUMI_ENOMEM. */
int ku_bench_peak(const struct ku_device_opts *opts, struct ku_peak *out);
/* The matrix peaks alone, the others are 0: about 0.1 s. tick (or NULL) is called every few ms. */
int ku_bench_peak_quick(const struct ku_device_opts *opts, void (*tick)(void *ctx), void *ctx,
                        struct ku_peak *out);
/* 1: the median of a spread is far below its best: other load disturbed it. */
int ku_peak_is_disturbed(const struct ku_peak *peak);

struct ku_bench_row {
    const char *name; /* "linear_dw.fc": the op, and which use of it in GPT-2 */
    char shape[160];  /* of the first two operands */
    enum kumi_dtype dtype;
    int64_t median_ns, least_ns, most_ns;
    int n_runs;
    int is_in_cache;     /* its operands are too small to come from memory, copies and all */
    double flops, bytes; /* of one run, by the op table: the least that can be moved */
    double limit_ns;     /* roofline: the larger of flops / peak and bytes / stream */
};
struct ku_bench_opts {
    struct ku_device_opts device;
    enum kumi_dtype dtype;            /* KUMI_F32, KUMI_BF16 or KUMI_F16 */
    int64_t samples, tokens;          /* of one sample; 0 = 2 and 256 */
    int64_t width, heads, vocabulary; /* 0 = GPT-2's 768, 12, 50304 */
    const char *only;                 /* rows whose name begins so; NULL = all */
    int64_t time_ns;                  /* spent per row at least; 0 = 100 ms */
};
/*
 * Times every op of a GPT-2 step at the shape that one of two ranks sees. Runs go round through so
 * many copies of the operands that these come from memory, as in a step whose state and activations
 * are larger than any cache.
 *
 *   peak   from ku_bench_peak, or NULL: limit_ns is then 0
 *   row    called for each; non-zero stops, and is returned
 */
int ku_bench_op(const struct ku_bench_opts *opts, const struct ku_peak *peak,
                int (*row)(void *ctx, const struct ku_bench_row *row), void *ctx);
int ku_bench_op_is_known(const char *only); /* 1 if a row's name begins so */

#endif
