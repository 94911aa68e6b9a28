/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stages of an exchange.
 *
 * Powers of two come first, because the hosts of a group must hold one node of the tree; the last
 * stage takes the odd factor of the number of hosts and what is left of the powers of two. Of all
 * such plans the one with the fewest stages is taken, then the fewest peers, then the largest
 * radices first: each stage divides what the later ones move.
 */
#include "comm/exchange.h"

#include "base/err.h"
#include "base/mem.h"
#include "comm/exchange/private.h"

#include <string.h>

static int log2_floor(int64_t x)
{
    int bits = 0;
    while (x > 1) {
        x /= 2;
        bits++;
    }
    return bits;
}

/* The bits of the next radix when `bits` are divided over `n` stages as evenly as possible */
static int next_bits(int bits, int n)
{
    return (bits + n - 1) / n;
}

/* Stages and peers if the last radix is `last` and 2^bits are divided over those before it */
static void count_stages(int bits, int max_bits, int last, int *n_stages, int *n_peers)
{
    int n = (bits + max_bits - 1) / max_bits;
    *n_stages = n + 1;
    *n_peers = last - 1;
    for (; n > 0; bits -= next_bits(bits, n), n--)
        *n_peers += (1 << next_bits(bits, n)) - 1;
}

static void add_stage(struct ku_exchange *x, int radix, int stride)
{
    KU_ASSERT(x->n_stages < KU_EXCHANGE_STAGES);
    x->stage[x->n_stages++] = (struct ku_exchange_stage){radix, stride};
}

void ku_stages_choose(struct ku_exchange *x, int n_hosts, int max_radix)
{
    int max_bits = log2_floor(max_radix), odd = n_hosts, twos = 0;
    int best = 0, best_stages = INT32_MAX, best_peers = INT32_MAX; /* twos in the last radix */
    for (; odd % 2 == 0; odd /= 2)
        twos++;
    for (int in_last = 0; in_last <= twos; in_last++) {
        int last = odd << in_last, n_stages, n_peers;
        if (last == 1 || (in_last && last > max_radix))
            continue;
        count_stages(twos - in_last, max_bits, last, &n_stages, &n_peers);
        if (n_stages < best_stages || (n_stages == best_stages && n_peers < best_peers)) {
            best = in_last;
            best_stages = n_stages;
            best_peers = n_peers;
        }
    }
    int stride = 1, left = twos - best;
    for (int n = best_stages - 1; n > 0; n--) {
        int bits = next_bits(left, n);
        add_stage(x, 1 << bits, stride);
        stride <<= bits;
        left -= bits;
    }
    add_stage(x, odd << best, stride);
    KU_ASSERT(stride * (odd << best) == n_hosts);
}

/* Uneven hosts: sends_before[k] is the number of destinations on the hosts 1 to k after mine. */
static int count_sends(struct ku_exchange *x)
{
    const struct ku_topology *t = x->topology;
    int mine = ku_topology_local_n(t, t->host);
    x->sends_before = ku_malloc((size_t)t->n_hosts * sizeof *x->sends_before);
    if (!x->sends_before)
        return KUMI_ENOMEM;
    x->sends_before[0] = 0;
    for (int k = 1; k < t->n_hosts; k++) {
        int other_n = ku_topology_local_n(t, (t->host + k) % t->n_hosts);
        int n = other_n > t->local ? (other_n - t->local + mine - 1) / mine : 0;
        x->sends_before[k] = x->sends_before[k - 1] + n;
        x->max_peers += n ? n : 1; /* a helper of mine, if not among them */
    }
    return 0;
}

/* Nodes and sources of one stage between helpers and destinations */
static void count_direct(struct ku_exchange *x)
{
    const struct ku_topology *t = x->topology;
    for (int h = 0; h < t->n_hosts; h++) {
        const int n_nodes = ku_topology_cover(t, h, h + 1, NULL, 0);
        x->max_nodes = n_nodes > x->max_nodes ? n_nodes : x->max_nodes;
        x->max_sources += h == t->host ? ku_topology_local_n(t, h) : n_nodes;
    }
}

/* The same for stages whose groups are one node each */
static void count_staged(struct ku_exchange *x)
{
    for (int s = 0; s < x->n_stages; s++) {
        const int n_sources = (s ? 1 : x->topology->per_host) + x->stage[s].radix - 1;
        x->max_sources = n_sources > x->max_sources ? n_sources : x->max_sources;
    }
}

int ku_exchange_plan(const struct ku_topology *t, const struct ku_exchange_tuning *tuning,
                     struct ku_exchange *out)
{
    struct ku_exchange x = {.topology = t, .max_nodes = 1};
    int max_radix = tuning && tuning->max_radix ? tuning->max_radix : KU_EXCHANGE_RADIX;
    int is_power = (t->per_host & (t->per_host - 1)) == 0;
    KU_ASSERT(max_radix >= 2 && t->n_hosts > 0);
    if (t->n_hosts == 1) {
        *out = x;
        return 0;
    }
    if (t->per_host && is_power)
        ku_stages_choose(&x, t->n_hosts, max_radix);
    else
        add_stage(&x, t->n_hosts, 1);
    if (!t->per_host)
        KU_TRY(count_sends(&x));
    for (int s = 0; t->per_host && s < x.n_stages; s++)
        x.max_peers = x.stage[s].radix > x.max_peers ? x.stage[s].radix - 1 : x.max_peers;
    if (t->per_host && is_power)
        count_staged(&x);
    else
        count_direct(&x);
    *out = x;
    return 0;
}

void ku_exchange_fini(struct ku_exchange *x)
{
    ku_free(x->sends_before);
    *x = (struct ku_exchange){0};
}

size_t ku_exchange_chunk_bytes(const struct ku_exchange *x, size_t full_rate_bytes)
{
    int n_peers = 1;
    for (int s = 0; s < x->n_stages; s++)
        n_peers = x->stage[s].radix - 1 > n_peers ? x->stage[s].radix - 1 : n_peers;
    if (x->topology->per_host == 0) /* a small host's member may talk to all of a large one */
        n_peers *= x->topology->max_local;
    size_t bytes = KU_EXCHANGE_CHUNK_BYTES;
    while (2 * bytes <= full_rate_bytes &&
           2 * bytes * (size_t)n_peers <= (size_t)KU_EXCHANGE_RADIX * KU_EXCHANGE_CHUNK_BYTES)
        bytes *= 2;
    return bytes;
}

int64_t ku_exchange_chunk_count(const struct ku_exchange *x, enum ku_half half, size_t each_bytes,
                                size_t chunk_bytes)
{
    enum { LINE_BYTES = 64 };
    size_t n_nodes = half == KU_HALF_REDUCE ? (size_t)x->max_nodes : 1;
    size_t count = chunk_bytes / (n_nodes * each_bytes), line = LINE_BYTES / each_bytes;
    KU_ASSERT(count > 0);
    return (int64_t)(count >= line ? count / line * line : count);
}

size_t ku_exchange_staging_bytes(const struct ku_exchange *x, size_t chunk_bytes)
{
    int widest = 0;
    for (int s = 0; s < x->n_stages; s++) {
        int n =
            ku_exchange_n_sends(x, KU_HALF_REDUCE, s) + ku_exchange_n_recvs(x, KU_HALF_REDUCE, s);
        widest = n > widest ? n : widest;
    }
    return 2 * (size_t)widest * chunk_bytes;
}
