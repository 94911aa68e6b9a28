/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_PEAK_H
#define KU_TRAIN_PEAK_H

/*
 * The machine's matrix peak, as `kumi bench peak` measured it and keeps it in peak.json of the
 * cache folder ($KUMI_CACHE, $XDG_CACHE_HOME/kumi, $HOME/.cache/kumi): an array of rows
 * {"cpu", "isa", "threads", "f32", "bf16", "stream"}, FLOP/s and bytes/s, one per CPU model,
 * instruction set and threads, so that a home folder may serve several machines.
 */

/*
 * FLOP/s ("f32", "bf16") or bytes/s ("stream") of so many cores of this CPU: what was measured with
 * as many threads, else the row of most threads in proportion. KUMI_EINPUT: not measured here, or
 * no peak is known for this dtype.
 */
int ku_peak_read(const char *dtype, int cores, double *flops);
/* The file's path, there or not; freed with ku_free. NULL: there is no cache folder. */
char *ku_peak_path(void);
struct ku_peak; /* device/bench.h */
/* Adds or replaces this CPU's row. KUMI_ESTORAGE: the cache cannot be written. */
int ku_peak_write(const struct ku_peak *measured);

#endif
