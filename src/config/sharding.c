/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resolves the stage from zero, strategy, shard or the number of hosts, then replicate and shard
 * from each other and the number of ranks. A refusal lists all admissible splits.
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

static int refuse_strategy(const struct ku_config *c, const char *wanted)
{
    return ku_config_refuse(c, "parallel.strategy", ku_json_at(c->root, "parallel.strategy"),
                            wanted);
}

/* Whether n ranks can form groups of `shard`: all ranks, or a power of two, so that the canonical
 * sums pair the same neighbours (docs/internals/numerics.md). */
static bool is_admissible(int64_t shard, int n)
{
    return shard >= 1 && n % shard == 0 && (shard == n || (shard & (shard - 1)) == 0);
}

/* "pp 2 x tp 4", or the one of them that is above 1; "" without model parallelism. */
static const char *print_divisors(const struct ku_config *c, char text[32])
{
    const int pp = (int)c->parallel_pp, tp = (int)c->parallel_tp;
    text[0] = '\0';
    if (pp > 1 && tp > 1)
        snprintf(text, 32, "pp %d x tp %d", pp, tp);
    else if (pp > 1 || tp > 1)
        snprintf(text, 32, "%s %d", pp > 1 ? "pp" : "tp", pp > 1 ? pp : tp);
    return text;
}

/* The n ranks that replicate and shard divide: "ranks", or "data-parallel ranks (8 / tp 2)". */
static const char *name_ranks(const struct ku_config *c, int n, char text[80])
{
    const int pp = (int)c->parallel_pp, tp = (int)c->parallel_tp;
    const bool is_product = pp > 1 && tp > 1;
    char divisors[32];
    if (pp == 1 && tp == 1)
        return "ranks";
    snprintf(text, 80, "data-parallel ranks (%d / %s%s%s)", n * pp * tp, is_product ? "(" : "",
             print_divisors(c, divisors), is_product ? ")" : "");
    return text;
}

static int refuse_product(const struct ku_config *c, const char *key, int64_t value, int n)
{
    struct ku_str wanted = {0};
    int is_first = 1;
    char ranks[80];
    ku_str_add(&wanted,
               "replicate x shard must be %d, the number of %s, and shard a power of two or all: ",
               n, name_ranks(c, n, ranks));
    for (int shard = 1; shard <= n; shard++)
        if (is_admissible(shard, n)) {
            ku_str_add(&wanted, "%s%d x %d", is_first ? "" : ", ", n / shard, shard);
            is_first = 0;
        }
    int status = ku_config_refuse_int(c, key, value, ku_str_get(&wanted));
    ku_str_fini(&wanted);
    return status;
}

/*
 * The stage without parallel.zero and strategy for n data-parallel ranks: 1 on several hosts. There
 * it stores the optimizer state once in the job, and sends at most as many bytes as stage 0: of a
 * parameter in bf16 2 instead of 4 to hand out the result. 0 where nothing can be partitioned.
 */
static int default_stage(const struct ku_config *c, int n, int host_ranks, const char **why)
{
    *why = NULL;
    if (host_ranks == 0 || c->ps_workers > 0) /* servers divide the state among them */
        return 0;
    *why = "one rank stores each part of the model";
    if (n <= 1)
        return 0;
    *why = "parallel.replicate and parallel.shard leave no state to partition";
    if (c->parallel_replicate == n || c->parallel_shard == 1)
        return 0;
    *why = "stages 1 and 2 do not support memory.offload.params";
    if (c->memory_offload.params)
        return 0;
    *why = "the default on several hosts: one copy of the optimizer state in the job; "
           "parallel.zero=0 stores a copy on each host";
    return 1;
}

/* Whether shard alone asks for a stage, as FSDP's mesh does: zero and strategy are omitted. */
static bool is_stage_of_shard(const struct ku_config *c)
{
    return c->parallel_zero == KU_NULL && c->parallel_strategy == NULL && c->ps_workers <= 0 &&
           c->parallel_shard != KU_NULL && c->parallel_shard > 1;
}

/*
 * With parallel.shard alone it is stage 3, FSDP's default; with stages of a pipeline each unit is
 * then gathered once a step, as torchtitan's default is, and not twice for each micro-batch.
 */
static bool is_reshard_omitted(const struct ku_config *c)
{
    const json_t *given = ku_json_at(c->root, "parallel.reshard_after_forward");
    return (given == NULL || json_is_null(given)) && c->parallel_pp > 1 && is_stage_of_shard(c);
}

static const char *why_of_shard(const struct ku_config *c)
{
    return is_reshard_omitted(c)
               ? "the default with parallel.shard, as FSDP's FULL_SHARD; with parallel.pp and "
                 "parallel.reshard_after_forward omitted, units are gathered once a step and stay"
               : "the default with parallel.shard, as FSDP's FULL_SHARD";
}

/* The stage, why if it is a default to name, and whether the strategy is hybrid. */
static int read_stage(const struct ku_config *c, int n, int host_ranks, int *zero, const char **why,
                      int *is_hybrid)
{
    int given = c->parallel_zero != KU_NULL;
    *why = NULL;
    *zero = given                  ? (int)c->parallel_zero
            : is_stage_of_shard(c) ? 3
            : c->parallel_strategy ? 0
                                   : default_stage(c, n, host_ranks, why);
    if (is_stage_of_shard(c))
        *why = why_of_shard(c);
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

/* Fewer copies than ranks, and no stage that partitions them. */
static int refuse_replicas(const struct ku_config *c, int n)
{
    const int64_t copies = c->parallel_replicate;
    const bool is_omitted = c->parallel_zero == KU_NULL && c->parallel_strategy == NULL;
    char ranks[80], wanted[224], hint[80] = "";
    if (is_omitted && c->parallel_shard == KU_NULL && n % copies == 0)
        snprintf(hint, sizeof hint, "; parallel.shard %lld partitions each of %lld copies",
                 (long long)(n / copies), (long long)copies);
    snprintf(wanted, sizeof wanted, "with parallel.zero 0 all %d %s are replicas%s", n,
             name_ranks(c, n, ranks), hint);
    return ku_config_refuse_int(c, "parallel.replicate", copies, wanted);
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
    int status =
        ku_config_refuse_int(c, "parallel.reshard_after_forward", value, ku_str_get(&wanted));
    ku_str_fini(&wanted);
    return status;
}

/* The alias, unless it is absent or null. */
static const json_t *share_host_state_of(const struct ku_config *c)
{
    const json_t *v = ku_json_at(c->root, "parallel.share_host_state");
    return json_is_boolean(v) ? v : NULL;
}

bool ku_host_state_is_shared(const struct ku_config *c)
{
    const json_t *alias = share_host_state_of(c);
    if (alias && strcmp(c->parallel_host_state, "auto") == 0)
        return json_is_true(alias);
    return strcmp(c->parallel_host_state, "private") != 0;
}

static int check_host_state(const struct ku_config *c)
{
    const json_t *alias = share_host_state_of(c);
    char wanted[96];
    if (alias == NULL || json_is_true(alias) == ku_host_state_is_shared(c))
        return KUMI_OK;
    snprintf(wanted, sizeof wanted, "parallel.host_state is \"%s\"; give one of them",
             c->parallel_host_state);
    return ku_config_refuse(c, "parallel.share_host_state", alias, wanted);
}

void ku_sharding_print_default(const struct ku_sharding *s, struct ku_str *out)
{
    if (s->default_why)
        ku_str_add(out, "parallel.zero %d: %s", s->zero, s->default_why);
}

void ku_sharding_print_effect(const struct ku_sharding *s, struct ku_str *out)
{
    if (s->zero > 0 && s->local > 1 && s->shard == 1)
        ku_str_add(out,
                   "parallel.zero %d saves nothing on %s host: its %d ranks share one copy of the "
                   "state, and each updates its part in place; parallel.host_state=private gives "
                   "each rank memory of its own",
                   s->zero, s->replicate > 1 ? "a" : "one", s->local);
}

int ku_sharding_share(const struct ku_config *c, int host_ranks, bool is_even,
                      struct ku_sharding *s)
{
    const json_t *alias = share_host_state_of(c);
    const int is_alias = alias && strcmp(c->parallel_host_state, "auto") == 0;
    const int is_asked =
        is_alias ? json_is_true(alias) : strcmp(c->parallel_host_state, "shared") == 0;
    const char *key = is_alias ? "parallel.share_host_state" : "parallel.host_state";
    const char *no = is_alias ? "false" : "private";
    char wanted[160] = "";
    const bool is_auto = alias == NULL && strcmp(c->parallel_host_state, "auto") == 0;
    if (host_ranks == 0) /* the ranks of one host share already */
        return KUMI_OK;
    if (host_ranks == 1 && is_even && s->zero > 0) /* a host's copy has one reader */
        return KUMI_OK;
    if (s->tp > 1 || s->pp > 1) /* check_tp and check_pp have refused `shared` */
        return KUMI_OK;
    /* a group of parts of a host would have nothing to divide; a retained group is per rank */
    const bool is_retained = s->reshard > 1 && s->reshard < s->shard;
    const bool is_best =
        s->zero == 0 || (s->shard > host_ranks && s->shard % host_ranks == 0 && !is_retained);
    if (!is_asked && !(is_auto && is_even && is_best))
        return KUMI_OK;
    if (!is_even)
        snprintf(wanted, sizeof wanted,
                 "not supported on hosts with different numbers of ranks; give %s", no);
    else if (s->shard > 1 && s->shard % host_ranks && host_ranks % s->shard)
        snprintf(wanted, sizeof wanted,
                 "groups of %d ranks are neither whole hosts of %d nor parts of one; give %s, or "
                 "parallel.shard %d, all ranks",
                 s->shard, host_ranks, no, s->shard * s->replicate);
    else if (is_retained)
        snprintf(wanted, sizeof wanted,
                 "not supported with parallel.reshard_after_forward %d; give %s, or "
                 "parallel.reshard_after_forward true or false",
                 s->reshard, no);
    if (wanted[0])
        return ku_config_refuse(c, key, ku_json_at(c->root, key), wanted);
    const bool is_kept = s->reshard == 1;
    if (s->shard > host_ranks) {
        s->shard /= host_ranks;
    } else { /* a host has a copy, which its ranks share */
        s->replicate = s->replicate * s->shard / host_ranks;
        s->shard = 1;
    }
    s->reshard = is_kept ? 1 : s->shard;
    s->local = host_ranks;
    return KUMI_OK;
}

/* Whether so many ranks add up slices by the neighbour tree: one has them all, or each a power of
 * two of them, a node of the tree. */
static bool has_nodes(int64_t slices, int64_t tp)
{
    const int64_t each = slices / tp;
    return tp == 1 || (slices % tp == 0 && (each & (each - 1)) == 0);
}

static int refuse_tp(const struct ku_config *c, int64_t slices)
{
    struct ku_str wanted = {0};
    ku_str_add(&wanted, "must be 1, or parallel.tp_exact, %lld, divided by a power of two: use 1",
               (long long)slices);
    for (int64_t tp = 2; tp <= slices; tp++)
        if (has_nodes(slices, tp))
            ku_str_add(&wanted, "%s%lld", tp == slices ? " or " : ", ", (long long)tp);
    const int status = ku_config_refuse_int(c, "parallel.tp", c->parallel_tp, ku_str_get(&wanted));
    ku_str_fini(&wanted);
    return status;
}

/* Equal bits for every tp: the slices, and what cannot have them. */
static int check_tp_exact(const struct ku_config *c)
{
    const int64_t slices = c->parallel_tp_exact;
    if (slices == KU_NULL)
        return KUMI_OK;
    if (!has_nodes(slices, c->parallel_tp))
        return refuse_tp(c, slices);
    if (c->parallel_sp && strcmp(c->precision_grads, "f32") != 0)
        return ku_config_refuse(c, "precision.grads", ku_json_at(c->root, "precision.grads"),
                                "rounds gradients of parts of the sequence; use f32, or "
                                "parallel.sp false with parallel.tp_exact");
    if (strcmp(c->precision_tp_reduce, "f32") != 0)
        return ku_config_refuse(c, "precision.tp_reduce",
                                ku_json_at(c->root, "precision.tp_reduce"),
                                "rounds once per rank, so bits depend on parallel.tp; use f32 with "
                                "parallel.tp_exact");
    return KUMI_OK;
}

/* pp x tp must divide the n ranks; a refusal names the numbers of ranks next to n. */
static int check_n_ranks(const struct ku_config *c, int n)
{
    const int pp = (int)c->parallel_pp, tp = (int)c->parallel_tp, each = pp * tp;
    const int below = n / each * each;
    char divisors[32], product[64] = "", starts[48], wanted[192];
    if (n % each == 0)
        return KUMI_OK;
    if (pp > 1 && tp > 1)
        snprintf(product, sizeof product, "%s = %d ", print_divisors(c, divisors), each);
    if (below)
        snprintf(starts, sizeof starts, "%d or %d", below, below + each);
    else
        snprintf(starts, sizeof starts, "%d", each);
    snprintf(wanted, sizeof wanted, "%smust divide the number of ranks, %d; start %s", product, n,
             starts);
    return pp > 1 ? ku_config_refuse_int(c, "parallel.pp", pp, wanted)
                  : ku_config_refuse_int(c, "parallel.tp", tp, wanted);
}

/* With tp or pp each rank stores parts of its own. */
static int check_is_private(const struct ku_config *c)
{
    const bool is_pp = c->parallel_pp > 1;
    if ((!is_pp && c->parallel_tp == 1) || strcmp(c->parallel_host_state, "shared") != 0)
        return KUMI_OK;
    return ku_config_refuse(
        c, "parallel.host_state", ku_json_at(c->root, "parallel.host_state"),
        is_pp ? "not supported with parallel.pp above 1, where ranks store the parameters of "
                "their own stages; use auto or private"
              : "not supported with parallel.tp above 1, where each rank stores slices of its "
                "own; use auto or private");
}

int ku_sharding_resolve(const struct ku_config *c, int n_ranks, int host_ranks,
                        struct ku_sharding *out)
{
    int64_t replicate = c->parallel_replicate, shard = c->parallel_shard;
    const int tp = (int)c->parallel_tp, pp = (int)c->parallel_pp, n = n_ranks / (tp * pp);
    int zero, is_hybrid;
    const char *why;
    KU_TRY(check_host_state(c));
    KU_TRY(read_stage(c, n, host_ranks, &zero, &why, &is_hybrid));
    KU_TRY(check_tp_exact(c));
    KU_TRY(check_n_ranks(c, n_ranks));
    KU_TRY(check_is_private(c));
    if (zero == 0 && shard != KU_NULL && shard != 1)
        return ku_config_refuse_int(c, "parallel.shard", shard,
                                    "parallel.zero 0 has no shards: omit parallel.zero and "
                                    "parallel.strategy for stage 3, or "
                                    "set parallel.zero to 1, 2 or 3");
    if (is_hybrid && replicate == KU_NULL && shard == KU_NULL)
        return refuse_strategy(c,
                               "needs parallel.shard (ranks that share one copy of the state) or "
                               "parallel.replicate (copies)");
    if (c->parallel_strategy && zero > 0 && !is_hybrid && replicate != KU_NULL && replicate != 1)
        return refuse_strategy(
            c, "has no replicas: give HYBRID_SHARD or _HYBRID_SHARD_ZERO2 with parallel.replicate");
    if (zero == 0 && replicate != KU_NULL && replicate != n)
        return refuse_replicas(c, n);
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
    int64_t reshard = is_reshard_omitted(c) ? KU_RESHARD_NONE : c->parallel_reshard_after_forward;
    if (reshard == KU_RESHARD_ALL || zero < 3)
        reshard = shard;
    if (shard % reshard != 0)
        return refuse_reshard(c, reshard, shard);
    *out = (struct ku_sharding){zero, (int)replicate, (int)shard, 1, tp, (int)reshard, pp, why};
    if (tp == 1 && pp == 1 && !(host_ranks && host_ranks < n) && ku_host_state_is_shared(c))
        *out = (struct ku_sharding){zero, 1, 1, n, 1, 1, 1, why};
    return KUMI_OK;
}
