/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_DATASET_TEXT_H
#define KU_TRAIN_DATASET_TEXT_H

#include "base/err.h"
#include "data/data.h"
#include "config/config.h"
#include "model/model.h"

/* Opens text and tokenized documents (data.kind text and jsonl) of a configuration. */

/*
 * Options of evaluation on a held-out stream. All zero: as in training.
 */
struct ku_held_out {
    int64_t stride; /* between windows, 1 to seq_len: see struct ku_text_opts */
    int is_alone;   /* open data.val only */
};
/*
 * Open the data.
 *
 *   held   NULL: as in training
 *
 * Owns: *out. Blocks: while text is tokenized. Errors: KUMI_EINPUT, EINVAL (keys that conflict with
 * each other or with the model), ENOMEM.
 */
KU_STATUS ku_dataset_open_text(const struct ku_config *c, const struct ku_model *m, int64_t seq_len,
                               const struct ku_held_out *held, const struct ku_progress *progress,
                               struct ku_data **out);
/* KUMI_EINVAL if text keys conflict with each other or with the model. */
KU_STATUS ku_dataset_check_text(const struct ku_config *c, const struct ku_model *m);
/* data.kind; if it is null, the kind that the model and the files imply. */
const char *ku_dataset_kind(const struct ku_config *c, const struct ku_model *m);
/* Whether the kind is text or jsonl. */
bool ku_dataset_is_text(const struct ku_config *c);
/*
 * Whether data.tokenizer made the tokens. With "byte", which is for plain text, the tokens of token
 * files and of jsonl documents come from another tokenizer.
 */
bool ku_dataset_is_tokenized(const struct ku_config *c);

/*
 * Bytes of text that each token below vocab_count stands for; -1 for ids that the tokenizer does
 * not have.
 *
 *   *bytes   out: [vocab_count], freed with ku_free; NULL: unknown, because the files are token
 *            files and no tokenizer is named
 *
 * Errors: KUMI_EINPUT (the tokenizer), ENOMEM.
 */
KU_STATUS ku_dataset_token_bytes(const struct ku_config *c, int64_t vocab_count, int32_t **bytes);

#endif
