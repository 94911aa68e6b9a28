/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_STEP_SCALARS_H
#define KU_DEVICE_STEP_SCALARS_H

#include "device/device.h"

/*
 * Kernels of the ops that compute the scalars of a step (op/schedule.h), in f64 and shared by all
 * devices. They read only the operands' data and the attributes of the call.
 */
void ku_trust_norms(const struct ku_call *call);  /* op trust_norms */
void ku_step_scalars(const struct ku_call *call); /* op step_scalars */
void ku_loss_scaler(const struct ku_call *call);  /* op loss_scaler */
double ku_loss_seed(const struct ku_call *call);  /* op loss_seed */
/*
 * Op clip_value: the max magnitude of a gradient element, rounded to the gradient's dtype and
 * scaled like the gradient; infinity in a step without an update.
 */
double ku_clip_limit(const struct ku_call *call);
/* The factor of clipping by norm, as PyTorch's clip_grad_norm_: min(1, clip / (norm + 1e-6)). */
double ku_clip_factor(const struct ku_attrs *a, double norm);
void ku_loss_scalars(const struct ku_call *call); /* op loss_scalars */

#endif
