/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_HOSTS_H
#define KU_JOB_HOSTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/os/os.h"

struct ku_job;
struct ku_segment;

/*
 * The hosts of a job. Ranks are numbered host by host, so a host is a row {first rank, number of
 * ranks}. Every host has the whole table in its control segment: 128 bytes a host.
 *
 *     host   name   first_rank   n_ranks   address
 *        0   a               0         4   10.77.0.1:40123
 *        1   b               4         4   10.77.0.2:38121
 *
 * The launcher's variables decide what a host is (local ranks of one launcher share memory), or
 * KUMI_HOST=NAME, which lets one machine act as several: ranks with equal names are one host.
 */
enum {
    KU_MAX_HOSTS = 16384, /* 10^5 accelerators, eight a host; the table is sparse */
    KU_HOST_NAME_BYTES = 64,
    KU_ENGINE_BYTES = 16,
    KU_SECRET_BYTES = 32
};
struct ku_host_row {
    char name[KU_HOST_NAME_BYTES];
    int32_t first_rank, n_ranks;
    uint8_t address[16]; /* IPv6, or IPv4 mapped into it (RFC 4291, 2.5.5.2); zero: one host */
    uint16_t port;       /* its service thread listens there; host byte order */
    uint16_t reserved[3];
    uint64_t job_id;              /* of its control segment, which names its sockets */
    uint64_t kernel;              /* ku_os_kernel: hosts may be parts of one machine */
    char engine[KU_ENGINE_BYTES]; /* that it can use instead of tcp, as "openmpi"; "": none */
};
_Static_assert(sizeof(struct ku_host_row) == 128, "sent as it is");

/* The rows of the job, [job->n_hosts]; one host: its row has ranks, but no name and no address. */
const struct ku_host_row *ku_job_hosts(const struct ku_job *job);
/* The greatest common divisor of the numbers of ranks of the hosts; 0 with one host */
int ku_job_host_ranks(const struct ku_job *job);
/* Whether all hosts have as many ranks */
bool ku_job_hosts_are_even(const struct ku_job *job);
/*
 * The ranks that share CPUs with those of a host, on one kernel, its own included.
 *
 *   cpus   [n_hosts][KU_OS_CPU_WORDS] where the ranks of each host may run
 *   all    out: where all these ranks may run
 */
int ku_hosts_sharing(const struct ku_host_row *row, int n_hosts, int host, const uint64_t *cpus,
                     uint64_t all[KU_OS_CPU_WORDS]);
/*
 * The engine that all hosts can use instead of tcp; "": none.
 *
 *   host   out: the first host that lacks one, or whose engine is not that of host 0; -1: none
 */
const char *ku_hosts_engine(const struct ku_host_row *row, int n_hosts, int *host);
/* The host of a rank: a binary search. */
int ku_job_host_of(const struct ku_job *job, int rank);

/* The same of a segment; n_hosts is 0 until the hosts have met, and 1 for a job of one host. */
int ku_segment_n_hosts(struct ku_segment *seg);
int ku_segment_host_of(struct ku_segment *seg, int rank);
/* "rank 5", or in a job of several hosts "rank 5 on host b" */
void ku_segment_rank_text(struct ku_segment *seg, int rank, char *text, size_t cap);

#endif
