/* SPDX-License-Identifier: Apache-2.0 */
/* What the root checks before it tells the hosts of each other. No I/O. */
#include "base/err.h"
#include "base/version.h"
#include "job/control/private.h"

#include <stdio.h>
#include <string.h>

void ku_row_own(const struct ku_control *c, struct ku_join_row *j)
{
    *j = (struct ku_join_row){.n_ranks = c->opts.n,
                              .segment_abi = KU_SEGMENT_ABI,
                              .is_pretended = c->opts.is_pretended,
                              .row = {.first_rank = c->seg->first_rank,
                                      .n_ranks = c->seg->n_local,
                                      .port = c->address.port,
                                      .job_id = c->seg->job_id,
                                      .kernel = ku_os_kernel()}};
    snprintf(j->version, sizeof j->version, "%s", c->opts.version ? c->opts.version : ku_version());
    memcpy(j->row.name, c->name, sizeof j->row.name);
    memcpy(j->row.engine, c->opts.engine, sizeof j->row.engine);
    memcpy(j->row.address, c->address.ip, sizeof j->row.address);
}

int ku_row_check(const struct ku_join_row *j, const struct ku_join_row *first)
{
    const int last = j->row.first_rank + j->row.n_ranks - 1;
    if (strcmp(j->version, first->version) != 0 || j->segment_abi != first->segment_abi)
        return KU_ERR(KUMI_EINVAL,
                      "join: host %s runs kumi %s (interface %u), host %s kumi %s (%u); use one "
                      "version on all hosts",
                      first->row.name, first->version, first->segment_abi, j->row.name, j->version,
                      j->segment_abi);
    if (j->n_ranks != first->n_ranks)
        return KU_ERR(
            KUMI_EINVAL,
            "join: host %s was told of %d ranks in the job, host %s of %d; set WORLD_SIZE "
            "equally on all hosts",
            first->row.name, first->n_ranks, j->row.name, j->n_ranks);
    if (last >= j->n_ranks)
        return KU_ERR(KUMI_EINVAL, "join: host %s has ranks %d to %d, but the job has %d",
                      j->row.name, j->row.first_rank, last, j->n_ranks);
    return 0;
}

/* "rank 3", "ranks 4 to 7" */
static const char *ranks_text(int first, int end, char text[48])
{
    if (end - first == 1)
        snprintf(text, 48, "rank %d", first);
    else
        snprintf(text, 48, "ranks %d to %d", first, end - 1);
    return text;
}

static int check_reach(const struct ku_join_row *row, int n)
{
    char text[KU_ADDRESS_TEXT];
    for (int i = 0; i < n; i++) {
        struct ku_os_address a = {0};
        const struct ku_join_row *other = &row[i ? 0 : n - 1];
        memcpy(a.ip, row[i].row.address, sizeof a.ip);
        if (row[i].is_pretended || !ku_address_is_loopback(&a) ||
            strcmp(row[i].row.name, other->row.name) == 0)
            continue;
        return KU_ERR(
            KUMI_EINVAL,
            "join: host %s gives the loopback address %s, which host %s cannot reach; set "
            "KUMI_INTERFACE, or give the root by its address in the network (KUMI_HOST "
            "lets one machine act as several hosts)",
            row[i].row.name, ku_address_print(&a, text), other->row.name);
    }
    return 0;
}

int ku_rows_check(struct ku_join_row *row, int n, int n_ranks, bool is_late, int64_t timeout_ns)
{
    char missing[48];
    int end = 0; /* ranks before it are there */
    KU_ASSERT(n >= 1);
    for (int i = 0; i <= n; i++) {
        const int first = i < n ? row[i].row.first_rank : n_ranks;
        if (first < end) {
            const int last = row[i].row.first_rank + row[i].row.n_ranks;
            return KU_ERR(
                KUMI_EINVAL,
                "join: hosts %s and %s both have %s; start every rank once, numbered host "
                "by host (mpirun --map-by slot, srun -m block)",
                row[i - 1].row.name, row[i].row.name,
                ranks_text(first, end < last ? end : last, missing));
        }
        if (first > end && is_late)
            return KU_ERR(KUMI_ETIMEDOUT,
                          "join: %s did not come within %.3g s (%d host%s did: %s%s%s); check that "
                          "all hosts were started and reach the root",
                          ranks_text(end, first, missing), (double)timeout_ns * 1e-9, n,
                          n == 1 ? "" : "s", row[0].row.name, n > 1 ? " to " : "",
                          n > 1 ? row[n - 1].row.name : "");
        KU_ASSERT(first == end || is_late);
        end = i < n ? first + row[i].row.n_ranks : end;
    }
    return check_reach(row, n);
}
