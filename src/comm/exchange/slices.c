/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a vector that belong to sets of destinations.
 *
 * Slices lie by local index, then by host: even hosts in the order of the set of all hosts, uneven
 * ones from the largest to the smallest. The slices of one stage's set are then contiguous:
 *
 *     4 hosts = 2 x 2, L = 2      l = 0                l = 1
 *     slice of host               0    2    1    3     0    2    1    3
 *     stage 0 sends to host 1     .    .    1    3
 *     stage 1, of host 1, to 3                   3
 */
#include "comm/exchange.h"

#include "base/err.h"
#include "tensor/blocks.h"

int ku_exchange_place(const struct ku_exchange *x, int d)
{
    const struct ku_topology *t = x->topology;
    int host, local, place = 0;
    ku_topology_find(t, d, &host, &local);
    if (!t->per_host)
        return t->lower_n[local] + t->size_order[host];
    for (int s = 0; s < x->n_stages; s++)
        place = place * x->stage[s].radix + host / x->stage[s].stride % x->stage[s].radix;
    return local * t->n_hosts + place;
}

void ku_exchange_slice(const void *ctx, int d, int64_t *begin, int64_t *end)
{
    const struct ku_exchange_slices *s = ctx;
    ku_blocks_range(s->count, s->line_count, s->first, s->exchange->topology->n,
                    ku_exchange_place(s->exchange, d), begin, end);
}

int64_t ku_exchange_next(const struct ku_exchange *x, const struct ku_exchange_set *set,
                         ku_exchange_range *range, const void *ctx, int64_t max,
                         struct ku_exchange_cursor *at, int64_t *begin)
{
    int64_t count = 0, first, end;
    KU_ASSERT(max >= 0);
    for (; count < max && at->i < set->n; at->i++, at->at = 0) {
        range(ctx, ku_exchange_dest(x, set, at->i), &first, &end);
        first += at->at;
        KU_ASSERT(first <= end);
        if (first == end)
            continue;
        if (count && first != *begin + count)
            break;
        if (!count)
            *begin = first;
        int64_t more = end - first < max - count ? end - first : max - count;
        count += more;
        at->at += more;
        if (more < end - first)
            break;
    }
    return count;
}

int64_t ku_exchange_count(const struct ku_exchange *x, const struct ku_exchange_set *set,
                          ku_exchange_range *range, const void *ctx)
{
    int64_t count = 0, begin, end;
    for (int i = 0; i < set->n; i++) {
        range(ctx, ku_exchange_dest(x, set, i), &begin, &end);
        count += end - begin;
    }
    return count;
}

int64_t ku_exchange_sent(const struct ku_exchange *x, enum ku_half half, ku_exchange_range *range,
                         const void *ctx)
{
    struct ku_exchange_peer peer;
    int64_t count = 0;
    for (int s = 0; s < x->n_stages; s++) {
        for (int i = 0; i < ku_exchange_n_sends(x, half, s); i++) {
            ku_exchange_send(x, half, s, i, &peer);
            count += peer.n_nodes * ku_exchange_count(x, &peer.set, range, ctx);
        }
    }
    return count;
}
