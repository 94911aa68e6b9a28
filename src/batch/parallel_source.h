/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BATCH_PARALLEL_SOURCE_H
#define KU_BATCH_PARALLEL_SOURCE_H

#include "base/err.h"
#include "batch/batch_source.h"
#include "data/tokenizer/vocab.h"

/* Batches of a parallel corpus, for encoder-decoder models; and its vocabularies alone. */
struct ku_vocab_pair {
    struct ku_vocab *src, *tgt; /* may be the same object */
};
/* Files of a run with word vocabularies, written by ops->save; there are none of tokenizers. */
#define KU_VOCAB_FILES "source.vocab", "target.vocab"
/*
 * Open the vocabularies of a run for translation: the files in its directory, or what the
 * configuration names.
 *
 *   dir         where those files may be, in this order; NULL: no such directory
 *   tokenizer   replacements for source and target; NULL: not replaced
 */
KU_STATUS ku_vocab_pair_open(const struct ku_config *c, const char *const dir[2],
                             const char *const tokenizer[2], struct ku_vocab_pair *p);
void ku_vocab_pair_fini(struct ku_vocab_pair *p);
/*
 * Open the validation pairs of a run alone, as the training split of *out: those that are empty or
 * too long are left out as in training, with the same warnings.
 *
 *   vocab   borrowed until *out is destroyed
 *
 * Owns: *out, until ku_data_destroy. Errors: as ku_parallel_open.
 */
KU_STATUS ku_parallel_open_val(const struct ku_config *c, const struct ku_vocab_pair *vocab,
                               struct ku_data **out);

#endif
