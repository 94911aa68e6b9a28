/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resolves the stage from zero or strategy, then replicate and shard from each other and the number
 * of ranks. A refusal lists all admissible splits.
 */
#include "config/sharding.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"

/* FSDP's sharding strategies. */
static const struct {
    const char *name;
    int zero, is_hybrid;
} strategy_row[] = {{"NO_SHARD", 0, 0},
                    {"SHARD_GRAD_OP", 2, 0},
                    {"FULL_SHARD", 3, 0},
                    {"HYBRID_SHARD", 3, 1},
                    {"_HYBRID_SHARD_ZERO2", 2, 1}};
enum { N_STRATEGIES = sizeof strategy_row / sizeof strategy_row[0] };

static int refuse_number(const struct ku_config *c, const char *key, int64_t value,
                         const char *wanted)
{
    json_t *v = json_integer(value);
    int status = ku_config_refuse(c, key, v, wanted);
    json_decref(v);
    return status;
}

static int refuse_strategy(const struct ku_config *c, const char *wanted)
{
    json_t *v = json_string(c->parallel_strategy);
    int status = ku_config_refuse(c, "parallel.strategy", v, wanted);
    json_decref(v);
    return status;
}

/* Whether n ranks can form groups of `shard`: all ranks, or a power of two, so that the canonical
 * sums pair the same neighbours (docs/internals/numerics.md). */
static bool is_admissible(int64_t shard, int n)
{
    return shard >= 1 && n % shard == 0 && (shard == n || (shard & (shard - 1)) == 0);
}

static int refuse_product(const struct ku_config *c, const char *key, int64_t value, int n)
{
    struct ku_str wanted = {0};
    int is_first = 1;
    ku_str_add(
        &wanted,
        "replicate x shard must be %d, the number of ranks, and shard a power of two or all: ", n);
    for (int shard = 1; shard <= n; shard++)
        if (is_admissible(shard, n)) {
            ku_str_add(&wanted, "%s%d x %d", is_first ? "" : ", ", n / shard, shard);
            is_first = 0;
        }
    int status = refuse_number(c, key, value, ku_str_get(&wanted));
    ku_str_fini(&wanted);
    return status;
}

/* The ZeRO stage, and whether the strategy is hybrid. */
static int read_stage(const struct ku_config *c, int *zero, int *is_hybrid)
{
    int given = c->parallel_zero != KU_NULL;
    *zero = given ? (int)c->parallel_zero : 0;
    *is_hybrid = 0;
    for (int i = 0; c->parallel_strategy && i < N_STRATEGIES; i++) {
        if (strcmp(c->parallel_strategy, strategy_row[i].name) != 0)
            continue;
        char wanted[96];
        snprintf(wanted, sizeof wanted,
                 "means parallel.zero %d, and parallel.zero is %d; give one of them",
                 strategy_row[i].zero, *zero);
        if (given && *zero != strategy_row[i].zero)
            return refuse_strategy(c, wanted);
        *zero = strategy_row[i].zero;
        *is_hybrid = strategy_row[i].is_hybrid;
    }
    return KUMI_OK;
}

static int refuse_reshard(const struct ku_config *c, int64_t value, int64_t shard)
{
    struct ku_str wanted = {0};
    ku_str_add(&wanted, "true, false, or a divisor of the %lld shards: ", (long long)shard);
    for (int64_t n = 1, is_first = 1; n <= shard; n++)
        if (shard % n == 0) {
            ku_str_add(&wanted, "%s%lld", is_first ? "" : ", ", (long long)n);
            is_first = 0;
        }
    int status = refuse_number(c, "parallel.reshard_after_forward", value, ku_str_get(&wanted));
    ku_str_fini(&wanted);
    return status;
}

int ku_sharding_resolve(const struct ku_config *c, int n, struct ku_sharding *out)
{
    int64_t replicate = c->parallel_replicate, shard = c->parallel_shard;
    int zero, is_hybrid;
    KU_TRY(read_stage(c, &zero, &is_hybrid));
    if (zero == 0 && shard != KU_NULL && shard != 1)
        return refuse_number(c, "parallel.shard", shard,
                             "parallel.zero 0 has no shards: set parallel.zero to 1, 2 or 3");
    if (is_hybrid && replicate == KU_NULL && shard == KU_NULL)
        return refuse_strategy(c,
                               "needs parallel.shard (ranks that share one copy of the state) or "
                               "parallel.replicate (copies)");
    if (c->parallel_strategy && zero > 0 && !is_hybrid && replicate != KU_NULL && replicate != 1)
        return refuse_strategy(
            c, "has no replicas: give HYBRID_SHARD or _HYBRID_SHARD_ZERO2 with parallel.replicate");
    char all[96];
    snprintf(all, sizeof all, "with parallel.zero 0 all %d ranks are replicas", n);
    if (zero == 0 && replicate != KU_NULL && replicate != n)
        return refuse_number(c, "parallel.replicate", replicate, all);
    if (zero == 0)
        shard = 1;
    else if (shard == KU_NULL && n % (replicate == KU_NULL ? 1 : replicate) == 0)
        shard = n / (replicate == KU_NULL ? 1 : replicate);
    const char *key = replicate == KU_NULL ? "parallel.shard" : "parallel.replicate";
    int64_t asked = replicate == KU_NULL ? shard : replicate;
    if (shard == KU_NULL || n % shard != 0)
        return refuse_product(c, key, asked, n);
    if (replicate == KU_NULL)
        replicate = n / shard;
    if (replicate * shard != n)
        return refuse_product(c, key, asked, n);
    if (!is_admissible(shard, n))
        return refuse_product(c, "parallel.shard", shard, n);
    int64_t reshard = c->parallel_reshard_after_forward;
    if (reshard == KU_RESHARD_ALL || zero < 3)
        reshard = shard;
    if (shard % reshard != 0)
        return refuse_reshard(c, reshard, shard);
    *out = (struct ku_sharding){zero, (int)replicate, (int)shard, (int)reshard};
    return KUMI_OK;
}
