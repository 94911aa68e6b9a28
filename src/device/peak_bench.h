/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_PEAK_BENCH_H
#define KU_DEVICE_PEAK_BENCH_H

#include "base/err.h"
#include "device/device.h"

/*
 * Measures the limits of this machine: `kumi bench peak`. device/op_bench.h measures how close the
 * ops come.
 */
struct ku_spread { /* of a rate, per second */
    double min, median, max;
};
struct ku_peak {
    enum ku_isa isa;
    int n_threads;
    double flops_f32,
        /* per second: best of the instruction loop and a matrix product in cache */
        flops_bf16;
    double stream_bytes; /* bytes per second, read + written: best of a copy and an in-place pass */
    double touch_bytes;  /* bytes per second: first touch of fresh memory, the median */
    struct ku_spread f32, bf16, stream, touch; /* min, median and max of KU_PEAK_TRIES runs */
};
enum { KU_PEAK_TRIES = 7 };
/*
 * Takes two seconds. Errors: those of the device's open, KUMI_ENOMEM.
 */
KU_STATUS ku_bench_peak(const struct ku_device_opts *opts, struct ku_peak *out);
/*
 * Measures only the matrix peaks in about 0.1 s; the other results are 0.
 */
KU_STATUS ku_bench_peak_quick(const struct ku_device_opts *opts, struct ku_peak *out);
/* 1: the median of a spread is below 0.9 of its max: other load disturbed the measurement. */
bool ku_peak_is_disturbed(const struct ku_peak *peak);

#endif
