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

void ku_exchange_slice(const struct ku_exchange_slices *s, int d, int64_t *begin, int64_t *end)
{
    ku_blocks_range(s->count, s->line_count, s->first, s->exchange->topology->n,
                    ku_exchange_place(s->exchange, d), begin, end);
}
