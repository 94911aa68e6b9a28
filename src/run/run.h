/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_RUN_RUN_H
#define KU_RUN_RUN_H

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
 *     run_worker.c      a worker of a parameter server, and both sides in one process
 *     nonfinite.c   names the first gradient that is not finite
 */

/* What a transport is told when workers may begin. Borrowed until attach returns. */
struct ku_run_served {
    struct ku_job *job; /* of the servers */
    struct ku_remote_engine *engine;
    const struct ku_remote_engine_opts *opts; /* of the engine */
    const char *numerics;                     /* JSON for `connect` (train/remote_update.h) */
    const char *out;                          /* directory of the run */
    int64_t timeout_ns;
};
/* What makes a rank a server of a parameter server: ranks of its job are the servers. */
struct ku_run_server {
    int n_workers;
    struct ku_remote_engine_opts engine;
    /*
     * The transport serves this engine until detach, which returns when no worker calls any more.
     * Collective over the servers.
     */
    int (*attach)(void *ctx, const struct ku_run_served *served);
    void (*detach)(void *ctx, struct ku_remote_engine *e);
    /* The checkpoint of update `version` is complete; NULL: nothing. On every server. */
    void (*saved)(void *ctx, int64_t version);
    /* It could not be written, and the run goes on; the error record says why. Likewise. */
    void (*not_saved)(void *ctx, int64_t version);
    /* On server 0, between updates: whether to write a checkpoint now; NULL: never. */
    bool (*wants_saving)(void *ctx);
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

/* What section ps of a configuration says about updates. Errors: those of reading it. */
KU_STATUS ku_run_remote_of(const struct kumi_settings *settings,
                           struct ku_remote_engine_opts *engine);
/* parallel.timeout_s of a configuration. Errors: those of reading it. */
KU_STATUS ku_run_timeout_ns(const struct kumi_settings *settings, int64_t *timeout_ns);
/*
 * Run one server of a parameter server whose transport the caller has, as a rank of the job that
 * the environment describes.
 *
 *   server   with the transport's functions; the rest is read from the configuration
 */
KU_STATUS ku_run_server_rank(const struct kumi_train_options *options, struct ku_run_server *server,
                             struct kumi_train_result *result);
/*
 * Run a worker of a parameter server of n_servers, in this process, over a link that the caller
 * has.
 */
KU_STATUS ku_run_worker_alone(const struct kumi_train_options *options,
                              const struct ku_remote_link *link, int n_servers);
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
