/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_SHARDING_H
#define KU_CONFIG_SHARDING_H

#include "base/err.h"
#include "config/config.h"

/*
 * The parallel layout of ZeRO: dp = replicate x shard data-parallel ranks
 * (docs/reference/sharding.md). Each of the `replicate` groups has one copy of the state,
 * partitioned over its `shard` ranks: stage 1 optimizer state, stage 2 also gradients, stage 3 also
 * parameters.
 *
 *     replicate 2 x shard 4      rank   0 1 2 3 | 4 5 6 7
 *                                shard  0 1 2 3 | 0 1 2 3      replica 0 | replica 1
 */
struct ku_sharding {
    int zero, replicate, shard;
    int reshard; /* stage 3: ranks that partition a module between forward and backward: shard, a
                    divisor of it, or 1: not partitioned then */
};

/*
 * Resolve parallel.zero, strategy, replicate, shard and reshard_after_forward for n_ranks
 * data-parallel ranks.
 *
 * Errors: EINVAL, keys that contradict each other or n_ranks, with the admissible values.
 */
KU_STATUS ku_sharding_resolve(const struct ku_config *c, int n_ranks, struct ku_sharding *out);

#endif
