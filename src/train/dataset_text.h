/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_DATASET_TEXT_H
#define KU_TRAIN_DATASET_TEXT_H

#include "data/data.h"
#include "config/config.h"
#include "model/model.h"

/* Text and documents of tokens (data.kind text and jsonl), as a configuration names them. */

/* How evaluation reads a held-out stream; all zero: as training does. */
struct ku_held_out {
    int64_t stride; /* of its windows, 1 to seq_len: struct ku_text_opts */
    int is_alone;   /* data.val alone is opened */
};
/*
 *   held   NULL: as training does
 *
 * Owns: *out. Blocks: while text is tokenized. Errors: KUMI_EINPUT, EINVAL (keys that do not go
 * with each other or with the model), ENOMEM.
 */
int ku_dataset_open_text(const struct ku_config *c, const struct ku_model *m, int64_t seq_len,
                         const struct ku_held_out *held, const struct ku_progress *progress,
                         struct ku_data **out);
/* Keys of text that do not go with each other or with the model: KUMI_EINVAL. */
int ku_dataset_check_text(const struct ku_config *c, const struct ku_model *m);
/* data.kind, or what it is where that is null. */
const char *ku_dataset_kind(const struct ku_config *c, const struct ku_model *m);
/* Whether the kind is text or jsonl. */
int ku_dataset_is_text(const struct ku_config *c);
/* Whether the tokens are those of data.tokenizer. Token files and documents under "byte", which is
 * only what texts are read with, have tokens of their own. */
int ku_dataset_is_tokenized(const struct ku_config *c);

/*
 * Bytes of the text that each token below vocab_count stands for, -1 where the tokenizer knows
 * none.
 *
 *   *bytes   [vocab_count], for ku_free; NULL: what the tokens stand for is not known, since the
 *            files are no text and no tokenizer is named
 *
 * Errors: KUMI_EINPUT (the tokenizer), ENOMEM.
 */
int ku_dataset_token_bytes(const struct ku_config *c, int64_t vocab_count, int32_t **bytes);

#endif
