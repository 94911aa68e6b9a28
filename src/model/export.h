/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_MODEL_EXPORT_H
#define KU_MODEL_EXPORT_H

#include "base/err.h"
#include "ckpt/weights.h"
#include "kumi/run.h"

/*
 * Write the weights of a directory to a new directory that transformers loads.
 *
 *   dir        config.json and safetensors
 *   to         the new directory; must not exist
 *   averages   file with averages of the weights (train.ema), which replace them; NULL: none
 *   tick       progress callback; NULL: none
 *
 * Errors: as ku_weights_write.
 */
KU_STATUS ku_export_directory(const char *dir, const char *to, const struct kumi_weights_options *o,
                              const struct ku_st *averages, void (*tick)(void *), void *ctx);

#endif
