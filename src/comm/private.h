/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_PRIVATE_H
#define KU_COMM_PRIVATE_H

#include "comm/coll.h"
#include "comm/sum.h"
#include "comm/transport.h"

/*
 * Mappings that the ranks of one process share. Ranks as threads have one ku_host together.
 */
struct ku_host {
    struct ku_segment *seg;
    int is_threads, n_arenas; /* arena ids in use are below n_arenas */
    /*
     * Indexed by id; base NULL: free. With threads, local rank 0 writes it between two barriers.
     */
    struct ku_arena arena[KU_MAX_ARENAS];
};

/* Faults to inject (KUMI_CHAOS) */
struct ku_chaos {
    int is_on;
    int64_t delay_ns, jitter_ns; /* per flag and message */
    int drop_rank, corrupt_rank, kill_rank;
    int64_t drop_at, corrupt_at, kill_at; /* at the rank's n-th arrival, from 1; 0: never */
    uint64_t seed;
    int64_t n_arrivals;
};

/*
 * Sequence numbers of the messages of one slot, indexed by local rank. They continue when another
 * comm takes the slot.
 */
struct ku_tickets {
    uint64_t *sent, *send_done, *received, *recv_done;
};

struct ku_service; /* thread that holds the life mutex */
struct kumi_work;

struct ku_job_private {
    struct ku_host *host;
    struct ku_chaos chaos;
    const struct ku_transport *transport;
    const struct ku_sum_kernels *kernels;
    struct ku_flight *flight;
    struct ku_rank_line *line;
    int64_t timeout_ns;
    /* threads of this rank; 1: every runnable thread of the host has a core */
    int threads, may_spin;
    int64_t budget_bytes;  /* bytes that KU_STEP_MOVE may still move in this call; < 0: no limit */
    int has_moved;         /* a work advanced since this was cleared */
    struct ku_comm *comms; /* all comms of this rank, linked by priv->next */
    int n_started;
    /* slot_high: above every number in this rank's flags, in any slot */
    uint64_t used_slots, slot_high;
    struct ku_tickets tickets[KU_SLOTS];
    uint64_t staged_bytes;
    int64_t moved_ns;
    uint64_t moved_bytes;
    int *socket; /* local rank 0: one per rank; others: [0], to rank 0; -1: none */
    int n_sockets;
    struct ku_service *service;
    struct ku_exit_cell *exit_cell;
    struct kumi_work *free_works;
    int n_public_works;
};

struct ku_comm_private {
    struct ku_flags *flags; /* [n_local] of this slot */
    uint64_t seq;           /* number of the last started work */
    uint64_t n_hidden;      /* internal works among them, which messages do not count */
    uint64_t n_pieces;      /* staged pieces so far */
    uint64_t done_seen;     /* every member's `done` is at least this */
    uint64_t posted;        /* last work that this rank finished without waiting (KU_PATH_POSTED) */
    uint64_t checked;       /* last work whose fingerprints were equal on all members */
    struct ku_work *head, *tail, *p2p;
    uint32_t free_chunks; /* one bit per chunk of this rank's stage */
    struct ku_comm *next;
};

/* job.c */
int ku_job_new(struct ku_host *host, int rank, int n, const struct ku_job_opts *opts,
               struct ku_job **job);
void ku_job_free(struct ku_job *job);
/* fault.c: state of one wait */
struct ku_waiter {
    int n_yields, awaited;
    /* `looks` and `progress` are those of the awaited rank when it stopped making progress. */
    uint32_t n_spins, looks;
    uint64_t progress;
    int64_t spin_ns, stood_ns; /* start of spinning; time without progress of the awaited rank */
    int64_t slept_ns;          /* since the last check of the other ranks */
};
/*
 * Wait until something may have changed. `work` is the awaited one (NULL: a socket). Returns 0, or
 * the root cause.
 */
int ku_job_idle(struct ku_job *job, struct ku_waiter *waiter, struct ku_work *work);
/*
 * Check the abort flag and the other ranks' life mutexes and states. Returns 0, or the root cause.
 */
int ku_job_look(struct ku_job *job, struct ku_work *work);
/*
 * 1 for an exit code of docs/exit-codes.md: a rank of kumi prints its error before it ends with
 * one.
 */
int ku_exit_is_ours(int code);
/*
 * Record "rank died: rank <local>: <how>; its last operation: .." with this status. Returns it.
 */
int ku_err_death(struct ku_segment *seg, int local, int status, const char *how);
/*
 * Make this thread's error record the root cause and print it, unless there is a root cause.
 * Returns the root cause's status.
 */
int ku_job_raise(struct ku_job *job, int culprit);
/*
 * Copy the root cause into this thread's error record. Returns its status, or 0 without one.
 */
int ku_job_root(struct ku_job *job);
/* work.c */
int ku_job_advance(struct ku_job *job);
void ku_work_describe(const struct ku_work *work, char *text, size_t cap);
/* move.c: the part of a work that moves data */
int ku_move_step(struct ku_work *work); /* 0: done, 1: budget used up */
void ku_move_fill(struct ku_work *work);
void ku_move_drain(struct ku_work *work);
void ku_move_inline(struct ku_work *work);
void ku_move_payload(struct ku_work *work, struct ku_entry *entry);
void ku_move_publish(struct ku_work *work);
int ku_move_counts(struct ku_work *work);
/* Elements of a rank's block in a public call */
int64_t ku_move_block_count(const struct ku_work *work, int rank);
/* comm.c */
int ku_comm_world(struct ku_job *job);
/* ku_coll_run for an internal collective, which the call numbers in messages do not count */
int ku_comm_run_own(struct ku_comm *comm, const struct ku_coll *coll);
void ku_comm_free(struct ku_comm *comm);
/* chaos.c */
int ku_chaos_parse(const char *text, struct ku_chaos *chaos);
/* launchers.c */
struct ku_env_job {
    const char *launcher;
    int rank, n, local_rank, local_n, control_fd; /* -1: none */
    uint64_t job_id;
};
/*
 * Read the launcher's environment variables. Without any the launcher is "none" and n is 1.
 * KUMI_EINVAL for incomplete or impossible values.
 */
int ku_env_job(struct ku_env_job *out);
/* rendezvous.c */
int ku_rendezvous(const struct ku_env_job *env, int64_t timeout_ns, struct ku_segment **seg,
                  int **sockets, int *n_sockets);
void ku_rendezvous_name(uint64_t job_id, char name[64]);
/* service.c */
int ku_service_start(struct ku_job *job);
void ku_service_stop(struct ku_job *job);
int ku_service_heed(struct ku_job *job);

#endif
