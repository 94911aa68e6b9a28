/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_BATCH_RELATION_H
#define KU_CONFIG_BATCH_RELATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/*
 * The batch relation (docs/internals/numerics.md):
 *
 *     global_batch = n_ranks * micro_batch * accumulation = virtual_shards * micro_batch * k
 *
 *     global_batch 32, 2 ranks, virtual_shards 4, micro_batch 4: accumulation 4, k 2
 *
 *     virtual shard     0         1         2         3
 *     samples           0..7      8..15     16..23    24..31
 *     rank              0         0         1         1
 *
 * 0 = not given. ku_batch_resolve derives missing values, with micro_batch as large and k as small
 * as the relation permits.
 *
 * With parallel.order "free" the result has virtual_shards = n_ranks: the given value only sets the
 * batch size, its shards accumulate on a rank like micro-batches, and bits depend on n_ranks.
 */
struct ku_batch {
    int n_ranks; /* data-parallel ranks */
    int is_free; /* parallel.order is "free" */
    /* data.batch_tokens sets the size: without values that count samples, micro_batch is 1. */
    int is_in_tokens;
    int64_t global_batch, micro_batch, accumulation, virtual_shards;
    int64_t k;       /* micro-batches per virtual shard; result */
    int64_t n_parts; /* evaluation on another rank count: micro-batches of the training run's
                        batch; 0: virtual_shards * k */
};
/* Samples per step if no key gives a size. */
enum { KU_DEFAULT_GLOBAL_BATCH = 16 };
/* Fill in the missing values. Errors: EINVAL, with the nearest valid values (*b unchanged). */
KU_STATUS ku_batch_resolve(struct ku_batch *b);
/* Whether n_ranks can run V virtual shards: n_ranks is 1, or V / n_ranks a power of two. */
bool ku_batch_is_admissible(int64_t virtual_shards, int64_t n_ranks);

#endif
