/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_RUN_RUN_H
#define KU_TRAIN_RUN_RUN_H

#include "job/job.h"
#include "kumi/run.h"

/*
 * A training run: what `kumi train` adds to the trainer (train/trainer.h).
 *
 *     run_ranks.c   joins the job, starts threads as ranks
 *     run.c         prepare, loop over steps, finish         rundir.c   directory and its lock
 *     report.c      step lines, header                       metrics.c  metrics.jsonl
 *     profile.c     time per op of a step                    summary.c  summary.json
 *     nonfinite.c   names the first gradient that is not finite
 */

/*
 * Run one rank, a process or a thread, in a job that the caller joins and leaves.
 *
 *   heeds_signals   stop signals of the process end the run with its state saved
 */
KU_STATUS ku_run_rank(struct ku_job *job, int heeds_signals,
                      const struct kumi_train_options *options, struct kumi_train_result *result);

/* Bytes of a run directory's path. */
enum { KU_RUN_PATH_BYTES = 512 };

#endif
