/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_SIM_MACHINE_LIMITS_H
#define KU_SIM_MACHINE_LIMITS_H

#include <time.h>

/*
 * The machine's limits, measured at several starts and kept in peak.json of the cache folder
 * ($KUMI_CACHE, $XDG_CACHE_HOME/kumi, $HOME/.cache/kumi): an array of rows, one per machine,
 * instruction set and number of threads, so that a home folder may serve several machines:
 *
 *     {"cpu", "machine", "isa", "cores", "threads",      whose limits these are
 *      "f32", "bf16", "stream",                          FLOP/s and bytes/s: the best of all starts
 *      "starts": {"f32": [..], "bf16": [..], ..},        the best KU_PEAK_STARTS of them,
 * descending "date", "last"}                                   when a best was reached; the last
 * start
 *
 * A start beside other load measures less than the machine allows, and nothing in it shows that. So
 * a limit is the best of all starts, and counts as confirmed when a second start came within 5 % of
 * it. `kumi train` measures again at every start until that is so, then once a day.
 */
enum { KU_PEAK_STARTS = 8, KU_PEAK_DAY_BYTES = 11 };
enum ku_peak_figure { KU_PEAK_F32, KU_PEAK_BF16, KU_PEAK_STREAM, KU_N_PEAK_FIGURES };
struct ku_peak_kept {
    char date[KU_PEAK_DAY_BYTES]; /* "2026-03-01"; empty: unknown */
    struct {
        double best; /* per second; 0: not measured */
        int n_starts, is_confirmed;
    } figure[KU_N_PEAK_FIGURES];
};

/*
 * FLOP/s ("f32", "bf16") or bytes/s ("stream") of so many cores of this CPU: what was measured with
 * as many threads, else the row of most threads in proportion. KUMI_EINPUT: not measured here, or
 * no peak is known for this dtype.
 */
int ku_peak_read(const char *dtype, int cores, double *flops);
/* The file's path, there or not; freed with ku_free. NULL: there is no cache folder. */
char *ku_peak_path(void);
struct ku_peak; /* device/peak_bench.h */
/* Adds a start, of whose figures 0 are not measured, to this machine's row. KUMI_ESTORAGE: the
 * cache cannot be written. */
int ku_peak_write(const struct ku_peak *measured, time_t now);
/* This machine's row of so many threads. 1, or 0: there is none, and *out is zero. */
int ku_peak_look(int n_threads, struct ku_peak_kept *out);
/* 1: a start is to measure the matrix peaks of so many threads. */
int ku_peak_is_due(int n_threads, time_t now);

#endif
