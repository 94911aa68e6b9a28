/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of each byte of a vector host h sends nodes(h) for every destination on another host:
 *
 *     reduce half    sum over hosts of nodes(h) * (n - members(h)) / n
 *     gather half    hosts - 1
 *
 * Staged plans have groups of hosts that are one node, so their reduce half is hosts - 1 too. On
 * uneven hosts a destination's part counts with its own sum of nodes(h). A mutual all-reduce sends
 * the bytes of both halves, hosts (= 2), in the wire dtype.
 */
#include "comm/far_cost.h"

#include "base/err.h"
#include "base/mem.h"
#include "comm/exchange.h"
#include "job/hosts.h"
#include "job/job.h"
#include "tensor/blocks.h"
#include "comm/private.h"

#include <string.h>

int ku_hosts_of_job(const struct ku_job *job, struct ku_host_ranks **host)
{
    *host = NULL;
    if (job->n_hosts <= 1)
        return KUMI_OK;
    struct ku_host_ranks *list = ku_calloc((size_t)job->n_hosts, sizeof *list);
    if (list == NULL)
        return KUMI_ENOMEM;
    for (int h = 0; h < job->n_hosts; h++)
        list[h] =
            (struct ku_host_ranks){ku_job_hosts(job)[h].first_rank, ku_job_hosts(job)[h].n_ranks};
    *host = list;
    return KUMI_OK;
}

/* The topology of a communicator as its member `me` sees it. Errors: KUMI_ENOMEM. */
static int find_topology(const struct ku_members *c, const struct ku_host_ranks *host, int n_hosts,
                         int me, struct ku_topology *t)
{
    struct ku_run *run = ku_calloc((size_t)c->n, sizeof *run);
    if (run == NULL)
        return KUMI_ENOMEM;
    for (int i = 0, h = 0; i < c->n; i++) {
        while (h < n_hosts - 1 && c->first + i * c->stride >= host[h + 1].first)
            h++;
        run[i] = (struct ku_run){.count = 1, .host = h};
    }
    const int status = ku_topology_init(t, run, c->n, me);
    ku_free(run);
    return status;
}

int ku_far_cost_bytes(const struct ku_members *c, const struct ku_host_ranks *host, int n_hosts,
                      bool is_all_reduce, double *reduce, double *gather, bool *is_exact)
{
    struct ku_topology t = {0};
    KU_TRY(find_topology(c, host, n_hosts, 0, &t));
    double sent = 0;
    int first_nodes = 0;
    *is_exact = true;
    for (int h = 0; h < t.n_hosts && t.n_hosts > 1; h++) {
        const int nodes = ku_topology_cover(&t, h, h + 1, NULL, 0);
        first_nodes = h ? first_nodes : nodes;
        *is_exact = *is_exact && nodes == first_nodes;
        sent += (double)nodes * (t.n - ku_topology_local_n(&t, h)) / t.n;
    }
    const int is_power = t.per_host && (t.per_host & (t.per_host - 1)) == 0;
    *gather = t.n_hosts - 1;
    *reduce = is_power ? t.n_hosts - 1 : sent;
    if (is_all_reduce && ku_topology_is_mutual(&t))
        *reduce = 2, *gather = 0;
    ku_topology_fini(&t);
    return KUMI_OK;
}

struct ku_far_cost {
    struct ku_topology topology;
    struct ku_exchange exchange;
    int *copies; /* [n] of a destination's part that other hosts send */
};

/* Errors: KUMI_ENOMEM. */
static int count_copies(struct ku_far_cost *x)
{
    const struct ku_topology *t = &x->topology;
    int *nodes = ku_calloc((size_t)t->n_hosts, sizeof *nodes), all = 0;
    x->copies = ku_calloc((size_t)t->n, sizeof *x->copies);
    for (int h = 0; h < t->n_hosts && nodes && x->copies; h++)
        all += nodes[h] = ku_topology_cover(t, h, h + 1, NULL, 0);
    for (int d = 0; d < t->n && nodes && x->copies; d++) {
        int h, local;
        ku_topology_find(t, d, &h, &local);
        x->copies[d] = all - nodes[h];
    }
    const bool is_done = nodes && x->copies;
    ku_free(nodes);
    return is_done ? KUMI_OK : KUMI_ENOMEM;
}

int ku_far_cost_create(const struct ku_members *c, const struct ku_host_ranks *host, int n_hosts,
                       struct ku_far_cost **out)
{
    struct ku_far_cost *x = ku_calloc(1, sizeof *x);
    *out = NULL;
    if (x == NULL)
        return KUMI_ENOMEM;
    int status = find_topology(c, host, n_hosts, 0, &x->topology);
    const bool is_far = status == KUMI_OK && x->topology.n_hosts > 1;
    if (is_far)
        status = ku_exchange_plan(&x->topology, NULL, &x->exchange);
    if (is_far && status == KUMI_OK)
        status = count_copies(x);
    if (is_far && status == KUMI_OK)
        *out = x;
    else
        ku_far_cost_destroy(x);
    return status;
}

void ku_far_cost_destroy(struct ku_far_cost *x)
{
    if (x == NULL)
        return;
    ku_exchange_fini(&x->exchange);
    ku_topology_fini(&x->topology);
    ku_free(x->copies);
    ku_free(x);
}

static bool is_mutual(const struct ku_far_cost *x, const struct ku_far_vector *v)
{
    return v->block_count == 0 && ku_topology_is_mutual(&x->topology);
}

double ku_far_cost_gathered(const struct ku_far_cost *x, const struct ku_far_vector *v)
{
    return is_mutual(x, v)
               ? 0
               : (double)(x->topology.n_hosts - 1) * (double)v->count * (double)v->each_bytes;
}

double ku_far_cost_reduced(const struct ku_far_cost *x, const struct ku_far_vector *v)
{
    const struct ku_exchange_slices slices = {.exchange = &x->exchange,
                                              .count = v->count,
                                              .line_count = 64 / (int64_t)v->each_bytes,
                                              .first = v->first};
    const int n = x->topology.n;
    double elements = 0;
    for (int d = 0; d < n; d++) {
        int64_t begin, end;
        if (v->block_count)
            ku_blocks_range(v->count, v->block_count, v->first, n, d, &begin, &end);
        else
            ku_exchange_slice(&slices, d, &begin, &end);
        elements += (double)(end - begin) * (is_mutual(x, v) ? 2 : x->copies[d]);
    }
    return elements * (double)v->wire_bytes;
}

int ku_far_cost_pool(const struct ku_members *c, const struct ku_host_ranks *host, int n_hosts,
                     int me, size_t full_rate_bytes, size_t *bytes)
{
    struct ku_topology t = {0};
    struct ku_exchange x = {0};
    KU_TRY(find_topology(c, host, n_hosts, me, &t));
    const int status = ku_exchange_plan(&t, NULL, &x);
    *bytes = 0;
    if (status == KUMI_OK && t.n_hosts > 1) { /* and what a member keeps of its own, as there */
        const size_t chunk_bytes = ku_exchange_chunk_bytes(&x, full_rate_bytes);
        *bytes = ku_exchange_staging_bytes(&x, chunk_bytes) + chunk_bytes;
    }
    ku_exchange_fini(&x);
    ku_topology_fini(&t);
    return status;
}

size_t ku_far_full_rate(const struct ku_job *job, const char *transport)
{
    if (job)
        return job->comm && job->comm->net ? job->comm->net->full_rate_bytes : 0;
    return strcmp(transport, "mpi") == 0 ? KU_NET_MPI_FULL_RATE_BYTES : 0;
}
