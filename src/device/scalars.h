/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_SCALARS_H
#define KU_DEVICE_SCALARS_H

#include "device/device.h"

/*
 * The once-a-step scalars, in f64 and the same on every device: of the call, only the operands'
 * data and the attributes are read. A learning rate is a function of the update count, from 0, and
 * the attributes alone: `period` updates share one, as PyTorch's scheduler.step() once an epoch.
 */
double ku_schedule_lr(const struct ku_attrs *a, int64_t update);
double ku_schedule_ds_lr(const struct ku_attrs *a, int64_t period); /* DeepSpeed's */
double ku_schedule_ds_momentum(const struct ku_attrs *a, int64_t period);
/* The momentum (beta1 of Adam and LAMB): `otherwise`, unless the schedule moves it. */
double ku_schedule_momentum(const struct ku_attrs *a, double otherwise, int64_t update);
/* What the update of a layer-wise optimizer is multiplied by, from its tensor's two norms: that of
 * the parameter, and that of the gradient as it arrives (lars) or of the update (lamb). */
double ku_trust_lars(const struct ku_attrs *a, const double *norms, double scale);
double ku_trust_lamb(const struct ku_attrs *a, const double *norms);
/* Decay of an average of weights in update t, from 1. */
double ku_ema_decay(const struct ku_attrs *a, double t);
void ku_trust_norms(const struct ku_call *call);  /* op trust_norms */
void ku_step_scalars(const struct ku_call *call); /* op step_scalars */
void ku_loss_scaler(const struct ku_call *call);  /* op loss_scaler */
double ku_loss_seed(const struct ku_call *call);  /* op loss_seed */
/* op clip_value: the largest size of an element as it arrives, of the gradient's dtype; infinite
 * in a step without update. */
double ku_clip_limit(const struct ku_call *call);
void ku_loss_scalars(const struct ku_call *call); /* op loss_scalars */

#endif
