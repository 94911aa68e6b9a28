/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_SHARDING_H
#define KU_CONFIG_SHARDING_H

#include "config/config.h"

/*
 * How the data-parallel ranks share the state out: dp = replicate x shard
 * (docs/reference/sharding.md). Each of `replicate` groups holds the state once, its `shard` ranks
 * a part each: from stage 1 on of the optimizer, from 2 on of gradients, with 3 of parameters.
 */
struct ku_sharding {
    int zero, replicate, shard;
    int reshard; /* ranks that hold a module together between forward and backward: all of a shard
                    group, fewer (a divisor), or 1: it stays whole */
};

/*
 * The layout that parallel.zero, strategy, replicate and shard ask for on so many data-parallel
 * ranks. Errors: KUMI_EINVAL: keys that contradict each other or the rank count, with what is
 * admissible.
 */
int ku_sharding_resolve(const struct ku_config *c, int n_ranks, struct ku_sharding *out);

#endif
