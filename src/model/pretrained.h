/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_MODEL_PRETRAINED_H
#define KU_MODEL_PRETRAINED_H

#include "base/err.h"
#include "ckpt/snapshot/snapshot.h"
#include "data/tokenizer/tokenizer.h"
#include "config/config.h"
#include "model/model.h"

/* Reads a directory with a trained model: a checkpoint, or one that transformers loads. */

/*
 * Read the configuration of the run that wrote a checkpoint. Its model is read from the
 * checkpoint's own config.json, and its tokenizer from the checkpoint if that has one.
 *
 *   set   [n_sets] overrides "section.key=value"
 *
 * Errors: ENOCKPT, a damaged file; EINVAL, an invalid override, a path that is not UTF-8.
 */
KU_STATUS ku_pretrained_config(const struct ku_ckpt *c, const char *const *set, int n_sets,
                               struct ku_config *cfg);

/*
 * Find the directory of the run that has a checkpoint in its checkpoints/.
 *
 *   home   out: its path, freed by the caller; NULL: the checkpoint lies elsewhere
 *
 * Errors: ENOMEM.
 */
KU_STATUS ku_pretrained_home(const struct ku_ckpt *c, char **home);

/* Whether dir has config.json and model.safetensors or its index, as transformers loads. */
bool ku_pretrained_is_weights(const char *dir);
/*
 * Load parameters from a directory with model.safetensors under Hugging Face's names.
 *
 *   tensor          [n]; only those of group MODEL are loaded
 *   rank, n_ranks   this rank's part of the bytes, if n_ranks share the memory; 0, 1: all
 *
 * Errors: as ku_weights_open and ku_weights_read.
 */
KU_STATUS ku_pretrained_weights(const char *dir, const struct ku_model *model,
                                const struct ku_ckpt_tensor *tensor, int n, int rank, int n_ranks);

/* Choose the tokenizer of such a directory: `wanted` if not NULL, else the directory's, else "byte"
 * for a vocabulary of 256. *where is borrowed. Errors: EINPUT, there is none. */
KU_STATUS ku_pretrained_tokenizer(const char *dir, const char *wanted, int64_t vocab_count,
                                  const char **where);
/*
 * Read the token ids that end generation: eos_token_id, a number or a list, from
 * generation_config.json, else from config.json, else the tokenizer's end of text.
 *
 *   dir   directory with config.json
 *
 * Errors: EINPUT, a file is no JSON, ids are no integers, or more than KU_PRETRAINED_ENDS_MAX.
 */
enum { KU_PRETRAINED_ENDS_MAX = 64 };
struct ku_pretrained_ends {
    uint32_t id[KU_PRETRAINED_ENDS_MAX];
    int n;
};
KU_STATUS ku_pretrained_read_ends(const char *dir, const struct ku_tokenizer *t,
                                  struct ku_pretrained_ends *out);

/*
 * Load the averages of the weights (train.ema) of a checkpoint into the parameters, with checksums
 * verified. Frozen parameters and running statistics have no average and are unchanged.
 *
 *   path            a checkpoint
 *   tensor          [n]; only parameters are loaded
 *   rank, n_ranks   as for ku_pretrained_weights
 *
 * Errors: EINVAL, there are no averages or no update has been made; ENOCKPT, damaged.
 */
KU_STATUS ku_pretrained_averages(const char *path, const struct ku_ckpt_tensor *tensor, int n,
                                 int rank, int n_ranks);

/* Verify the checksums of one file of a checkpoint. file: enum ku_ckpt_file_id. Errors: ENOCKPT. */
KU_STATUS ku_pretrained_check(const struct ku_ckpt *c, int file);

/*
 * Call `use` with the newest checkpoint whose model and config.json match their checksums. Where
 * they do not, or `use` returns ENOCKPT, the checkpoint is damaged, and the one before it is next,
 * with a warning. The run may be in training: where it has removed the checkpoint before `use` has
 * read it (checkpoint.keep), which is ENOCKPT or EINPUT, the newest of that time is next, at most
 * KU_CKPT_MAX_REMOVED in all. For one rank.
 *
 *   dir   as for ku_ckpt_find
 *   use   may be called several times: it first releases what it made of an earlier checkpoint
 *
 * Errors: ENOCKPT, with the damage of the newest one; those of use.
 */
KU_STATUS ku_pretrained_use(const char *dir, int (*use)(void *ctx, const struct ku_ckpt *c),
                            void *ctx);

#endif
