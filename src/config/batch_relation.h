/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_BATCH_RELATION_H
#define KU_CONFIG_BATCH_RELATION_H

#include <stdint.h>

/*
 * The batch relation (docs/internals/numerics.md): global_batch = n_ranks * micro_batch *
 * accumulation = virtual_shards * micro_batch * k. 0 = not given; resolve fills in what follows,
 * with micro_batch as large and k as small as the relation admits.
 *
 * In free order shards are what ranks take, virtual_shards = n_ranks: those that were given say how
 * large a batch is and add up on a rank as its micro-batches do, so that bits depend on n_ranks.
 */
struct ku_batch {
    int n_ranks; /* of the data-parallel axes */
    int is_free; /* parallel.order */
    int64_t global_batch, micro_batch, accumulation, virtual_shards;
    int64_t k;       /* micro-batches of a virtual shard; result */
    int64_t n_parts; /* micro-batches of a run's batch that others evaluate, fewer or more at a
                        time; 0: virtual_shards * k */
};
/* Errors: KUMI_EINVAL with the values and the nearest that work. Nothing is changed then. */
int ku_batch_resolve(struct ku_batch *b);
/* Whether so many ranks admit V virtual shards: 1, or V / n a power of two. */
int ku_batch_is_admissible(int64_t virtual_shards, int64_t n_ranks);

#endif
