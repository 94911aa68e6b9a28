/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of a communicator on their hosts: from runs in member order to runs by host.
 *
 *     given       host    7 7 7    4    7    4 4           members 0 to 6
 *     run         host    0             0    1    1      hosts in the order of their first members
 *                 first   0             4    3    5
 *                 count   3             1    1    2
 *                 local   0             3    0    1
 *
 * The order of slices needs, for member (h, l), the number of members with a lower local index and
 * of hosts before h that have a member l. Hosts that have one are a prefix of the hosts in
 * descending size, so both are one look-up.
 */
#include "comm/exchange.h"

#include "base/err.h"
#include "base/mem.h"
#include "comm/exchange/private.h"

#include <stdlib.h>
#include <string.h>

void ku_topology_init_even(struct ku_topology *t, int n_hosts, int per_host, int me)
{
    KU_ASSERT(n_hosts > 0 && per_host > 0 && me >= 0 && me < (int64_t)n_hosts * per_host);
    KU_ASSERT((int64_t)n_hosts * per_host <= INT32_MAX);
    *t = (struct ku_topology){.n = n_hosts * per_host,
                              .n_hosts = n_hosts,
                              .me = me,
                              .host = me / per_host,
                              .local = me % per_host,
                              .max_local = per_host,
                              .per_host = per_host,
                              .is_contiguous = 1};
}

/* By host, then by member. While runs are grouped, `local` is the first member of the host. */
static int by_host_id(const void *a, const void *b)
{
    const struct ku_run *x = a, *y = b;
    if (x->host != y->host)
        return x->host < y->host ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}
static int by_host_first(const void *a, const void *b)
{
    const struct ku_run *x = a, *y = b;
    if (x->local != y->local)
        return x->local < y->local ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}
static int by_first(const void *a, const void *b)
{
    const struct ku_run_at *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Copy the runs to `to` and merge neighbours of one host. Returns their number. */
static int merge(const struct ku_run *run, int n_runs, struct ku_run *to)
{
    int n = 0;
    int64_t first = 0;
    for (int i = 0; i < n_runs; i++) {
        KU_ASSERT(run[i].count > 0 && run[i].host >= 0);
        if (n && to[n - 1].host == run[i].host)
            to[n - 1].count += run[i].count;
        else
            to[n++] = (struct ku_run){
                .first = (int32_t)first, .count = run[i].count, .host = run[i].host};
        first += run[i].count;
        KU_ASSERT(first <= INT32_MAX);
    }
    return n;
}

/* Sort merged runs, and number hosts and members of hosts. Sets what the topology counts. */
static void number(struct ku_topology *t, struct ku_run *run, int n_runs)
{
    qsort(run, (size_t)n_runs, sizeof *run, by_host_id);
    for (int i = 0; i < n_runs; i++)
        run[i].local = i && run[i].host == run[i - 1].host ? run[i - 1].local : run[i].first;
    qsort(run, (size_t)n_runs, sizeof *run, by_host_first);
    int per_host = 0, is_even = 1, host_first = -1;
    for (int i = 0, local = 0; i < n_runs; i++) {
        if (run[i].local != host_first) {
            host_first = run[i].local;
            local = 0;
            t->n_hosts++;
        }
        run[i].host = t->n_hosts - 1;
        run[i].local = local;
        local += run[i].count;
        t->n += run[i].count;
        t->max_local = local > t->max_local ? local : t->max_local;
    }
    t->n_runs = n_runs;
    t->is_contiguous = n_runs == t->n_hosts;
    per_host = run[0].count;
    for (int i = 0; i < n_runs; i++)
        is_even &= run[i].count == per_host;
    t->per_host = t->is_contiguous && is_even ? per_host : 0;
}

/*
 * The arrays of an uneven topology, from its runs.
 *
 *   host_run     [n_hosts + 1]
 *   at           [n_runs]
 *   lower_n      [max_local + 1]
 *   size_order   [n_hosts]
 *   larger       [max_local + 1], scratch: hosts with more members than the index
 */
static void index_runs(const struct ku_topology *t, int32_t *host_run, struct ku_run_at *at,
                       int32_t *lower_n, int32_t *size_order, int32_t *larger)
{
    for (int i = t->n_runs - 1; i >= 0; i--) {
        host_run[t->run[i].host] = i;
        at[i] = (struct ku_run_at){t->run[i].first, i};
    }
    host_run[t->n_hosts] = t->n_runs;
    qsort(at, (size_t)t->n_runs, sizeof *at, by_first);
    for (int l = 0; l <= t->max_local; l++)
        larger[l] = 0;
    for (int h = 0; h < t->n_hosts; h++)
        larger[ku_topology_local_n(t, h) - 1]++;
    for (int l = t->max_local - 1; l >= 0; l--)
        larger[l] += larger[l + 1];
    lower_n[0] = 0;
    for (int l = 0; l < t->max_local; l++)
        lower_n[l + 1] = lower_n[l] + larger[l];
    for (int h = 0; h < t->n_hosts; h++)
        size_order[h] = larger[ku_topology_local_n(t, h)]++;
}

int ku_topology_init(struct ku_topology *t, const struct ku_run *run, int n_runs, int me)
{
    KU_ASSERT(n_runs > 0);
    struct ku_run *merged = ku_malloc((size_t)n_runs * sizeof *merged);
    if (!merged)
        return KUMI_ENOMEM;
    struct ku_topology u = {0};
    number(&u, merged, merge(run, n_runs, merged));
    KU_ASSERT(me >= 0 && me < u.n);
    if (u.per_host) {
        ku_free(merged);
        ku_topology_init_even(t, u.n_hosts, u.per_host, me);
        return 0;
    }
    size_t runs = (size_t)u.n_runs, hosts = (size_t)u.n_hosts, locals = (size_t)u.max_local + 1;
    size_t bytes = runs * (sizeof(struct ku_run) + sizeof(struct ku_run_at)) +
                   (2 * hosts + 1 + 2 * locals) * sizeof(int32_t);
    unsigned char *memory = ku_malloc(bytes);
    if (!memory) {
        ku_free(merged);
        return KUMI_ENOMEM;
    }
    memcpy(memory, merged, runs * sizeof *merged);
    ku_free(merged);
    struct ku_run_at *at = (void *)(memory + runs * sizeof(struct ku_run));
    int32_t *host_run = (void *)(at + runs), *size_order = host_run + hosts + 1;
    int32_t *lower_n = size_order + hosts, *larger = lower_n + locals;
    u.memory = memory;
    u.run = (void *)memory;
    u.host_run = host_run;
    u.by_first = at;
    u.lower_n = lower_n;
    u.size_order = size_order;
    index_runs(&u, host_run, at, lower_n, size_order, larger);
    u.me = me;
    ku_topology_find(&u, me, &u.host, &u.local);
    *t = u;
    return 0;
}

void ku_topology_fini(struct ku_topology *t)
{
    ku_free(t->memory);
    *t = (struct ku_topology){0};
}

/* The last of records low to high whose key, `stride` bytes apart, is at most `value` */
static int last_up_to(const int32_t *key, size_t stride, int low, int high, int value)
{
    while (low < high) {
        const int mid = high - (high - low) / 2;
        if (*(const int32_t *)(const void *)((const char *)key + (size_t)mid * stride) <= value)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

int ku_topology_local_n(const struct ku_topology *t, int host)
{
    KU_ASSERT(host >= 0 && host < t->n_hosts);
    if (t->per_host)
        return t->per_host;
    const struct ku_run *last = &t->run[t->host_run[host + 1] - 1];
    return last->local + last->count;
}

int ku_topology_member(const struct ku_topology *t, int host, int local)
{
    KU_ASSERT(local >= 0 && local < ku_topology_local_n(t, host));
    if (t->per_host)
        return host * t->per_host + local;
    const struct ku_run *run = &t->run[last_up_to(&t->run->local, sizeof *t->run, t->host_run[host],
                                                  t->host_run[host + 1] - 1, local)];
    return run->first + (local - run->local);
}

void ku_topology_find(const struct ku_topology *t, int member, int *host, int *local)
{
    KU_ASSERT(member >= 0 && member < t->n);
    if (t->per_host) {
        *host = member / t->per_host;
        *local = member % t->per_host;
        return;
    }
    const int at = last_up_to(&t->by_first->first, sizeof *t->by_first, 0, t->n_runs - 1, member);
    const struct ku_run *run = &t->run[t->by_first[at].run];
    *host = run->host;
    *local = run->local + (member - run->first);
}

int ku_topology_helper(const struct ku_topology *t, int host, int d_host, int d_local)
{
    return host == d_host ? d_local : d_local % ku_topology_local_n(t, host);
}

/*
 * The next maximal run of leaves on hosts begin to end - 1. The cursor starts at 0; it counts runs,
 * for one host its own. Returns whether there is one.
 */
static bool next_run(const struct ku_topology *t, int begin, int end, int *at,
                     struct ku_tree_node *run)
{
    run->count = 0;
    if (t->is_contiguous) {
        int last = ku_topology_local_n(t, end - 1) - 1;
        run->first = ku_topology_member(t, begin, 0);
        run->count = *at ? 0 : ku_topology_member(t, end - 1, last) - run->first + 1;
        *at = 1;
        return run->count > 0;
    }
    bool is_one = end == begin + 1;
    int limit = is_one ? t->host_run[end] - t->host_run[begin] : t->n_runs;
    for (; *at < limit; ++*at) {
        const struct ku_run *r = &t->run[is_one ? t->host_run[begin] + *at : t->by_first[*at].run];
        if (r->host < begin || r->host >= end)
            continue;
        if (!run->count)
            run->first = r->first;
        else if (r->first != run->first + run->count)
            break;
        run->count += r->count;
    }
    return run->count > 0;
}

/* The nodes of hosts, as nodes or as sources `from` a peer, or neither: their number. */
static int cover(const struct ku_topology *t, int host_begin, int host_end, int cap,
                 struct ku_tree_node *node, struct ku_exchange_source *source, int from)
{
    struct ku_tree_node run, some[KU_TREE_RUN_NODES];
    int n_nodes = 0, at = 0;
    KU_ASSERT(host_begin >= 0 && host_begin < host_end && host_end <= t->n_hosts);
    while (next_run(t, host_begin, host_end, &at, &run)) {
        const int n = ku_tree_cover(t->n, &run, 1, some, KU_TREE_RUN_NODES);
        KU_ASSERT((!node && !source) || n <= cap - n_nodes);
        for (int i = 0; i < n; i++, n_nodes++) {
            if (node)
                node[n_nodes] = some[i];
            if (source)
                source[n_nodes] = (struct ku_exchange_source){some[i], from, n_nodes};
        }
    }
    return n_nodes;
}

int ku_topology_cover(const struct ku_topology *t, int host_begin, int host_end,
                      struct ku_tree_node *node, int cap)
{
    return cover(t, host_begin, host_end, cap, node, NULL, 0);
}

int ku_cover_sources(const struct ku_topology *t, int host_begin, int host_end, int from,
                     struct ku_exchange_source *source, int cap)
{
    return cover(t, host_begin, host_end, cap, NULL, source, from);
}

static int by_leaf(const void *a, const void *b)
{
    const struct ku_exchange_source *p = a, *q = b;
    return p->node.first < q->node.first ? -1 : p->node.first > q->node.first;
}

void ku_cover_sort(const struct ku_topology *t, struct ku_exchange_source *source, int n)
{
    if (!t->is_contiguous)
        qsort(source, (size_t)n, sizeof *source, by_leaf);
}
