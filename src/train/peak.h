/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_PEAK_H
#define KU_TRAIN_PEAK_H

/*
 * The machine's matrix peak as `kumi bench peak` measured and cached it: FLOP/s of so many cores.
 * KUMI_EINPUT: not measured on this CPU.
 */
int ku_peak_read(const char *dtype, int cores, double *flops);

#endif
