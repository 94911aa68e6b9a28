/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_FAR_COST_H
#define KU_COMM_FAR_COST_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
 * to reduce it, in its own to gather it. 0 on one host. O(n) time.
 *
 *   is_all_reduce   both halves follow each other; between two hosts of one node each the first
 *                   does the work of both (comm/exchange.h), and *gather is 0
 *   is_exact        out: true for every division of the vector: each host has as many nodes of the
 *                   tree. Else the reduction depends on the division (ku_far_cost_reduced), and
 *                   this is the mean of an even one.
 *
 * Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_far_cost_bytes(const struct ku_members *c, const struct ku_host_ranks *host,
                            int n_hosts, bool is_all_reduce, double *reduce, double *gather,
                            bool *is_exact);
/* A vector of a collective. */
struct ku_far_vector {
    int64_t count;       /* elements */
    int64_t block_count; /* divided into chunks of that many (tensor/blocks.h); 0: an all-reduce */
    int64_t first;       /* the member with the first odd chunk; all-reduce: index of the vector */
    size_t each_bytes, wire_bytes; /* of an element, in its own dtype and in the wire's */
};
/*
 * For bytes vector by vector.
 *
 *   cost   out; NULL: one host has all members
 *
 * Errors: KUMI_ENOMEM.
 */
struct ku_far_cost;
KU_STATUS ku_far_cost_create(const struct ku_members *c, const struct ku_host_ranks *host,
                             int n_hosts, struct ku_far_cost **cost);
void ku_far_cost_destroy(struct ku_far_cost *cost); /* NULL is allowed */
/*
 * Bytes that all members send to other hosts: to reduce a vector, O(n) time; to gather it, which is
 * 0 for a mutual all-reduce.
 */
double ku_far_cost_reduced(const struct ku_far_cost *cost, const struct ku_far_vector *v);
double ku_far_cost_gathered(const struct ku_far_cost *cost, const struct ku_far_vector *v);
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
