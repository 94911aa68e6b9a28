/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_NORM_CHANNELS_H
#define KU_DEVICE_NORM_CHANNELS_H

#include "device/device.h"

/* What batch norm computes per channel, in f64 and rounded once: the same on ref and cpu. */

/*
 * batch_norm_moments: mean = s1 / n, var = s2 / n - mean^2, never below 0; unbiased: n / (n - 1)
 * var, or var where n is 1.
 */
void ku_norm_moments(const struct ku_call *c);
/*
 * batch_norm_track: for each micro-batch number in turn, running = (1 - momentum) running +
 * momentum scale new, where new is the sum over shards; of a range of channels where the running
 * tensors are cut into blocks.
 */
void ku_norm_track(const struct ku_call *c);

#endif
