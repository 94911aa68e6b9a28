/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/consensus.h"

#include "base/err.h"
#include "comm/coll.h"

int ku_agree_max(struct ku_job *job, int64_t *word)
{
    int64_t most = *word;
    if (job->n == 1)
        return KUMI_OK;
    struct ku_coll coll = {.kind = KU_COLL_ALL_REDUCE,
                           .dtype = KUMI_I64,
                           .wire = KUMI_I64,
                           .reduce = KUMI_MAX,
                           .name = "agree",
                           .in = &most,
                           .out = word,
                           .count = 1};
    return ku_coll_run(job->world, &coll);
}

int ku_agree_sum(struct ku_job *job, int64_t *word, int64_t n)
{
    if (job->n == 1)
        return KUMI_OK;
    struct ku_coll coll = {.kind = KU_COLL_ALL_REDUCE,
                           .dtype = KUMI_I64,
                           .wire = KUMI_I64,
                           .reduce = KUMI_SUM,
                           .name = "agree",
                           .in = word,
                           .out = word,
                           .count = n};
    return ku_coll_run(job->world, &coll);
}

int ku_agree_local(struct ku_job *job, int status)
{
    return status < 0 && job->n > 1 ? ku_job_fail(job) : status;
}

int ku_agree(struct ku_job *job, int status)
{
    if (job->n == 1)
        return status;
    if (status < 0) /* the others learn it in their next wait */
        return ku_job_fail(job);
    int64_t word = 0;
    return ku_agree_max(job, &word);
}

static int broadcast(struct ku_comm *comm, void *data, size_t bytes)
{
    struct ku_coll coll = {.kind = KU_COLL_BROADCAST,
                           .dtype = KUMI_U8,
                           .wire = KUMI_U8,
                           .name = "agree",
                           .in = data,
                           .out = data,
                           .count = (int64_t)bytes};
    return ku_coll_run(comm, &coll);
}

int ku_agree_bytes(struct ku_job *job, void *data, size_t bytes)
{
    return job->n == 1 ? KUMI_OK : broadcast(job->world, data, bytes);
}

int ku_agree_equal(struct ku_job *job, struct ku_comm *comm, const char *what, uint64_t hash)
{
    struct {
        uint64_t hash;
        int64_t rank;
    } first = {hash, job->rank};
    int64_t differs = -1; /* the rank, and the first rank of its comm, as one number */
    KU_TRY(broadcast(comm, &first, sizeof first));
    if (first.hash != hash)
        differs = (int64_t)job->rank * job->n + first.rank;
    KU_TRY(ku_agree_max(job, &differs));
    if (differs < 0)
        return KUMI_OK;
    return KU_ERR(KUMI_ENUMERIC,
                  "replicas differ: %s: rank %lld differs from rank %lld; the memory of the "
                  "machine or the program is faulty",
                  what, (long long)(differs / job->n), (long long)(differs % job->n));
}

int ku_agree_worst(struct ku_job *job, int status)
{
    struct kumi_error error = *ku_err_get();
    /* among equal statuses the highest rank wins */
    int64_t word = -(int64_t)status * job->n + job->rank;
    if (job->n == 1)
        return status;
    if (status == KUMI_OK)
        word = 0;
    KU_TRY(ku_agree_max(job, &word));
    if (word == 0)
        return KUMI_OK;
    struct ku_coll coll = {.kind = KU_COLL_BROADCAST,
                           .dtype = KUMI_U8,
                           .wire = KUMI_U8,
                           .name = "agree",
                           .root = (int)(word % job->n),
                           .in = &error,
                           .out = &error,
                           .count = (int64_t)sizeof error};
    KU_TRY(ku_coll_run(job->world, &coll));
    return ku_err_put(&error);
}
