/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_MODEL_H
#define KU_TRAIN_MODEL_H

#include "kumi/model.h"
#include "train/config.h"

/* The model of a configuration: Hugging Face's keys, inline, or in the config.json of {"path": DIR}
 * with those that stand beside path over them. */
struct ku_model {
    struct kumi_gpt2 gpt2;
    char *path; /* directory whose weights are the start; NULL: none */
};
/* Errors: KUMI_EINVAL with the key's place; KUMI_EINPUT: no config.json in the directory. */
int ku_model_read(const struct ku_config *cfg, struct ku_model *m);
/* From the text of a config.json alone (checkpoints). */
int ku_model_parse(const char *name, const char *text, size_t bytes, struct ku_model *m);
void ku_model_fini(struct ku_model *m);
/* config.json as transformers reads it. Owned by the caller; NULL: no memory. */
char *ku_model_print(const struct ku_model *m);
/* Parameters, and model FLOP of one token forward and backward: 6 N + 12 layers width t (attention
 * in full). */
double ku_model_flops_per_token(const struct ku_model *m, int64_t t);
int64_t ku_model_n_params(const struct ku_model *m);

#endif
