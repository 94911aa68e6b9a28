/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_JOB_H
#define KU_COMM_JOB_H

#include "comm/arena.h"
#include "comm/segment.h"

struct ku_comm;

/* All-zero means defaults. */
struct ku_job_opts {
    int64_t timeout_ns;      /* how long an awaited rank may stand still; default 600 s */
    int64_t join_timeout_ns; /* default 60 s */
    int threads; /* runnable threads of this rank, for the choice between spinning and sleeping;
                    default 1 */
    const char *transport; /* "auto" (default), "shm", "thread" */
    const char *chaos;     /* "delay=20ms,jitter=5ms,drop=R@N,corrupt=R@N,kill=R@N,seed=S"; default:
                              KUMI_CHAOS */
};

/* One rank's view of the job. Used by one thread at a time; no state is shared between jobs of one
 * process. */
struct ku_job {
    int rank, n;             /* in the job */
    int local_rank, local_n; /* on this host */
    const char *launcher;    /* who started us: "kumi", "torchrun", "openmpi", …, "none" */
    struct ku_segment *seg;
    struct ku_comm *world; /* all ranks, slot 0 */
    struct ku_job_private *priv;
};

/*
 * Join the job that the environment describes: the launcher's control descriptor, or another
 * launcher's variables on one host, or alone (n = 1) without either.
 *
 * Collective. Blocks: <= join_timeout_ns. Starts the service thread (life word; signals, if
 * heeded), which moves no data. Errors: KUMI_EINVAL (variables), EPEER, ETIMEDOUT (naming the
 * missing rank), ENOMEM.
 */
int ku_job_join(const struct ku_job_opts *opts, struct ku_job **job);
/* Leave. Collective; takes NULL. Leaving while others wait for this rank is a mismatch there
 * (KUMI_EMISMATCH). */
int ku_job_leave(struct ku_job *job);

/*
 * Run fn on n ranks that are threads of this process, each with its own job (transport `thread`).
 * Returns the first failing rank's status by rank order, or the root cause; 0 when all returned 0.
 * The function joins and leaves for fn; a rank whose fn returns early counts as having left.
 */
int ku_job_threads(int n, const struct ku_job_opts *opts, int (*fn)(struct ku_job *job, void *arg),
                   void *arg);

/* Advance every started work of this rank. ~1 ns without any. Callable between tiles. Returns 0, or
 * the job's root cause. */
int ku_job_progress(struct ku_job *job);
/* "I am alive and getting on": once per tile, chunk or MiB read. ~1 ns. */
static inline void ku_job_tick(struct ku_job *job)
{
    struct ku_rank_line *line = ku_segment_line(job->seg, job->local_rank);
    /* One writer: a plain increment in two relaxed halves, no locked instruction. */
    uint64_t now = atomic_load_explicit(&line->progress, memory_order_relaxed);
    atomic_store_explicit(&line->progress, now + 1, memory_order_relaxed);
}

/* The CPUs that any of the host's ranks may run on, a bit each. */
void ku_job_cpus(const struct ku_job *job, uint64_t mask[KU_OS_CPU_WORDS]);
/* CPUs that the host's ranks have together, each of which may be bound to its own; quotas count. */
int ku_job_n_cpus(const struct ku_job *job);

/* From now on SIGINT, SIGTERM and SIGHUP set the job's stop word; so do those that were blocked and
 * wait. Call before the process starts further threads. */
int ku_job_heed_signals(struct ku_job *job);
/* The signal that asked the job to stop, 0 if none. Cheap; reduce it with the loss so that all
 * ranks act at one step. */
int ku_job_stop(const struct ku_job *job);
void ku_job_ask_stop(struct ku_job *job, int signal);

/* For waits of one's own, at most 50 ms apart: advances this rank's works and looks whether all
 * others are alive. 0, or the job's root cause. */
int ku_job_check(struct ku_job *job);

/*
 * Report this thread's error as the end of the job: if no root cause exists it becomes the root
 * cause, is printed once, and all others leave their waits with it. Nothing is printed if another's
 * was first. Returns the root cause's status.
 */
int ku_job_fail(struct ku_job *job);
/* 1 once the job's root cause was decided (and printed) by somebody. */
int ku_job_has_failed(const struct ku_job *job);

#endif
