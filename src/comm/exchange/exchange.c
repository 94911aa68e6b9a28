/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peers and destinations of each stage.
 *
 * Even hosts: the number of a host is read in the mixed radix of the stages, lowest digit first. A
 * set of stage s is the hosts that agree in digits 0 to s; the digits above count its members, the
 * next one slowest:
 *
 *     H = 12 = 2 x 2 x 3, set of stage 0, host 1:   hosts 1 5 9 3 7 11     digits 1 and 2: 00 01 02
 *                                                                                          10 11 12
 *
 * So the set of a later stage is a contiguous part of it, and when slices lie in the order of the
 * set of all hosts, those of every set do.
 *
 * Uneven hosts: a set is one destination. The hosts are taken in rotation, those after this one for
 * what goes to destinations, those before it for what comes from helpers.
 */
#include "comm/exchange.h"

#include "base/err.h"
#include "comm/exchange/private.h"

static int digit_of(const struct ku_exchange *x, int stage, int host)
{
    return host / x->stage[stage].stride % x->stage[stage].radix;
}

/* The part of the vector that this member keeps of stage `stage` */
void ku_exchange_keep(const struct ku_exchange *x, int stage, struct ku_exchange_set *set)
{
    const struct ku_topology *t = x->topology;
    KU_ASSERT(stage >= 0 && stage < x->n_stages);
    *set = (struct ku_exchange_set){.n = 1, .host = t->host, .local = t->local, .stage = stage};
    if (t->per_host)
        set->n = t->n_hosts / (x->stage[stage].stride * x->stage[stage].radix);
}

bool ku_topology_is_mutual(const struct ku_topology *t)
{
    return t->n_hosts == 2 && t->per_host && (t->per_host & (t->per_host - 1)) == 0;
}

void ku_exchange_all(const struct ku_exchange *x, struct ku_exchange_set *set)
{
    const struct ku_topology *t = x->topology;
    KU_ASSERT(t->per_host);
    *set =
        (struct ku_exchange_set){.n = t->n_hosts, .host = t->host, .local = t->local, .stage = -1};
}

static int n_nodes_of(const struct ku_exchange *x, int stage, int host)
{
    return x->max_nodes == 1 ? 1 : ku_exchange_nodes(x, stage, host, NULL, 0);
}

static int n_outward(const struct ku_exchange *x, int stage)
{
    KU_ASSERT(stage >= 0 && stage < x->n_stages);
    return x->topology->per_host ? x->stage[stage].radix - 1
                                 : x->sends_before[x->topology->n_hosts - 1];
}

static int n_inward(const struct ku_exchange *x, int stage)
{
    KU_ASSERT(stage >= 0 && stage < x->n_stages);
    return x->stage[stage].radix - 1;
}

/* The i-th peer nearer to destinations: it gets their nodes, and returns their sums. */
static void outward(const struct ku_exchange *x, int stage, int i, struct ku_exchange_peer *p)
{
    const struct ku_topology *t = x->topology;
    KU_ASSERT(i >= 0 && i < n_outward(x, stage));
    if (t->per_host) {
        int radix = x->stage[stage].radix, digit = digit_of(x, stage, t->host);
        p->host = t->host + ((digit + 1 + i) % radix - digit) * x->stage[stage].stride;
        p->local = t->local;
    } else {
        int low = 1, high = t->n_hosts - 1;
        while (low < high) { /* the first host with more than i sends up to it */
            int mid = low + (high - low) / 2;
            if (x->sends_before[mid] > i)
                high = mid;
            else
                low = mid + 1;
        }
        p->host = (t->host + low) % t->n_hosts;
        p->local = t->local + (i - x->sends_before[low - 1]) * ku_topology_local_n(t, t->host);
    }
    p->member = ku_topology_member(t, p->host, p->local);
    ku_exchange_keep(x, stage, &p->set);
    p->set.host = p->host;
    p->set.local = p->local;
}

/* The i-th peer that sends nodes for the destinations kept here, and gets their sums. */
static void inward(const struct ku_exchange *x, int stage, int i, struct ku_exchange_peer *p)
{
    const struct ku_topology *t = x->topology;
    KU_ASSERT(i >= 0 && i < n_inward(x, stage));
    int radix = x->stage[stage].radix, digit = digit_of(x, stage, t->host);
    p->host = t->host + ((digit - 1 - i + radix) % radix - digit) * x->stage[stage].stride;
    p->local = ku_topology_helper(t, p->host, t->host, t->local);
    p->member = ku_topology_member(t, p->host, p->local);
    ku_exchange_keep(x, stage, &p->set);
}

int ku_exchange_n_sends(const struct ku_exchange *x, enum ku_half half, int stage)
{
    return half == KU_HALF_REDUCE ? n_outward(x, stage) : n_inward(x, stage);
}

int ku_exchange_n_recvs(const struct ku_exchange *x, enum ku_half half, int stage)
{
    return half == KU_HALF_REDUCE ? n_inward(x, stage) : n_outward(x, stage);
}

void ku_exchange_send(const struct ku_exchange *x, enum ku_half half, int stage, int i,
                      struct ku_exchange_peer *peer)
{
    peer->n_nodes = 1;
    if (half == KU_HALF_GATHER) {
        inward(x, stage, i, peer);
        return;
    }
    outward(x, stage, i, peer);
    peer->n_nodes = n_nodes_of(x, stage, x->topology->host);
}

void ku_exchange_recv(const struct ku_exchange *x, enum ku_half half, int stage, int i,
                      struct ku_exchange_peer *peer)
{
    peer->n_nodes = 1;
    if (half == KU_HALF_GATHER) {
        outward(x, stage, i, peer);
        return;
    }
    inward(x, stage, i, peer);
    peer->n_nodes = n_nodes_of(x, stage, peer->host);
}

int ku_exchange_dest(const struct ku_exchange *x, const struct ku_exchange_set *set, int i)
{
    const struct ku_topology *t = x->topology;
    KU_ASSERT(i >= 0 && i < set->n);
    int host = set->host, n = set->n;
    if (t->per_host) {
        host %= set->stage < 0 ? 1 : x->stage[set->stage].stride * x->stage[set->stage].radix;
        for (int s = set->stage + 1; s < x->n_stages; s++) {
            n /= x->stage[s].radix;
            host += i / n * x->stage[s].stride;
            i %= n;
        }
    }
    return ku_topology_member(t, host, set->local);
}

int ku_exchange_nodes(const struct ku_exchange *x, int stage, int host, struct ku_tree_node *node,
                      int cap)
{
    const struct ku_topology *t = x->topology;
    KU_ASSERT(stage >= 0 && stage <= x->n_stages);
    int stride = stage == x->n_stages ? t->n_hosts : x->stage[stage].stride;
    int begin = host / stride * stride;
    return ku_topology_cover(t, begin, begin + stride, node, cap);
}

/* The copies of this member's host, one leaf each */
static int own_leaves(const struct ku_topology *t, struct ku_exchange_source *source, int cap)
{
    int n = ku_topology_local_n(t, t->host);
    KU_ASSERT(n <= cap);
    for (int l = 0; l < n; l++)
        source[l] = (struct ku_exchange_source){
            .node = {ku_topology_member(t, t->host, l), 1}, .from = KU_FROM_SELF, .index = l};
    return n;
}

int ku_exchange_sources(const struct ku_exchange *x, int stage, struct ku_exchange_source *source,
                        int cap)
{
    const struct ku_topology *t = x->topology;
    KU_ASSERT(stage >= 0 && stage < x->n_stages);
    int radix = x->stage[stage].radix, stride = x->stage[stage].stride;
    int digit = digit_of(x, stage, t->host), n = 0;
    int group = t->host / (stride * radix) * (stride * radix); /* nodes of whole blocks */
    for (int j = 0; j < radix; j++) {
        int begin = group + j * stride;
        int from = j == digit ? KU_FROM_SELF : (digit - 1 - j + radix) % radix;
        if (j == digit && stage == 0)
            n += own_leaves(t, source + n, cap - n);
        else
            n += ku_cover_sources(t, begin, begin + stride, from, source + n, cap - n);
    }
    ku_cover_sort(t, source, n);
    KU_ASSERT(n <= x->max_sources);
    return n;
}
