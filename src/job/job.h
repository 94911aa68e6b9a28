/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_JOB_H
#define KU_JOB_JOB_H

#include <stdbool.h>

#include "base/err.h"
#include "job/segment.h"

struct ku_comm;
struct ku_comm_rank;

/*
 * The job: how ranks start, watch each other and fail together. It moves no tensors; that is the
 * client's part (src/comm).
 *
 *     launch.c       starts ranks, forwards signals, reports the first failure
 *     launchers.c    reads the environment of kumi, torchrun, mpirun or srun
 *     rendezvous.c   connects the ranks of a host by Unix sockets
 *     segment.c      the control segment: states, root cause, flight recorder
 *     service_thread.c      one thread per rank: life mutex, stop signals
 *     job_fault.c        detects dead ranks; the first error becomes the root cause of all ranks
 *     hosts.c        the table of hosts
 *     control/       the hosts find each other by TCP and fail together (control.h)
 *     pin.c          binds ranks to cores
 *
 * States of a rank: ABSENT ─> JOINED ─> LEAVING ─> LEFT. A rank that calls exit() before LEFT is
 * EXITED. One whose life mutex is free in JOINED or LEAVING is DIED.
 */

/* All-zero means defaults. */
struct ku_job_opts {
    int64_t timeout_ns;      /* max time without progress of an awaited rank; default 600 s */
    int64_t join_timeout_ns; /* default 60 s */
    /* runnable threads of this rank; decides between spinning and sleeping; default 1 */
    int threads;
    const char *transport; /* "auto" (default), "shm", "thread"; between hosts "tcp", "mpi" */
    /* "delay=20ms,kill=R@N", as docs/internals/adding-a-transport.md; default: KUMI_CHAOS */
    const char *chaos;
    /*
     * Ranks as threads only: ranks of each pretended host, as "2,2" or "1,3". NULL: one host. Each
     * has a control segment and a bridge of its own; they meet over loopback TCP.
     */
    const char *hosts;
};

/*
 * One rank's view of the job. One thread at a time may use it. Jobs of one process share no state.
 * Ranks are numbered host by host: rank == first_rank + local_rank.
 */
struct ku_job {
    int rank, n;             /* in the job */
    int local_rank, local_n; /* on this host */
    int host, n_hosts;       /* index in ku_job_hosts, and their number */
    int first_rank;          /* of this host */
    const char *launcher;    /* "kumi", "torchrun", "openmpi", …, "none" */
    struct ku_segment *seg;
    struct ku_comm *world;     /* the client's: communicator of all ranks */
    struct ku_comm *local;     /* the client's: of this host's ranks; with one host the world */
    struct ku_comm_rank *comm; /* the client's: its state of this rank */
    struct ku_job_private *priv;
};

/*
 * Enter the job that the environment describes: through the launcher's control descriptor, or
 * through another launcher's variables. Without either the job has one rank. The ranks of a host
 * meet first; then its first rank joins the other hosts (control.h).
 *
 *   opts   NULL: defaults
 *   job    set on success; ku_job_close frees it
 *
 * Starts the service thread, which holds the life mutex and receives signals. It moves no data. The
 * rank's state stays KU_RANK_ABSENT: the client sets it, and JOINED before the first collective.
 *
 * Blocks: at most join_timeout_ns.
 * Errors: KUMI_EINVAL (variables), EPEER, ETIMEDOUT (names the missing rank), ENOMEM.
 */
KU_STATUS ku_job_open(const struct ku_job_client *client, const struct ku_job_opts *opts,
                      struct ku_job **job);
/*
 * Stop the service thread and free the job. Takes NULL. Not collective.
 */
void ku_job_close(struct ku_job *job);

/*
 * Run fn on n ranks that are threads of this process, each with its own job. The function opens the
 * job before fn and closes it after. A rank whose fn fails has ended (KU_RANK_EXITED), unless it
 * has left. Returns 0 when every fn returned 0; else the root cause, or without one the status of
 * the lowest failed rank.
 */
KU_STATUS ku_job_threads(const struct ku_job_client *client, int n, const struct ku_job_opts *opts,
                         int (*fn)(struct ku_job *job, void *arg), void *arg);

/*
 * Report progress: once per tile, chunk or MiB read; ~1 ns. Deadlines run only while no progress is
 * reported.
 */
static inline void ku_job_tick(struct ku_job *job)
{
    struct ku_rank_line *line = ku_segment_line(job->seg, job->local_rank);
    /* The line has one writer, so relaxed load and store replace a locked increment. */
    uint64_t now = atomic_load_explicit(&line->progress, memory_order_relaxed);
    atomic_store_explicit(&line->progress, now + 1, memory_order_relaxed);
}

/* The union of the CPUs on which the host's ranks may run, one bit each. */
void ku_job_cpus(const struct ku_job *job, uint64_t mask[KU_OS_CPU_WORDS]);
int ku_cpus_count(const uint64_t mask[KU_OS_CPU_WORDS]);
/* Number of CPUs in that union, limited by the cgroup's quota. */
int ku_job_n_cpus(const struct ku_job *job);

/*
 * From now on SIGINT, SIGTERM, SIGHUP and SIGUSR1 set the job's stop flag, also those that were
 * blocked and are pending. Call it before the process starts further threads.
 */
KU_STATUS ku_job_heed_signals(struct ku_job *job);
/*
 * The signal that asked the job to stop; 0 if none. Reduce it together with the loss, so that all
 * ranks act at the same step.
 */
int ku_job_stop(const struct ku_job *job);

/*
 * End the job with this thread's error record. The first error becomes the root cause and is
 * printed once; all other ranks leave their waits with it. Later errors are not printed. Returns
 * the root cause's status.
 */
KU_STATUS ku_job_fail(struct ku_job *job);
/* 1 once the job has a root cause. */
bool ku_job_has_failed(const struct ku_job *job);
/*
 * Wait at most timeout_ns for a root cause, and copy it into this thread's error record. For a rank
 * that saw a connection close: the cause arrives by another way within KU_CAUSE_NS, or there is
 * none. Returns its status; 0: none came.
 */
enum { KU_CAUSE_NS = 200 * 1000 * 1000 };
KU_STATUS ku_job_await_cause(struct ku_job *job, int64_t timeout_ns);

#endif
