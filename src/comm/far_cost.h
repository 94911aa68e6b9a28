/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_FAR_COST_H
#define KU_COMM_FAR_COST_H

#include "base/err.h"

#include <stddef.h>

struct ku_job;

/*
 * What a communicator over several hosts costs, without one: for planners. Ranks are numbered host
 * by host.
 */
struct ku_host_ranks {
    int first, n;
};
/* Ranks first, first + stride, ..: n of them. */
struct ku_members {
    int first, stride, n;
};

/* The hosts of a job, [n_hosts]; ku_free. *host is NULL with one host. Errors: KUMI_ENOMEM. */
KU_STATUS ku_hosts_of_job(const struct ku_job *job, struct ku_host_ranks **host);
/*
 * Bytes that all members together send to other hosts for each byte of a vector: in its wire dtype
 * to reduce it, in its own to gather it. Exact when every host has as many members, a power of two;
 * else the destinations' shares differ by a line of elements. 0 on one host. O(n) time.
 *
 * Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_far_cost_bytes(const struct ku_members *c, const struct ku_host_ranks *host,
                            int n_hosts, double *reduce, double *gather);
/*
 * Bytes of the chunk pool that member `me` allocates (ku_far_reserve); 0 on one host.
 *
 *   full_rate_bytes   of the engine (struct ku_net): ku_far_full_rate
 */
KU_STATUS ku_far_cost_pool(const struct ku_members *c, const struct ku_host_ranks *host,
                           int n_hosts, int me, size_t full_rate_bytes, size_t *bytes);
/* full_rate_bytes of a job's engine; without a job (NULL) of parallel.transport, auto as tcp. */
size_t ku_far_full_rate(const struct ku_job *job, const char *transport);

#endif
