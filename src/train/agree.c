/* SPDX-License-Identifier: Apache-2.0 */
#include "train/agree.h"

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

int ku_agree_local(struct ku_job *job, int status)
{
    return status < 0 && job->n > 1 ? ku_job_fail(job) : status;
}

int ku_agree(struct ku_job *job, int status)
{
    if (job->n == 1)
        return status;
    if (status < 0) /* the others learn it where they wait for us */
        return ku_job_fail(job);
    int64_t word = 0;
    return ku_agree_max(job, &word);
}

int ku_agree_bytes(struct ku_job *job, void *data, size_t bytes)
{
    if (job->n == 1)
        return KUMI_OK;
    struct ku_coll coll = {.kind = KU_COLL_BROADCAST,
                           .dtype = KUMI_U8,
                           .wire = KUMI_U8,
                           .name = "agree",
                           .in = data,
                           .out = data,
                           .count = (int64_t)bytes};
    return ku_coll_run(job->world, &coll);
}
