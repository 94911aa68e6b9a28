/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_MODEL_EXPORT_H
#define KU_MODEL_EXPORT_H

#include "ckpt/weights.h"
#include "kumi/run.h"

/*
 * The weights of dir (config.json and safetensors) as a new directory that transformers loads.
 *
 *   averages   the file that holds averages of the weights, to stand in their place; NULL: none
 *   tick       called now and then; NULL: nobody wants to know
 *
 * Errors: as ku_weights_write.
 */
int ku_export_directory(const char *dir, const char *to, const struct kumi_weights_options *o,
                        const struct ku_st *averages, void (*tick)(void *), void *ctx);

#endif
