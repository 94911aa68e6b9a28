/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small collectives between the hosts' first members: after stage s each of them holds what its
 * block had. Where H is no product of small radices, the blocks of a stage differ by one host: H
 * hosts are spread evenly over the product P of the radices, P > H, and block b of stage s is the
 * hosts in places b * stride to b * stride + stride - 1. Then a host of the smaller of two blocks
 * may serve two hosts of the larger. H = 7 in P = 4 x 2 places:
 *
 *     place     0   1   2   3   4   5   6   7
 *     host      0   1   2   3   4   5   6
 *     stage 0   --------------  --------------
 *     stage 1   ------------------------------      3 receives from 4, which sends to 0 and 3
 */
#include "comm/exchange.h"

#include "base/err.h"
#include "comm/exchange/private.h"

#include <string.h>

/* A member's view of a stage. Blocks of its group are counted from 0. */
struct view {
    int64_t n_hosts, n_places;
    int64_t stride, first_place; /* of the group */
    int first, n_blocks;         /* first host of the group; blocks, none of which is empty */
    int mine;                    /* this host's block */
    int lower, size;             /* its number in the block, and the hosts there */
};

static int64_t places_of(const struct ku_small *small)
{
    int last = small->n_stages - 1;
    return (int64_t)small->stage[last].stride * small->stage[last].radix;
}

/* First host in place `place` or after it */
static int host_at(const struct view *v, int64_t place)
{
    return (int)((place * v->n_hosts + v->n_places - 1) / v->n_places);
}

static int block_begin(const struct view *v, int block)
{
    if (v->stride == 1) /* blocks are hosts; places may be empty */
        return v->first + block;
    return host_at(v, v->first_place + block * v->stride);
}

static int block_size(const struct view *v, int block)
{
    return block_begin(v, block + 1) - block_begin(v, block);
}

static struct view view_of(const struct ku_small *small, int stage, int host)
{
    KU_ASSERT(stage >= 0 && stage < small->n_stages);
    struct view v = {.n_hosts = small->topology->n_hosts, .n_places = places_of(small)};
    int64_t place = host * v.n_places / v.n_hosts;
    int64_t group = (int64_t)small->stage[stage].stride * small->stage[stage].radix;
    v.stride = small->stage[stage].stride;
    v.first_place = place / group * group;
    v.first = host_at(&v, v.first_place);
    v.mine = (int)((place - v.first_place) / v.stride);
    v.n_blocks = small->stage[stage].radix;
    if (v.stride == 1) {
        v.mine = host - v.first;
        v.n_blocks = host_at(&v, v.first_place + group) - v.first;
    }
    v.lower = host - block_begin(&v, v.mine);
    v.size = block_size(&v, v.mine);
    KU_ASSERT(v.lower >= 0 && v.lower < v.size);
    return v;
}

/* Hosts of a block other than this host's to which this host sends: its number modulo its size */
static int n_served(const struct view *v, int block)
{
    int size = block_size(v, block);
    return size > v->lower ? (size - v->lower + v->size - 1) / v->size : 0;
}

int ku_small_n_sends(const struct ku_small *small, int stage)
{
    struct view v = view_of(small, stage, small->topology->host);
    int n = 0;
    for (int k = 1; k < v.n_blocks; k++)
        n += n_served(&v, (v.mine + k) % v.n_blocks);
    return n;
}

int ku_small_n_recvs(const struct ku_small *small, int stage)
{
    return view_of(small, stage, small->topology->host).n_blocks - 1;
}

void ku_small_send(const struct ku_small *small, int stage, int i, struct ku_small_peer *peer)
{
    const struct ku_topology *t = small->topology;
    struct view v = view_of(small, stage, t->host);
    int k = 1;
    KU_ASSERT(i >= 0);
    for (int n; i >= (n = n_served(&v, (v.mine + k) % v.n_blocks)); k++) {
        KU_ASSERT(k < v.n_blocks);
        i -= n;
    }
    peer->host = block_begin(&v, (v.mine + k) % v.n_blocks) + v.lower + i * v.size;
    peer->member = ku_topology_member(t, peer->host, 0);
    peer->host_begin = block_begin(&v, v.mine);
    peer->host_end = peer->host_begin + v.size;
}

void ku_small_recv(const struct ku_small *small, int stage, int i, struct ku_small_peer *peer)
{
    const struct ku_topology *t = small->topology;
    struct view v = view_of(small, stage, t->host);
    KU_ASSERT(i >= 0 && i < v.n_blocks - 1);
    int block = (v.mine - 1 - i + v.n_blocks) % v.n_blocks;
    peer->host_begin = block_begin(&v, block);
    peer->host_end = peer->host_begin + block_size(&v, block);
    peer->host = peer->host_begin + v.lower % (peer->host_end - peer->host_begin);
    peer->member = ku_topology_member(t, peer->host, 0);
}

int ku_small_sources(const struct ku_small *small, int stage, struct ku_exchange_source *source,
                     int cap, struct ku_tree_node *result, int *n_results)
{
    const struct ku_topology *t = small->topology;
    struct view v = view_of(small, stage, t->host);
    int n = 0;
    for (int b = 0; b < v.n_blocks; b++) {
        int from = b == v.mine ? KU_FROM_SELF : (v.mine - 1 - b + v.n_blocks) % v.n_blocks;
        n += ku_cover_sources(t, block_begin(&v, b), block_begin(&v, b + 1), from, source + n,
                              cap - n);
    }
    ku_cover_sort(t, source, n);
    *n_results = ku_topology_cover(t, v.first, block_begin(&v, v.n_blocks), result, cap);
    KU_ASSERT(n <= small->max_sources);
    return n;
}

/* Nodes of each block, and sources of each group, at most */
static void count_nodes(struct ku_small *small, int stage)
{
    const struct ku_topology *t = small->topology;
    int n_nodes = 0, n_sources = 0;
    for (int h = 0; h < t->n_hosts; h++) {
        struct view v = view_of(small, stage, h);
        if (h == v.first)
            n_sources = 0;
        if (v.lower == 0)
            n_nodes = 0;
        if (!t->is_contiguous) /* those of a union are no more than those of its parts */
            n_nodes += ku_topology_cover(t, h, h + 1, NULL, 0);
        else if (v.lower == 0)
            n_nodes = ku_topology_cover(t, h, h + v.size, NULL, 0);
        if (v.lower == v.size - 1)
            n_sources += n_nodes;
        small->max_nodes = n_nodes > small->max_nodes ? n_nodes : small->max_nodes;
        small->max_sources = n_sources > small->max_sources ? n_sources : small->max_sources;
    }
}

/* Stages of powers of two, as even as possible, and what is left. */
static void choose_stages(struct ku_small *small, int n_hosts, int max_radix)
{
    int max_bits = 0, bits = 0, stride = 1;
    while (max_radix >> (max_bits + 1))
        max_bits++;
    while ((n_hosts - 1) >> bits)
        bits++;
    for (int n = (bits + max_bits - 1) / max_bits; n > 0; n--) {
        int each = (bits + n - 1) / n;
        KU_ASSERT(small->n_stages < KU_EXCHANGE_STAGES);
        small->stage[small->n_stages++] = (struct ku_exchange_stage){
            .radix = n > 1 ? 1 << each : (n_hosts + stride - 1) / stride, .stride = stride};
        stride <<= each;
        bits -= each;
    }
}

void ku_small_plan(const struct ku_topology *t, const struct ku_exchange_tuning *tuning,
                   struct ku_small *out)
{
    struct ku_small small = {.topology = t, .max_nodes = 1};
    int max_radix = tuning && tuning->max_radix ? tuning->max_radix : KU_EXCHANGE_RADIX;
    struct ku_exchange exact = {0};
    KU_ASSERT(max_radix >= 2 && t->n_hosts > 0);
    if (t->n_hosts > 1)
        ku_stages_choose(&exact, t->n_hosts, max_radix);
    int n = exact.n_stages;
    if (n && exact.stage[n - 1].radix <= max_radix) {
        small.n_stages = n;
        memcpy(small.stage, exact.stage, sizeof small.stage);
    } else if (n) {
        choose_stages(&small, t->n_hosts, max_radix);
    }
    for (int s = 0; s < small.n_stages; s++)
        count_nodes(&small, s);
    *out = small;
}
