/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_PRIVATE_H
#define KU_JOB_PRIVATE_H

#include "base/err.h"
#include "job/hosts.h"
#include "job/job.h"

struct ku_control;

/*
 * What the ranks of one host that live in one process share: all of them as threads, else one. The
 * bridge is that of the host's first rank; NULL elsewhere, and with one host.
 */
struct ku_host {
    struct ku_segment *seg;
    const struct ku_job_client *client;
    struct ku_control *control;
    int is_threads;
};

struct ku_service; /* thread that holds the life mutex */

struct ku_job_private {
    struct ku_host *host;
    struct ku_flight *flight;
    struct ku_rank_line *line;
    int64_t timeout_ns;
    int threads;
    int *socket; /* local rank 0: one per rank; others: [0], to rank 0; -1: none */
    int n_sockets;
    bool is_shared; /* the hosts met by the client's share */
    struct ku_service *service;
    struct ku_exit_cell *exit_cell;
};

/* job.c */
struct ku_control_opts;
/* The rank's view of a segment, before the hosts have met; no service thread yet. */
KU_STATUS ku_job_new(struct ku_host *host, int local, const struct ku_job_opts *opts,
                     struct ku_job **out);
void ku_job_free(struct ku_job *job);
/*
 * Local rank 0 of a host joins the others as opts say; its other ranks wait for the table and use
 * the time-out alone. At once with one host. A failure becomes the root cause of this host.
 */
KU_STATUS ku_job_meet_hosts(struct ku_job *job, const struct ku_control_opts *opts);

/* job_fault.c */
/*
 * Check the abort flag and the other ranks' life mutexes and states. `awaited` describes what this
 * rank waits for, in messages (NULL: a collective). Returns 0, or the root cause.
 */
KU_STATUS ku_job_look(struct ku_job *job, const char *awaited);
/*
 * Whether a local rank has closed its socket to this one, as at its end. Of two ranks one must be
 * local rank 0.
 */
bool ku_job_has_hung_up(const struct ku_job *job, int local);
/* Raise: rank `rank` of the job left it while this rank waits for it in `awaited`. */
KU_STATUS ku_job_raise_left(struct ku_job *job, int rank, const char *awaited);
/*
 * 1 for an exit code of docs/reference/exit-codes.md: a rank of kumi prints its error before it
 * ends with one.
 */
bool ku_exit_is_ours(int code);
/*
 * Record "rank died: rank <rank>: <how>; its last operation: .." with this status, or in a job of
 * several hosts "rank died: rank <rank> on host <name>: ..". Returns it.
 */
KU_STATUS ku_err_death(struct ku_segment *seg, const struct ku_job_client *client, int local,
                       int status, const char *how);
/*
 * Make this thread's error record the root cause and print it, unless there is a root cause. With
 * several hosts that is decided by the root of the hosts, within 1 s. Returns the root cause's
 * status.
 *
 *   culprit   rank of the job
 */
KU_STATUS ku_job_raise(struct ku_job *job, int culprit);
/*
 * This rank ended inside the job, with an exit code. Those of its host see its state; with several
 * hosts the others learn it now, unless there is a root cause.
 */
void ku_job_tell_end(struct ku_job *job, int code);
/*
 * Copy the root cause into this thread's error record. Returns its status, or 0 without one.
 */
int ku_job_copy_root(struct ku_job *job);
static inline int ku_job_root(struct ku_job *job)
{
    return atomic_load(&job->seg->abort_word) ? ku_job_copy_root(job) : 0;
}
/* launchers.c */
enum { KU_ROOT_BYTES = 288 /* a host name, 253, in brackets, with a port and a range */ };
struct ku_env_job {
    const char *launcher;
    int rank, n;             /* in the job */
    int local_rank, local_n; /* on this host, whose first rank is rank - local_rank */
    int control_fd;          /* -1: none */
    int host_index;          /* among the hosts in the order of their ranks; -1: unknown */
    uint64_t job_id;         /* of the ranks of this host: names their sockets and segment */
    uint64_t world_id;       /* equal on all hosts of the job; 0: the launcher gives none */
    char host_name[KU_HOST_NAME_BYTES]; /* KUMI_HOST, else the system's */
    /* Where hosts meet: "host:port", "[v6]:port", "host:port+16" (16 ports); "": not known */
    char root[KU_ROOT_BYTES];
};
/*
 * Read the launcher's environment variables. Without any the launcher is "none" and n is 1.
 * KUMI_EINVAL for incomplete or impossible values, and for numbers that do not go host by host.
 */
KU_STATUS ku_env_job(struct ku_env_job *out);
/* rendezvous.c: of the ranks of one host. Local rank 0 creates the segment. */
KU_STATUS ku_rendezvous(const struct ku_job_client *client, const struct ku_env_job *env,
                        int64_t timeout_ns, struct ku_segment **seg, int **sockets, int *n_sockets);
enum { KU_SOCKET_NAME_BYTES = 104 };
void ku_rendezvous_name(const struct ku_env_job *env, char name[KU_SOCKET_NAME_BYTES]);
/* service_thread.c */
KU_STATUS ku_service_start(struct ku_job *job);
void ku_service_stop(struct ku_job *job);
KU_STATUS ku_service_heed(struct ku_job *job);
/* For tests: end as if the process was killed, with a bridge that says no goodbye. */
void ku_service_kill(struct ku_job *job);

#endif
