/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_HOSTS_H
#define TESTS_UNIT_HOSTS_H

/* Communicators over several hosts, as all their members see them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/math/random.h"
#include "comm/exchange.h"

enum { MAX_MEMBERS = 512 };
struct hosts {
    int n;
    struct ku_topology all, as[MAX_MEMBERS];
};

/* Members i on host host_of[i] */
static void hosts_open(struct hosts *w, const int *host_of, int n)
{
    struct ku_run run[MAX_MEMBERS];
    assert_in_range(n, 1, MAX_MEMBERS);
    for (int i = 0; i < n; i++)
        run[i] = (struct ku_run){.first = -1, .count = 1, .host = host_of[i], .local = -1};
    assert_int_equal(ku_topology_init(&w->all, run, n, 0), 0);
    w->n = n;
    for (int i = 0; i < n; i++) { /* the same hosts, as member i sees them */
        w->as[i] = w->all;
        w->as[i].memory = NULL;
        w->as[i].me = i;
        ku_topology_find(&w->all, i, &w->as[i].host, &w->as[i].local);
    }
}

static void hosts_close(struct hosts *w)
{
    for (int i = 0; i < w->n; i++)
        ku_topology_fini(&w->as[i]);
    ku_topology_fini(&w->all);
}

/* count[h] members on host h, one host after the other */
static void hosts_open_sizes(struct hosts *w, const int *count, int n_hosts)
{
    int host_of[MAX_MEMBERS], n = 0;
    for (int h = 0; h < n_hosts; h++)
        for (int i = 0; i < count[h]; i++)
            host_of[n++] = h;
    hosts_open(w, host_of, n);
}

static void hosts_open_even(struct hosts *w, int n_hosts, int per_host)
{
    int count[MAX_MEMBERS];
    for (int h = 0; h < n_hosts; h++)
        count[h] = per_host;
    hosts_open_sizes(w, count, n_hosts);
}

/* Member i on host i mod n_hosts; odd seeds: on a random one, of which some may be missing. */
static void hosts_open_mixed(struct hosts *w, int n, int n_hosts, uint32_t seed)
{
    int host_of[MAX_MEMBERS];
    for (int i = 0; i < n; i++)
        host_of[i] = seed % 2 ? (int)(ku_random_u32(seed, 0, 0, (uint64_t)i) % (uint32_t)n_hosts)
                              : i % n_hosts;
    hosts_open(w, host_of, n);
}

/*
 * The next division of n ranks into consecutive hosts, at most max_hosts. Begins with *n_hosts = 0.
 * Returns whether there is one.
 */
static bool hosts_next(int n, int max_hosts, int *count, int *n_hosts)
{
    int h = *n_hosts;
    if (!h) {
        count[0] = n;
        *n_hosts = 1;
        return 1;
    }
    if (h < max_hosts && count[h - 1] > 1) { /* split one rank off the last host */
        count[h - 1]--;
        count[h] = 1;
        *n_hosts = h + 1;
        return 1;
    }
    int tail = count[--h]; /* move one rank of an earlier host to the hosts after it */
    while (h > 0 && count[h - 1] == 1)
        tail += count[--h];
    if (h == 0)
        return 0;
    count[h - 1]--;
    count[h] = tail + 1;
    *n_hosts = h + 1;
    return 1;
}

#endif
