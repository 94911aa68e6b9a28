/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Derives missing batch sizes in this order: virtual_shards (default n_ranks), k from accumulation
 * or from global_batch and micro_batch (default 1), micro_batch from global_batch; then
 * global_batch and accumulation from these. A value that does not divide is refused with the
 * nearest valid ones.
 */
#include "config/batch_relation.h"

#include "base/err.h"
#include "base/str.h"

enum { MAX_SAMPLES = 1 << 30 };

bool ku_batch_is_admissible(int64_t v, int64_t n)
{
    if (n == 1)
        return 1;
    if (v % n)
        return 0;
    int64_t each = v / n;
    return (each & (each - 1)) == 0;
}

/* Refuses a value that is no multiple of unit, with the nearest multiples. */
static int refuse_multiple(const char *key, int64_t value, int64_t unit, const char *because)
{
    int64_t below = value / unit * unit;
    struct ku_str nearest = {0};
    if (below)
        ku_str_add(&nearest, "%lld, ", (long long)below);
    ku_str_add(&nearest, "%lld", (long long)(below + unit));
    int status =
        KU_ERR(KUMI_EINVAL, "batch: train.%s: %lld is no multiple of %s = %lld; nearest: %s", key,
               (long long)value, because, (long long)unit, ku_str_get(&nearest));
    ku_str_fini(&nearest);
    return status;
}

static int refuse_ranks(const struct ku_batch *b)
{
    const int64_t v = b->virtual_shards, n = b->n_ranks;
    int64_t odd = v, above = n;
    if (b->is_free)
        return refuse_multiple("virtual_shards", v, n, "ranks");
    struct ku_str ranks = {0}, shards = {0};
    while (odd % 2 == 0)
        odd /= 2;
    ku_str_add(&ranks, "1"); /* then V / 2^j, ascending */
    for (int64_t i = odd == 1 ? 2 : odd; i <= v; i *= 2)
        ku_str_add(&ranks, ", %lld", (long long)i);
    while (above < v)
        above *= 2;
    if (above > n) /* n 2^j on both sides of V */
        ku_str_add(&shards, "%lld or ", (long long)(above / 2));
    ku_str_add(&shards, "%lld", (long long)above);
    int status = KU_ERR(KUMI_EINVAL,
                        "batch: train.virtual_shards: %lld on %d ranks; each rank takes a power of "
                        "two of them: use %s ranks, or virtual_shards %s",
                        (long long)v, b->n_ranks, ku_str_get(&ranks), ku_str_get(&shards));
    ku_str_fini(&ranks);
    ku_str_fini(&shards);
    return status;
}

static int refuse_global(const struct ku_batch *b, int64_t unit, const char *because)
{
    if (b->global_batch < unit)
        return KU_ERR(KUMI_EINVAL,
                      "batch: train.global_batch: %lld is less than %s = %lld; give at least %lld, "
                      "or fewer ranks",
                      (long long)b->global_batch, because, (long long)unit, (long long)unit);
    return refuse_multiple("global_batch", b->global_batch, unit, because);
}

static int check_given(const struct ku_batch *b)
{
    const struct {
        const char *name;
        int64_t value;
    } given[] = {{"global_batch", b->global_batch},
                 {"micro_batch", b->micro_batch},
                 {"accumulation", b->accumulation},
                 {"virtual_shards", b->virtual_shards}};
    if (b->n_ranks < 1)
        return KU_ERR(KUMI_EINVAL, "batch: ranks: %d; at least 1", b->n_ranks);
    for (int i = 0; i < 4; i++)
        if (given[i].value < 0 || given[i].value > MAX_SAMPLES)
            return KU_ERR(KUMI_EINVAL, "batch: train.%s: %lld; from 1 to 2^30", given[i].name,
                          (long long)given[i].value);
    if (!b->global_batch && !b->micro_batch && !b->is_in_tokens)
        return KU_ERR(KUMI_EINVAL,
                      "batch: neither train.global_batch nor train.micro_batch is given; give one");
    return KUMI_OK;
}

int ku_batch_resolve(struct ku_batch *out)
{
    struct ku_batch b = *out;
    KU_TRY(check_given(&b));
    if (b.virtual_shards == 0)
        b.virtual_shards = b.n_ranks;
    if (b.global_batch == 0 && b.micro_batch == 0)
        b.micro_batch = 1;
    if (b.is_free ? b.virtual_shards % b.n_ranks != 0
                  : !ku_batch_is_admissible(b.virtual_shards, b.n_ranks))
        return refuse_ranks(&b);
    int64_t v = b.virtual_shards, each = v / b.n_ranks;
    b.k = 0;
    if (b.accumulation) {
        if (b.accumulation % each)
            return refuse_multiple("accumulation", b.accumulation, each, "virtual_shards / ranks");
        b.k = b.accumulation / each;
    }
    if (b.global_batch && b.micro_batch) {
        if (b.global_batch % (v * b.micro_batch))
            return refuse_global(&b, v * b.micro_batch, "virtual_shards x micro_batch");
        int64_t k = b.global_batch / (v * b.micro_batch);
        if (b.k && b.k != k)
            return KU_ERR(KUMI_EINVAL,
                          "batch: train.accumulation: %lld contradicts global_batch %lld = %d "
                          "ranks x micro_batch %lld x "
                          "accumulation; it would be %lld",
                          (long long)b.accumulation, (long long)b.global_batch, b.n_ranks,
                          (long long)b.micro_batch, (long long)(k * each));
        b.k = k;
    }
    if (b.k == 0)
        b.k = 1;
    if (b.micro_batch == 0) {
        if (b.global_batch % (v * b.k))
            return refuse_global(&b, v * b.k, b.k == 1 ? "virtual_shards" : "virtual_shards x k");
        b.micro_batch = b.global_batch / (v * b.k);
    }
    if (v * b.micro_batch > MAX_SAMPLES / b.k)
        return KU_ERR(
            KUMI_EINVAL,
            "batch: virtual_shards %lld x micro_batch %lld x k %lld exceeds 2^30 samples; "
            "give smaller values",
            (long long)v, (long long)b.micro_batch, (long long)b.k);
    b.global_batch = v * b.micro_batch * b.k;
    b.accumulation = b.k * each;
    if (b.is_free) {
        b.virtual_shards = b.n_ranks;
        b.k = b.accumulation;
    }
    *out = b;
    return KUMI_OK;
}
