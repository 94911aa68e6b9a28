/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_STEP_SCALARS_H
#define KU_DEVICE_STEP_SCALARS_H

#include "device/device.h"

/*
 * Kernels of the ops that compute the scalars of a step (op/schedule.h), in f64 and the same on
 * every device. Of the call they read the operands' data and the attributes alone.
 */
void ku_trust_norms(const struct ku_call *call);  /* op trust_norms */
void ku_step_scalars(const struct ku_call *call); /* op step_scalars */
void ku_loss_scaler(const struct ku_call *call);  /* op loss_scaler */
double ku_loss_seed(const struct ku_call *call);  /* op loss_seed */
/* op clip_value: the largest size of an element as it arrives, of the gradient's dtype; infinite
 * in a step without update. */
double ku_clip_limit(const struct ku_call *call);
void ku_loss_scalars(const struct ku_call *call); /* op loss_scalars */

#endif
