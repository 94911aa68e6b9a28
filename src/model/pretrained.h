/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_MODEL_PRETRAINED_H
#define KU_MODEL_PRETRAINED_H

#include "ckpt/snapshot/snapshot.h"
#include "data/tokenizer/tokenizer.h"
#include "config/config.h"
#include "model/model.h"

/* What a trained model's directory says: a checkpoint, or one that transformers loads. */

/*
 * The configuration of the run that wrote a checkpoint. `model` holds the keys of the checkpoint's
 * own config.json, so that a directory of first weights is not needed any more.
 *
 *   set   [n_sets] "section.key=value" over it, borrowed until ku_config_fini
 */
int ku_stored_config(const struct ku_ckpt *c, const char *const *set, int n_sets,
                     struct ku_config *cfg);

/* Whether dir is what transformers loads: config.json with model.safetensors or an index. */
int ku_stored_is_weights(const char *dir);
/*
 * Load rank's part (of n_ranks that share it) of the parameters (group MODEL of tensor[n]) from a
 * directory with model.safetensors under Hugging Face's names. Errors: as ku_weights_open and read.
 */
int ku_stored_weights(const char *dir, const struct ku_model *model,
                      const struct ku_ckpt_tensor *tensor, int n, int rank, int n_ranks);

/* The tokenizer of such a directory: `wanted` if not NULL, its own, or "byte" for a vocabulary of
 * 256. Borrowed. Errors: KUMI_EINPUT: there is none. */
int ku_stored_tokenizer(const char *dir, const char *wanted, int64_t vocab_count,
                        const char **where);
/*
 * The tokens that end a text: eos_token_id, a number or a list, of generation_config.json, else of
 * config.json, else the tokenizer's end of text.
 *
 *   dir   with config.json
 *
 * Errors: KUMI_EINPUT: a file that is no JSON, ids that are no whole numbers, or too many.
 */
enum { KU_STORED_ENDS_MAX = 64 };
struct ku_stored_ends {
    uint32_t id[KU_STORED_ENDS_MAX];
    int n;
};
int ku_stored_read_ends(const char *dir, const struct ku_tokenizer *t, struct ku_stored_ends *out);

/*
 * Load rank's part (of n_ranks that share it) of the averages of the weights (train.ema) from a
 * checkpoint into the parameters' place, each byte against its checksum. Parameters that are not
 * trained, and running statistics, have none and stay.
 *
 *   path     a checkpoint, open to find it or not
 *   tensor   [n] the parameters; others are not looked at
 *
 * Errors: KUMI_EINVAL: there are none, or no update has been made; KUMI_ENOCKPT.
 */
int ku_stored_averages(const char *path, const struct ku_ckpt_tensor *tensor, int n, int rank,
                       int n_ranks);

/* Holds every byte of a file of a checkpoint against its checksum. KUMI_ENOCKPT. */
int ku_stored_check(const struct ku_ckpt *c, int file);

/*
 * Find the newest checkpoint whose model is whole, every byte of it held against its checksum;
 * damaged ones are named in a warning and passed over. For one rank.
 *
 *   dir   as for ku_ckpt_find
 *
 * Errors: KUMI_ENOCKPT.
 */
int ku_stored_find(const char *dir, struct ku_ckpt *c);

#endif
