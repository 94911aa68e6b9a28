/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_SIM_BETWEEN_HOSTS_H
#define KU_SIM_BETWEEN_HOSTS_H

#include "comm/far_cost.h"
#include "sim/volume.h"

/*
 * What a training program sends between hosts, and the memory that this takes, by the
 * communicators that the trainer opens: all ranks, shards, groups and replicas, those of a stage
 * and those that divide a layer.
 *
 * Set far_bytes of rows from ku_plan_volumes: payload bytes that all ranks of the program's
 * coordinate of axis pp together send to other hosts in a step. O(ranks) time for each row. Errors:
 * KUMI_ENOMEM.
 */
KU_STATUS ku_plan_far_volumes(const struct ku_program *p, const struct ku_host_ranks *host,
                              int n_hosts, struct ku_volume *row, int n);
/*
 * Bytes of floating-point elements that all ranks of the program's coordinate of axis pp together
 * move in a step.
 *
 *   host   [n_hosts]; NULL: one host
 *
 * Errors: KUMI_ENOMEM.
 */
struct ku_step_bytes {
    double ring;   /* as rings would send the collectives */
    double stored; /* in shared memory: by collectives, and messages to ranks of the same host */
    double far;    /* sent to other hosts */
    double messages, far_messages; /* of these, between coordinates */
};
KU_STATUS ku_plan_step_bytes(const struct ku_program *p, const struct ku_host_ranks *host,
                             int n_hosts, struct ku_step_bytes *out);
/* Bytes of a rank's chunk pools; full_rate_bytes: ku_far_full_rate. Errors: KUMI_ENOMEM. */
KU_STATUS ku_plan_far_pool(const struct ku_mesh *m, const struct ku_host_ranks *host, int n_hosts,
                           int rank, size_t full_rate_bytes, size_t *bytes);

#endif
