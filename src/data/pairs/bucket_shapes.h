/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_PAIRS_BUCKET_SHAPES_H
#define KU_DATA_PAIRS_BUCKET_SHAPES_H

#include "base/err.h"
#include "data/pairs/buckets.h"

/*
 * Choose the shapes with the least padding for these lengths, ascending in both lengths.
 *
 * Errors: EINVAL if batch_tokens has no room for `multiple` rows of the longest sample; ENOMEM.
 */
KU_STATUS ku_buckets_choose(const struct ku_buckets_opts *opts, const int32_t *src_len,
                            const int32_t *tgt_len, int64_t n_samples,
                            struct ku_bucket_shape shape[KU_SHAPES_MAX], int *n_shapes);

#endif
