/* SPDX-License-Identifier: Apache-2.0 */
#include "train/batch.h"

#include "base/err.h"
#include "base/str.h"

enum { MOST = 1 << 30 };

int ku_batch_is_admissible(int64_t v, int64_t n)
{
    if (n == 1)
        return 1;
    if (v % n)
        return 0;
    int64_t each = v / n;
    return (each & (each - 1)) == 0;
}

static int refuse_ranks(const struct ku_batch *b)
{
    struct ku_str list = {0};
    for (int64_t n = 1, found = 0; n <= b->virtual_shards && found < 12; n++)
        if (ku_batch_is_admissible(b->virtual_shards, n))
            ku_str_add(&list, "%s%lld", found++ ? ", " : "", (long long)n);
    int status = KU_ERR(KUMI_EINVAL,
                        "batch: train.virtual_shards: %lld with %d ranks; ranks must divide it "
                        "into a power of two: "
                        "use %s ranks, or a multiple of %d as virtual_shards",
                        (long long)b->virtual_shards, b->n_ranks, ku_str_get(&list), b->n_ranks);
    ku_str_fini(&list);
    return status;
}

/* global must be a multiple of unit: names the two nearest multiples. */
static int refuse_global(const struct ku_batch *b, int64_t unit, const char *because)
{
    int64_t below = b->global_batch / unit * unit, above = below + unit;
    if (b->global_batch < unit)
        return KU_ERR(KUMI_EINVAL,
                      "batch: train.global_batch: %lld is less than %s = %lld; give at least %lld, "
                      "or fewer ranks",
                      (long long)b->global_batch, because, (long long)unit, (long long)unit);
    return KU_ERR(
        KUMI_EINVAL,
        "batch: train.global_batch: %lld is no multiple of %s = %lld; nearest: %lld, %lld",
        (long long)b->global_batch, because, (long long)unit, (long long)below, (long long)above);
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
        if (given[i].value < 0 || given[i].value > MOST)
            return KU_ERR(KUMI_EINVAL, "batch: train.%s: %lld; from 1 to 2^30", given[i].name,
                          (long long)given[i].value);
    if (!b->global_batch && !b->micro_batch)
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
    if (!ku_batch_is_admissible(b.virtual_shards, b.n_ranks))
        return refuse_ranks(&b);
    int64_t v = b.virtual_shards, each = v / b.n_ranks;
    b.k = 0;
    if (b.accumulation) {
        if (b.accumulation % each)
            return KU_ERR(KUMI_EINVAL,
                          "batch: train.accumulation: %lld is no multiple of virtual_shards / "
                          "ranks = %lld; nearest: %lld",
                          (long long)b.accumulation, (long long)each,
                          (long long)((b.accumulation / each + 1) * each));
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
        if (b.micro_batch == 0)
            return refuse_global(&b, v * b.k, "virtual_shards");
    }
    b.global_batch = v * b.micro_batch * b.k;
    b.accumulation = b.k * each;
    *out = b;
    return KUMI_OK;
}
