/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_BATCH_ROWS_H
#define KU_DATA_BATCH_ROWS_H

#include "base/err.h"
#include "data/data.h"
#include "data/sampler.h"

/*
 * Fill rows of a batch in the form models read: rows [first, first + n) of a training step's batch,
 * or samples [first, first + n) of the first n_samples of the validation split. A row without a
 * sample is zero, and its targets are KU_NO_TARGET, so the loss ignores them.
 *
 *   to   [d->n_ports]: address of row `first` of each port; rows are contiguous
 *
 * Errors: EINPUT.
 */
KU_STATUS ku_rows_train(const struct ku_data *d, const struct ku_sampler *s, int64_t step,
                        int64_t first, int64_t n, void *const *to);
KU_STATUS ku_rows_val(const struct ku_data *d, int64_t n_samples, int64_t first, int64_t n,
                      void *const *to);

#endif
