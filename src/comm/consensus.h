/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_CONSENSUS_H
#define KU_COMM_CONSENSUS_H

#include "comm/job.h"

/* Small decisions that all ranks of a job take together. Collective over the job; errors: the job's
 * root cause. */

/*
 * status is what this rank's part of something came to. 0 on all ranks if it was 0 on all; else the
 * job is over: a rank that failed reports its error, and everybody returns the root cause.
 */
int ku_agree(struct ku_job *job, int status);
/* For what only this rank saw: its failure ends the job; a success asks nobody. Not collective. */
int ku_agree_local(struct ku_job *job, int status);
/* The worst of everybody's status, on everybody and with its message, without ending the job: a
 * full disk is no reason to stop. Collective. */
int ku_agree_worst(struct ku_job *job, int status);
/* The greatest of everybody's words. */
int ku_agree_max(struct ku_job *job, int64_t *word);
/* The sums of everybody's words, exact: [n]. */
int ku_agree_sum(struct ku_job *job, int64_t *word, int n);
/* Rank 0's bytes on every rank. */
int ku_agree_bytes(struct ku_job *job, void *data, size_t bytes);

/* Everybody's bytes are equal (KUMI_ENUMERIC names `what` and the rank that differs from rank 0).
 */
int ku_agree_equal(struct ku_job *job, const char *what, const void *data, size_t bytes);

#endif
