/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_ROWS_H
#define KU_TRAIN_ROWS_H

#include "data/data.h"
#include "data/sampler.h"

/*
 * Rows of batches as token models read them, [n][seq_len]: [first, first + n) of a step's batch, or
 * samples [first, first + n) of the first n_samples of the validation split. A row without a sample
 * has targets that no loss counts. Errors: KUMI_EINPUT.
 */
int ku_rows_train(const struct ku_data *d, const struct ku_sampler *s, int64_t seq_len,
                  int64_t step, int64_t first, int64_t n, int32_t *tokens, int32_t *targets);
int ku_rows_val(const struct ku_data *d, int64_t n_samples, int64_t seq_len, int64_t first,
                int64_t n, int32_t *tokens, int32_t *targets);

#endif
