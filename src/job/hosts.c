/* SPDX-License-Identifier: Apache-2.0 */
#include "job/hosts.h"

#include "base/err.h"
#include "job/job.h"

#include <stdio.h>
#include <string.h>

const struct ku_host_row *ku_job_hosts(const struct ku_job *job)
{
    return ku_segment_hosts(job->seg);
}

int ku_job_host_ranks(const struct ku_job *job)
{
    int divisor = 0;
    for (int h = 0; h < job->n_hosts && job->n_hosts > 1; h++)
        for (int n = ku_job_hosts(job)[h].n_ranks; n;) {
            const int rest = divisor % n;
            divisor = n;
            n = rest;
        }
    return divisor;
}

bool ku_job_hosts_are_even(const struct ku_job *job)
{
    return job->n_hosts <= 1 || ku_job_host_ranks(job) * job->n_hosts == job->n;
}

static bool do_overlap(const uint64_t *a, const uint64_t *b)
{
    uint64_t common = 0;
    for (int i = 0; i < KU_OS_CPU_WORDS; i++)
        common |= a[i] & b[i];
    return common != 0;
}

int ku_hosts_sharing(const struct ku_host_row *row, int n_hosts, int host, const uint64_t *cpus,
                     uint64_t all[KU_OS_CPU_WORDS])
{
    const uint64_t *own = cpus + (size_t)host * KU_OS_CPU_WORDS;
    int n_ranks = 0;
    memset(all, 0, KU_OS_CPU_WORDS * sizeof *all);
    for (int h = 0; h < n_hosts; h++, cpus += KU_OS_CPU_WORDS) {
        const bool is_same = row[h].kernel == row[host].kernel && row[h].kernel != 0;
        if (h != host && !(is_same && do_overlap(own, cpus)))
            continue;
        n_ranks += row[h].n_ranks;
        for (int i = 0; i < KU_OS_CPU_WORDS; i++)
            all[i] |= cpus[i];
    }
    return n_ranks;
}

const char *ku_hosts_engine(const struct ku_host_row *row, int n_hosts, int *host)
{
    for (*host = 0; *host < n_hosts; ++*host)
        if (!row[*host].engine[0] || strcmp(row[*host].engine, row[0].engine) != 0)
            return "";
    *host = -1;
    return row[0].engine;
}

int ku_job_host_of(const struct ku_job *job, int rank)
{
    return ku_segment_host_of(job->seg, rank);
}

int ku_segment_n_hosts(struct ku_segment *seg)
{
    return (int)atomic_load(&seg->n_hosts);
}

int ku_segment_host_of(struct ku_segment *seg, int rank)
{
    const struct ku_host_row *row = ku_segment_hosts(seg);
    int low = 0, high = ku_segment_n_hosts(seg);
    KU_ASSERT(high > 0 && rank >= 0 && rank < seg->n_ranks);
    while (high - low > 1) { /* row[low].first_rank <= rank < row[high].first_rank */
        int middle = low + (high - low) / 2;
        if (row[middle].first_rank <= rank)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void ku_segment_rank_text(struct ku_segment *seg, int rank, char *text, size_t cap)
{
    if (ku_segment_n_hosts(seg) > 1 && rank >= 0 && rank < seg->n_ranks)
        snprintf(text, cap, "rank %d on host %s", rank,
                 ku_segment_hosts(seg)[ku_segment_host_of(seg, rank)].name);
    else
        snprintf(text, cap, "rank %d", rank);
}
