/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_SIM_MACHINE_LIMITS_H
#define KU_SIM_MACHINE_LIMITS_H

#include <stdbool.h>
#include <time.h>

#include "base/err.h"

/*
 * Machine limits: the highest FLOP/s and bytes/s measured on this machine. They are stored in
 * peak.json of the cache folder ($KUMI_CACHE, $XDG_CACHE_HOME/kumi, $HOME/.cache/kumi) as an array
 * of rows, one per machine, instruction set and number of threads. A home folder may thus serve
 * several machines:
 *
 *     {"cpu", "machine", "isa", "cores", "threads",   key of the row
 *      "f32", "bf16", "stream",                       FLOP/s and bytes/s: maximum over all starts
 *      "starts": {"f32": [..], "bf16": [..], ..},     the largest KU_PEAK_STARTS values, descending
 *      "date", "last"}                                day of the maximum, of the last start
 *
 * A start under other load measures less than the machine allows, and its result does not show
 * that. A limit is therefore the maximum over all starts. It is confirmed when a second start came
 * within 5 % of it. `kumi train` measures at every start until then, at most KU_PEAK_STARTS times,
 * and afterwards once per day.
 */
enum { KU_PEAK_STARTS = 8, KU_PEAK_DAY_BYTES = 11 };
enum ku_peak_figure { KU_PEAK_F32, KU_PEAK_BF16, KU_PEAK_STREAM, KU_N_PEAK_FIGURES };
struct ku_peak_kept {
    char date[KU_PEAK_DAY_BYTES]; /* "2026-03-01"; "": unknown */
    struct {
        double best; /* per second; 0: not measured */
        int n_starts, is_confirmed;
    } figure[KU_N_PEAK_FIGURES];
};

/*
 * Reads the FLOP/s ("f32", "bf16", "f16") or bytes/s ("stream") of `cores` cores of this CPU:
 * measured with as many threads, else scaled from the row with the most threads. KUMI_EINPUT: not
 * measured on this machine.
 */
KU_STATUS ku_peak_read(const char *dtype, int cores, double *flops);
/*
 * Path of the file, existing or not; free with ku_free. NULL: there is no cache folder.
 */
char *ku_peak_path(void);
struct ku_peak; /* device/peak_bench.h */
/*
 * Adds the measurements of a start to this machine's row; values of 0 are not measured.
 * KUMI_ESTORAGE: the cache cannot be written.
 */
KU_STATUS ku_peak_write(const struct ku_peak *measured, time_t now);
/*
 * Reads this machine's row for n_threads. Returns 1, or 0 with *out zero if there is none.
 */
int ku_peak_look(int n_threads, struct ku_peak_kept *out);
/* 1 if this start should measure the matrix peaks with n_threads. */
bool ku_peak_is_due(int n_threads, time_t now);

#endif
