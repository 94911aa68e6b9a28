/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_NN_RESNET_H
#define KU_NN_RESNET_H

#include "base/err.h"
#include "kumi/model.h"

enum { KU_RESNET_STAGES = 4 /* at most */ };
/*
 * The number of channels of each stage's result.
 *
 *   width   out
 *
 * Returns the number of stages. Errors: those of kumi_resnet_check.
 */
KU_STATUS ku_resnet_widths(const struct kumi_resnet *c, int64_t width[KU_RESNET_STAGES]);

#endif
