/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_HOSTS_H
#define KU_JOB_HOSTS_H

#include <stdint.h>

#include "base/err.h"

struct ku_job;

/*
 * The hosts of a job. Ranks are numbered host by host, so a host is a row {first rank, number of
 * ranks}. Every host has the whole table in its control segment: 128 bytes a host.
 *
 *     host   name   first_rank   n_ranks   address
 *        0   a               0         4   10.77.0.1:40123
 *        1   b               4         4   10.77.0.2:38121
 *
 * What a host is, is decided by the launcher's variables (local ranks of one launcher share memory),
 * or by KUMI_HOST=NAME, which lets one machine act as several: ranks with equal names are one host.
 */
enum {
    KU_MAX_HOSTS = 16384, /* 10^5 accelerators, eight a host; the table is sparse */
    KU_HOST_NAME_BYTES = 64
};
struct ku_host_row {
    char name[KU_HOST_NAME_BYTES];
    int32_t first_rank, n_ranks;
    uint8_t address[16]; /* IPv6, or IPv4 mapped into it (RFC 4291, 2.5.5.2); zero: one host */
    uint16_t port;       /* its service thread listens there; host byte order */
    uint16_t reserved[3];
    uint64_t job_id; /* of its control segment, which names its sockets */
    uint8_t unused[24];
};
_Static_assert(sizeof(struct ku_host_row) == 128, "sent as it is");

/* The rows of the job, [job->n_hosts] */
const struct ku_host_row *ku_job_hosts(const struct ku_job *job);
/* The host of a rank: a binary search. */
int ku_job_host_of(const struct ku_job *job, int rank);

#endif
