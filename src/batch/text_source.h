/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BATCH_TEXT_SOURCE_H
#define KU_BATCH_TEXT_SOURCE_H

#include "base/err.h"
#include "batch/batch_source.h"

/* Batches of text, token files and tokenized documents (data.kind text and jsonl). */

/*
 * Options of evaluation on a held-out stream. All zero: as in training.
 */
struct ku_held_out {
    int64_t stride; /* between windows, 1 to seq_len: see struct ku_text_opts */
    int is_alone;   /* open data.val only */
};
/*
 * Evaluate on the whole of a held-out stream, and never train. Call it before open; s is a source
 * of ku_text_batches.
 */
void ku_text_hold_out(struct ku_batch_source *s, const struct ku_held_out *held);
/* ops->check of text, and of other data whose batches have one shape. */
KU_STATUS ku_text_check(const struct ku_config *c, const struct ku_model *m);
/* Whether data.kind is text or jsonl, or null. */
bool ku_text_is_kind(const struct ku_config *c);
/*
 * Whether data.tokenizer made the tokens. With "byte", which is for plain text, the tokens of token
 * files and of jsonl documents come from another tokenizer.
 */
bool ku_text_is_tokenized(const struct ku_config *c);

/*
 * Without data.mask_token, the id is found when the data are opened: the tokenizer's mask token,
 * else the model's last id, if the tokenizer has no token there. A checkpoint has it among its
 * numerics keys, and a resume keeps it: sets data_mask_token if it is null and the model is masked.
 *
 *   numerics   of the checkpoint; null in it is of older versions, which took the model's last id
 */
void ku_text_keep_mask_token(struct ku_config *c, const struct ku_model *m, const json_t *numerics);
/* The mask token of open data; -1: they are not masked. */
int64_t ku_text_mask_token(const struct ku_batch_source *s);

/*
 * Whether the data are token ids of another tokenizer than data.tokenizer "byte": the first entry
 * of data.train is a token file, or documents of which the first has input_ids.
 *
 *   *file   out: that entry, borrowed from c; NULL: no, or documents that are not there any more
 *
 * Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_text_find_ids(const struct ku_config *c, const char **file);

/*
 * Bytes of text that each token below vocab_count stands for; -1 for ids that the tokenizer does
 * not have.
 *
 *   *bytes   out: [vocab_count], freed with ku_free; NULL: unknown, because the files are token
 *            files and no tokenizer is named
 *
 * Errors: KUMI_EINPUT (the tokenizer), ENOMEM.
 */
KU_STATUS ku_text_token_bytes(const struct ku_config *c, int64_t vocab_count, int32_t **bytes);

#endif
