/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_CONSENSUS_H
#define KU_COMM_CONSENSUS_H

#include <stdint.h>

#include "base/err.h"
#include "job/job.h"

/*
 * Small decisions that all ranks of a job take together. All are collective over the job, except
 * ku_agree_local. Errors: the job's root cause.
 */

/*
 * Returns 0 on all ranks if `status` is 0 on all. Else the job ends: a failed rank reports its
 * error, and every rank returns the root cause.
 */
KU_STATUS ku_agree(struct ku_job *job, int status);
/*
 * For an event that only this rank sees: an error ends the job, 0 has no effect. Not collective.
 */
KU_STATUS ku_agree_local(struct ku_job *job, int status);
/*
 * Returns the worst status of all ranks, with its message, on every rank. The job goes on, as after
 * a full disk.
 */
KU_STATUS ku_agree_worst(struct ku_job *job, int status);
/* Maximum of *word over the ranks */
KU_STATUS ku_agree_max(struct ku_job *job, int64_t *word);
/* Exact sums of word[n] over the ranks */
KU_STATUS ku_agree_sum(struct ku_job *job, int64_t *word, int64_t n);
/* Broadcast rank 0's bytes. */
KU_STATUS ku_agree_bytes(struct ku_job *job, void *data, size_t bytes);

struct ku_comm;
/*
 * Compare a hash over the ranks of each `comm`, of which every rank of the job is in one.
 * KUMI_ENUMERIC on all ranks of the job: `what`, a rank that differs from the first rank of its
 * comm, and that rank.
 */
KU_STATUS ku_agree_equal(struct ku_job *job, struct ku_comm *comm, const char *what, uint64_t hash);

#endif
