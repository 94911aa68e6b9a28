/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_PRIVATE_H
#define KU_COMM_PRIVATE_H

#include "comm/coll.h"
#include "comm/sum.h"
#include "comm/transport.h"

/* What the ranks of one process share: mappings. Ranks as threads have one between them. */
struct ku_host {
    struct ku_segment *seg;
    int is_threads, n_arenas;             /* ids in use are below n_arenas */
    struct ku_arena arena[KU_MAX_ARENAS]; /* by id; base NULL: free. Threads: written by local rank
                                             0 between two barriers */
};

/* Faults to inject (KUMI_CHAOS). */
struct ku_chaos {
    int is_on;
    int64_t delay_ns, jitter_ns; /* per flag and message */
    int drop_rank, corrupt_rank, kill_rank;
    int64_t drop_at, corrupt_at, kill_at; /* the rank's n-th arrival, from 1; 0 never */
    uint64_t seed;
    int64_t n_arrivals;
};

/* Message numbers of the channels of one slot, by local rank; they run on when the slot gets
 * another comm. */
struct ku_tickets {
    uint64_t *sent, *send_done, *received, *recv_done;
};

struct ku_service; /* the thread that holds the life word */
struct kumi_work;

struct ku_job_private {
    struct ku_host *host;
    struct ku_chaos chaos;
    const struct ku_transport *transport;
    const struct ku_sum_kernels *kernels;
    struct ku_flight *flight;
    struct ku_rank_line *line;
    int64_t timeout_ns;
    int threads, may_spin; /* of the rank; every runnable thread of the host has a core */
    int64_t budget_bytes;  /* how much MOVE may still move in this call; < 0: no limit */
    int has_moved;         /* something advanced since this was cleared */
    struct ku_comm *comms; /* all of this rank, by priv->next */
    int n_started;
    uint64_t used_slots,
        slot_high; /* high: beyond every number that a flag of any slot of this rank holds */
    struct ku_tickets tickets[KU_SLOTS];
    uint64_t staged_bytes;
    int64_t moved_ns;
    uint64_t moved_bytes;
    int *socket; /* local rank 0: to each other rank; others: [0], to rank 0; -1 none */
    int n_sockets;
    struct ku_service *service;
    struct ku_exit_cell *exit_cell;
    struct kumi_work *free_works;
    int n_public_works;
};

struct ku_comm_private {
    struct ku_flags *flags; /* [n_local] of this slot */
    uint64_t seq;           /* of the last started work */
    uint64_t n_hidden;      /* works among them that no caller knows of */
    uint64_t n_pieces;      /* staged pieces so far */
    uint64_t done_seen;     /* every member's `done` is at least this */
    uint64_t posted;        /* the last work that I finished without waiting for anybody */
    uint64_t checked;       /* works of which all members' fingerprints agreed with mine */
    struct ku_work *head, *tail, *p2p;
    uint32_t free_chunks; /* bit per chunk of my stage */
    struct ku_comm *next;
};

/* job.c */
int ku_job_new(struct ku_host *host, int rank, int n, const struct ku_job_opts *opts,
               struct ku_job **job);
void ku_job_free(struct ku_job *job);
/* fault.c */
struct ku_waiter {
    int n_yields, awaited;
    uint32_t n_spins,
        looks; /* looks, progress: of the awaited rank, when it began to stand still */
    uint64_t progress;
    int64_t spin_ns, stood_ns; /* when spinning began; how long the awaited rank stood still */
    int64_t slept_ns;          /* since the last look around */
};
/* Rest until something may have changed. Returns 0, or the root cause. `work` is what is waited for
 * (NULL: a peer's socket). */
int ku_job_idle(struct ku_job *job, struct ku_waiter *waiter, struct ku_work *work);
/* Looks at the abort word, life words and states. 0, or the root cause. */
int ku_job_look(struct ku_job *job, struct ku_work *work);
/* An exit code of docs/reference/exit-codes.md: who ends with one has printed its line. */
int ku_exit_is_ours(int code);
/* Decides "rank died: rank <local>: <how>; its last operation: ..", with this status, which it
 * returns. */
int ku_err_death(struct ku_segment *seg, int local, int status, const char *how);
/* This thread's record becomes the root cause, if none is there; prints it then. Returns the root
 * cause's status. */
int ku_job_raise(struct ku_job *job, int culprit);
/* 0, or the root cause put into this thread's record. */
int ku_job_root(struct ku_job *job);
/* work.c */
int ku_job_advance(struct ku_job *job);
void ku_work_describe(const struct ku_work *work, char *text, size_t cap);
/* move.c: the part of a work that touches data */
int ku_move_step(struct ku_work *work); /* 0 done, 1 budget spent */
void ku_move_fill(struct ku_work *work);
void ku_move_drain(struct ku_work *work);
void ku_move_inline(struct ku_work *work);
void ku_move_payload(struct ku_work *work, struct ku_entry *entry);
void ku_move_publish(struct ku_work *work);
int ku_move_counts(struct ku_work *work);
int64_t ku_move_block_count(const struct ku_work *work,
                            int rank); /* elements of a rank's block in a public call */
/* comm.c */
int ku_comm_world(struct ku_job *job);
/* ku_coll_run for a collective that is part of another call: messages do not count it. */
int ku_comm_run_own(struct ku_comm *comm, const struct ku_coll *coll);
void ku_comm_free(struct ku_comm *comm);
/* chaos.c */
int ku_chaos_parse(const char *text, struct ku_chaos *chaos);
/* launchers.c */
struct ku_env_job {
    const char *launcher;
    int rank, n, local_rank, local_n, control_fd; /* -1 */
    uint64_t job_id;
};
/* What the environment says. launcher "none": alone. KUMI_EINVAL for incomplete or impossible
 * values. */
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
