/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_PRIVATE_H
#define KU_COMM_PRIVATE_H

#include "base/err.h"
#include "base/os/yields.h"
#include "comm/area.h"
#include "comm/coll.h"
#include "comm/far.h"
#include "comm/sum.h"
#include "comm/transport.h"
#include "job/private.h"

/*
 * The arenas of a process. Ranks as threads share one table.
 */
struct ku_arenas {
    int n; /* ids in use are below n */
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
    /* at the rank's n-th arrival, and at its n-th message to another host, from 1; 0: never */
    int64_t drop_at, corrupt_at, kill_at;
    int64_t short_bytes;  /* between hosts: at most so many in one transfer; 0: no limit */
    int64_t double_every; /* every so many connections of tcp are opened twice; 0: none */
    uint64_t seed;
    int64_t n_arrivals, n_posts; /* posts: pieces of messages on this host, for their jitter */
};

/*
 * Sequence numbers of the messages of one slot, indexed by local rank. They continue when another
 * comm takes the slot.
 */
struct ku_p2p_sequences {
    uint64_t *sent, *send_done, *received, *recv_done;
};

struct kumi_work;

/* State of a rank that all its comms share: job->comm */
struct ku_comm_rank {
    struct ku_arenas *arenas;
    struct ku_chaos chaos;
    const struct ku_transport *transport;
    struct ku_net *net; /* to other hosts; NULL: there is one host */
    const struct ku_sum_kernels *kernels;
    /* ranks that share n_cpus CPUs; may_spin: each of their runnable threads has one */
    int n_sharing, n_cpus, may_spin;
    struct ku_yields yields;
    int64_t budget_bytes;  /* bytes that KU_STEP_MOVE may still move in this call; < 0: no limit */
    int has_moved;         /* a work advanced since this was cleared */
    struct ku_comm *comms; /* all comms of this rank, linked by priv->next */
    int n_started;
    /* slot_high: above every number in this rank's flags, in any slot */
    uint64_t used_slots, slot_high;
    struct ku_p2p_sequences sequences[KU_SLOTS];
    uint64_t staged_bytes;
    int64_t moved_ns, looked_ns; /* looked_ns: time of the last check by ku_job_poll; 0: none */
    uint64_t moved_bytes, far_bytes;
    struct kumi_work *free_works;
    int n_works; /* that the caller has: started by kumi_work_start and not given back */
};

struct ku_comm_private {
    struct ku_flags *flags; /* [n_local] of this slot */
    struct ku_flags *own;   /* this rank's among them */
    uint64_t seq;           /* number of the last started work */
    uint64_t n_hidden;      /* internal works among them, which messages do not count */
    uint64_t n_pieces;      /* staged pieces so far */
    uint64_t done_seen;     /* every member's `done` is at least this */
    uint64_t posted;        /* last work that this rank finished without waiting (KU_PATH_POSTED) */
    uint64_t checked;       /* last work whose fingerprints were equal on all members */
    struct ku_far *far;     /* members on other hosts; NULL: none */
    struct ku_work *head, *tail, *p2p;
    struct ku_work **p2p_end; /* where the next message is linked */
    uint32_t free_chunks;     /* one bit per chunk of this rank's stage */
    struct ku_comm *next;
};

/* wait.c: a chain of waits beyond this host, whose ranks are asked one after the other */
struct ku_far_chain {
    int first, asked; /* where it begins, -1: on this host; the rank whose answer comes next */
    int n_asked;      /* ranks before that one; the max: of a cycle, whose first rank counts */
    bool has_answer;
    bool is_leaving;     /* the first rank is in kumi_comm_leave */
    int64_t answered_ns; /* stood_ns when the last answer came */
    int64_t left_ns;     /* waited since is_leaving, without a byte */
    /* Of the end that was found last: the rank that it waits for, -1: none; its last operation */
    int end_awaits;
    uint32_t end_stopped_pid; /* as ku_progress.stopped_pid */
    char end_last[160];
};
/* State of one wait */
struct ku_waiter {
    int n_yields, awaited;
    /* `looks` and `progress` are those of the awaited rank when it stopped making progress. */
    uint32_t n_spins, looks;
    uint64_t progress;
    int64_t spin_ns, stood_ns; /* start of spinning; time without progress of the awaited rank */
    int64_t slept_ns;          /* since the last check of the other ranks */
    int64_t looked_ns;         /* polls: time of that check; 0: none, and nothing else is set */
    struct ku_far_chain far;
};
/*
 * Wait until something may have changed for `work`. Returns 0, or the root cause.
 */
KU_STATUS ku_job_idle(struct ku_job *job, struct ku_waiter *waiter, const struct ku_work *work);
/*
 * ku_work_test for a caller that polls: every 25 ms it checks the other ranks and counts against
 * the deadline, as a wait does.
 *
 *   waiter   of this work alone; `looked_ns` is 0 at the first poll
 */
KU_STATUS ku_work_poll(struct ku_work *work, struct ku_waiter *waiter);
/*
 * ku_job_progress for a caller that polls: every 25 ms it checks the other ranks.
 */
KU_STATUS ku_job_poll(struct ku_job *job);
/* work.c */
KU_STATUS ku_job_advance(struct ku_job *job);
/*
 * Finish posted works, so that the other members may use the ring further, while this rank waits
 * for something else. It reads their flags, so not in every advance.
 */
KU_STATUS ku_job_settle(struct ku_job *job);
void ku_work_describe(const struct ku_work *work, char *text, size_t cap);
/* Raise a mismatch: a message of `member` has this header instead of the one of the work. */
KU_STATUS ku_work_raise_far(const struct ku_work *work, int member, const struct ku_net_head *came);
KU_STATUS ku_work_raise_message(const struct ku_work *work, const struct ku_net_head *came);
/* move.c: the part of a work that moves data */
int ku_move_step(struct ku_work *work); /* 0: done, 1: budget used up */
void ku_move_fill(struct ku_work *work);
void ku_move_drain(struct ku_work *work);
void ku_move_inline(struct ku_work *work);
void ku_move_payload(struct ku_work *work, struct ku_entry *entry);
void ku_move_publish(struct ku_work *work);
KU_STATUS ku_move_counts(struct ku_work *work);
/*
 * Location of a public buffer for peers: arena << 48 | offset in this rank's part; KU_PRIVATE if
 * they cannot access it
 */
uint64_t ku_move_place(const struct ku_work *work, const void *at);
/* Its address in the part of a local rank */
unsigned char *ku_move_place_at(const struct ku_job *job, uint64_t place, int local);
/* Address of a reference for a local rank */
unsigned char *ku_move_ref(const struct ku_job *job, const struct ku_ref *ref, int local);
/* The current piece of near member k's stage, and the one numbered `stage` */
unsigned char *ku_move_stage(const struct ku_work *work, int k);
unsigned char *ku_move_stage_piece(const struct ku_work *work, int k, uint64_t stage);
/* Copy into the result of a work; past the caches if it is large. */
void ku_move_deliver(const struct ku_work *work, void *to, const void *from, int64_t bytes);
/* Count elements that a program stored in n_dst places. */
void ku_move_count_bytes(const struct ku_work *work, int64_t count, int n_dst);
/* Elements of a rank's block in a public call */
int64_t ku_move_block_count(const struct ku_work *work, int rank);
/* world.c */
/* The engine of struct ku_job_client: that of the MPI library, if `auto` stands for it here. */
const char *ku_comm_engine(const char *launcher, const char *transport);
/* comm.c */
KU_STATUS ku_comm_world(struct ku_job *job);
/* ku_coll_run for an internal collective, which the call numbers in messages do not count */
KU_STATUS ku_comm_run_own(struct ku_comm *comm, const struct ku_coll *coll);
void ku_comm_free(struct ku_comm *comm);
/* Raise: a message of `member` to this rank was not received before the comm is freed. */
KU_STATUS ku_comm_raise_unreceived(const struct ku_comm *comm, int member);
/* chaos.c */
KU_STATUS ku_chaos_parse(const char *text, struct ku_chaos *chaos);

#endif
