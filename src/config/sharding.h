/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_SHARDING_H
#define KU_CONFIG_SHARDING_H

#include <stdbool.h>

#include "base/err.h"
#include "config/config.h"

/*
 * The parallel layout: ranks = pp x dp x tp (docs/reference/pipeline.md, tensor.md), with
 * dp = replicate x shard x local data-parallel ranks (docs/reference/sharding.md). The tp ranks
 * with the same samples are neighbours. Each of the `replicate` groups has one copy of the state,
 * partitioned over its `shard` ranks: stage 1 optimizer state, stage 2 also gradients, stage 3 also
 * parameters. `local` ranks of a host share one copy in memory, of which stages 1 and 2 leave the
 * parameters on each of several hosts, and stage 3 the gathered ones; on one host the stage changes
 * nothing.
 *
 *     replicate 2 x shard 4      rank   0 1 2 3 | 4 5 6 7
 *                                shard  0 1 2 3 | 0 1 2 3      replica 0 | replica 1
 *
 *     host_state shared, 8 ranks of one host: replicate 1 x shard 1 x local 8
 *                        2 hosts with 4 ranks each: replicate 2 x shard 1 x local 4
 *                        the same, stage 1 to 3:    replicate 1 x shard 2 x local 4
 *                        4 hosts, shard 8:          replicate 2 x shard 2 x local 4
 */
struct ku_sharding {
    int zero, replicate, shard, local;
    int tp;      /* ranks that divide each layer (tensor parallelism) */
    int reshard; /* stage 3: ranks that partition a module between forward and backward: shard, a
                    divisor of it, or 1: not partitioned then */
    int pp;      /* coordinates of axis pp, outermost: groups of ranks with stages of their own */
    /* why `zero` is what it is, where it was omitted on several hosts or with shard; else NULL */
    const char *default_why;
};

/*
 * Resolve parallel.pp, tp, zero, strategy, replicate, shard, reshard_after_forward and host_state
 * for n_ranks ranks. With pp or tp above 1 or with several hosts each rank has memory of its own:
 * host_state auto is private, and on several hosts ku_sharding_share lets the ranks of a host
 * share. The shards of a copy may be on several hosts. An omitted parallel.zero is 3 with
 * parallel.shard above 1, else 1 on several hosts where the ranks can partition the state, else 0.
 *
 *   host_ranks   ranks of a host, of hosts of different sizes their greatest common divisor; 0: all
 *                ranks are on one host
 *
 * Errors: EINVAL, keys that contradict each other or n_ranks, with the admissible values.
 */
KU_STATUS ku_sharding_resolve(const struct ku_config *c, int n_ranks, int host_ranks,
                              struct ku_sharding *out);

/*
 * Several hosts: let the ranks of each share one copy of the state, where parallel.host_state asks
 * for it, and where it is auto if that is possible. Changes what ku_sharding_resolve gave; nothing
 * if host_ranks is 0.
 *
 *   is_even   the hosts have equal numbers of ranks
 *
 * Errors: EINVAL, asked for on hosts of different sizes, with groups that are neither whole hosts
 * nor parts of one, or with a group for reshard_after_forward.
 */
KU_STATUS ku_sharding_share(const struct ku_config *c, int host_ranks, bool is_even,
                            struct ku_sharding *s);

/* Whether the ranks of a host share one copy of the state: parallel.host_state, or its older name
 * parallel.share_host_state. */
bool ku_host_state_is_shared(const struct ku_config *c);

/* Which stage an omitted parallel.zero means on several hosts or with parallel.shard, and why. Else
 * adds nothing. */
void ku_sharding_print_default(const struct ku_sharding *s, struct ku_str *out);

/* Why a stage above 0 has no effect: the ranks share one copy. Adds nothing where it has one. */
void ku_sharding_print_effect(const struct ku_sharding *s, struct ku_str *out);

#endif
