/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_LAUNCH_RANKS_H
#define KU_JOB_LAUNCH_RANKS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/os/process.h"
#include "job/launch.h"
#include "job/pin.h"

/*
 * The ranks of this host, as the process sees them that starts them: the launcher, or the agent of
 * a job of several hosts. It moves no data and owns no thread.
 *
 *     ku_ranks_prepare ─> start ─> loop: reap, signals, ku_ranks_check ─> release
 *
 * When this process dies, the kernel sends SIGKILL to the ranks (PDEATHSIG). Their children are
 * killed by the guard: it blocks in a read on a pipe whose only other end this process holds, and
 * on end of file it kills the ranks' process group. A guard that was killed is replaced.
 *
 * A rank fails if it ends with a code other than 0, unless it ended by the signal that asked the
 * job to stop. Ranks of kumi print the reason for a code of docs/reference/exit-codes.md
 * themselves. For other programs the first rank that failed is named, and the others are counted,
 * unless a rank has set and printed another root cause.
 */
struct ku_ranks {
    const struct ku_job_client *client;
    char *const *argv;
    int (*fn)(void *arg);
    void *arg;
    int n, n_alive, threads;
    enum ku_pinning pinning; /* KU_PIN_AUTO: as KUMI_PIN says */
    int is_kumi;             /* argv is kumi itself */

    /* The host in its job; one host: first_rank 0, n_job == n, n_hosts 1 */
    int first_rank, n_job, host_index, n_hosts;
    uint64_t world_id;  /* 0: that of the segment */
    const char *host;   /* in messages */
    int pretends;       /* 1: ranks get KUMI_HOST, one machine acts as several hosts */
    const char *master; /* MASTER_ADDR */
    const char *root;   /* KUMI_RENDEZVOUS */
    const char *secret; /* KUMI_SECRET, 64 hex digits */
    char *const *env;   /* "NAME=value" for each rank, NULL-terminated; NULL: none */
    int port;           /* MASTER_PORT */
    int (*std)[2];      /* stdout and stderr of each rank; NULL: those of this process */

    /*
     * Report an error of the host, this thread's record, instead of printing it; NULL: print.
     * is_stop: a rank ended by a stop signal.
     */
    void (*say)(struct ku_ranks *ranks, int is_stop);
    void (*reaped)(struct ku_ranks *ranks, int rank); /* NULL: nothing */
    void *owner;

    pid_t *pid;                   /* 0: has ended */
    int *ended;                   /* exit code of a rank that ended by itself; 0: none, or 0 */
    int dying;                    /* blamed, but not reaped yet; -1: none */
    pid_t group, launcher, guard; /* guard 0: none */
    struct ku_segment *seg;
    int segment_fd, guard_fd, exec_fd[2];
    sigset_t waited, old;
    int code;              /* exit code of the first failure that was seen */
    int second_signal;     /* that ended the job; 0: none */
    int n_failed, n_named; /* ranks that failed before kill_ns; 1: a failure was printed */
    bool is_unnamed;       /* a rank failed, and the root cause is that of another process */
    /*
     * A rank ended by a signal that it was asked to stop by. The others may take their time.
     */
    int is_stopped;
    struct ku_stops stops;
    int64_t kill_ns;
    struct ku_pin *pin;
};

/* Block the signals that the loop takes; first of all calls. ku_ranks_unblock undoes it. */
void ku_ranks_block(struct ku_ranks *ranks);
void ku_ranks_unblock(struct ku_ranks *ranks);
/* Make the segment and the ranks' share of cores. Errors: KUMI_EINVAL (n), ENOMEM, ESTORAGE. */
KU_STATUS ku_ranks_prepare(struct ku_ranks *ranks);
/* Fork guard and ranks; returns when every rank runs its program. Errors: KUMI_EINVAL, ENOMEM. */
KU_STATUS ku_ranks_start(struct ku_ranks *ranks);
/*
 * Take note of ranks that have ended.
 *
 *   first   si_pid of a SIGCHLD: the first of several that have ended since; 0: none
 */
void ku_ranks_reap(struct ku_ranks *ranks, pid_t first);
/* A stop signal: the first asks the ranks to stop, a second one ends them (ku_stops_take). */
void ku_ranks_signal(struct ku_ranks *ranks, int sig);
/* End them now, with code 128 + sig. */
void ku_ranks_kill(struct ku_ranks *ranks, int sig);
/* The job has failed, by rank `culprit` or -1: the ranks learn the cause, and end within 0.5 s. */
void ku_ranks_end(struct ku_ranks *ranks, const struct kumi_error *error, int culprit);
/* At least every 50 ms: look for dead ranks and a root cause, and kill what should have ended. */
void ku_ranks_check(struct ku_ranks *ranks);
/*
 * The exit code of the job, as far as this host knows: that of the first rank that failed by
 * itself, where a rank died; else of the root cause. A rank that ends because another one has
 * failed does not count, whichever was reaped first.
 */
int ku_ranks_code(const struct ku_ranks *ranks);
/* Kill what is left after a failure, a signal or is_killed, and free everything. */
void ku_ranks_release(struct ku_ranks *ranks, int is_killed);

/* A free port of the loopback interface, for programs that open their own connection there. */
int ku_launch_pick_port(void);
/*
 * Refuse -n, -H or --nnodes in an environment that has a job already.
 *
 *   n, n_hosts   of the job to be started. With n_hosts > 1 another launcher may start one launcher
 *                per host.
 */
KU_STATUS ku_launch_check_env(int n, int n_hosts);

#endif
