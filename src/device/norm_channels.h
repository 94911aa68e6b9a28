/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_NORM_CHANNELS_H
#define KU_DEVICE_NORM_CHANNELS_H

#include "device/device.h"

/* The per-channel parts of batch norm, shared by all devices: computed in f64 and rounded once. */

/*
 * Op batch_norm_moments: mean = s1 / n, var = max(s2 / n - mean^2, 0); the unbiased variance is var
 * n / (n - 1), or var where n = 1.
 */
void ku_norm_moments(const struct ku_call *c);
/*
 * Op batch_norm_track: for each micro-batch index in order, running = (1 - momentum) running +
 * momentum scale new, where new is the sum over shards. Covers a range of channels when the running
 * tensors are partitioned.
 */
void ku_norm_track(const struct ku_call *c);

#endif
