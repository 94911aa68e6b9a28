/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_RUN_RUN_H
#define KU_TRAIN_RUN_RUN_H

#include "job/job.h"
#include "kumi/run.h"
#include "train/remote_update.h"

/*
 * A training run: what `kumi train` adds to the trainer (train/trainer.h).
 *
 *     run_ranks.c   joins the job, starts threads as ranks
 *     run.c         prepare, loop over steps, finish         rundir.c   directory and its lock
 *     report.c      step lines, header                       metrics.c  metrics.jsonl
 *     profile.c     time per op of a step                    summary.c  summary.json
 *     worker.c      a worker of a parameter server, and both sides in one process
 *     nonfinite.c   names the first gradient that is not finite
 */

/* What makes a rank a server of a parameter server: ranks of its job are the servers. */
struct ku_run_server {
    int n_workers;
    struct ku_remote_engine_opts engine;
    /*
     * The transport serves this engine until detach, which returns when no worker calls any more.
     * numerics: JSON for `connect` (train/remote_update.h).
     */
    int (*attach)(void *ctx, struct ku_remote_engine *e, const char *numerics);
    void (*detach)(void *ctx, struct ku_remote_engine *e);
    void *ctx;
};
/*
 * Run one rank, a process or a thread, in a job that the caller joins and leaves.
 *
 *   server          NULL: the rank trains; else it is a server
 *   heeds_signals   stop signals of the process end the run with its state saved
 */
KU_STATUS ku_run_rank(struct ku_job *job, int heeds_signals,
                      const struct kumi_train_options *options, const struct ku_run_server *server,
                      struct kumi_train_result *result);

/*
 * Run a worker of a parameter server until its servers end the training.
 *
 *   job       of one rank
 *   remote    of the worker
 *
 * Errors: those of the link; KUMI_EMISMATCH.
 */
KU_STATUS ku_run_worker(struct ku_job *job, const struct kumi_train_options *options, int n_workers,
                        const struct ku_remote_opts *remote, const struct ku_remote_link *link);

/*
 * Train with a parameter server whose workers and servers are threads of this process.
 *
 *   opts   of their jobs
 */
KU_STATUS ku_run_in_process(const struct kumi_train_options *options,
                            const struct ku_job_opts *opts, int n_workers, int n_servers,
                            const struct ku_remote_engine_opts *engine,
                            struct kumi_train_result *result);

/* Bytes of a run directory's path. */
enum { KU_RUN_PATH_BYTES = 512 };

#endif
