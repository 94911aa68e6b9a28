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
void ku_step_scalars(const struct ku_call *call); /* op step_scalars */
void ku_loss_scalars(const struct ku_call *call); /* op loss_scalars */

#endif
