/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_SEGMENT_H
#define KU_JOB_SEGMENT_H

#include "base/clock.h"
#include "base/err.h"
#include "base/os/os.h"
#include "job/hosts.h"
#include "kumi/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The control segment: shared memory through which the ranks of a host coordinate. It is one sealed
 * memfd (with ranks as threads: anonymous memory), created by the launcher or by local rank 0.
 * Membership is possession of the descriptor; there is no name to open.
 *
 *     header          magic, sizes, abort flag and root cause, stop flag
 *     rank lines      [n]   state, progress counter, wake-up futex, life mutex
 *     flight rings    [n]   last 256 events of each rank
 *     questions       [n]   one of each rank to ranks of other hosts, with its answer
 *     hosts           [KU_MAX_HOSTS]   table of the job's hosts (job/hosts.h)
 *     client area           shared memory of the communicators (struct ku_job_client)
 *
 * The mapping is sparse: untouched parts take no memory. All shared fields are C11 atomics,
 * sequentially consistent unless their comment says otherwise. Fences are not used, because
 * ThreadSanitizer does not model them. Every field has one writer, except those marked (any). Plain
 * fields are published by the atomic next to them.
 */
typedef _Atomic uint32_t ku_a32;
typedef _Atomic uint64_t ku_a64;

enum {
    KU_MAX_LOCAL = 512,     /* ranks of a host: the largest servers have 384 hardware threads */
    KU_FLIGHT_EVENTS = 256, /* power of two */
    /*
     * Max sleep. A rank that wakes checks for aborts, deaths and deadlines.
     */
    KU_SLEEP_NS = 50 * 1000 * 1000
};
#define KU_SEGMENT_MAGIC 0x6b756d69u
#define KU_SEGMENT_ABI   8u

/*
 * The layer above the job, which communicates in the client area. A table of constants and pure
 * functions: the launcher uses it without being a rank.
 */
struct ku_job_client {
    /* Bytes of the client area for n_local ranks; sparse and zero at first. */
    size_t (*area_bytes)(int n_local);
    /* Text of an event of the flight recorder, as "all_reduce f32 x 1000 (work 12 of comm 3)" */
    void (*event_text)(uint32_t slot, uint64_t what, uint64_t seq, uint64_t count, char *text,
                       size_t cap);
    /*
     * Send bytes of rank 0 to all ranks of an MPI launcher, before the hosts know each other. NULL:
     * no MPI. Collective. Blocks: at most timeout_ns. Errors: KUMI_EINVAL (no MPI here: why),
     * EPEER, ETIMEDOUT.
     */
    int (*share)(const char *launcher, int rank, int n, void *data, size_t bytes,
                 int64_t timeout_ns);
    /*
     * What this host can use between hosts instead of tcp, as `transport` of struct ku_job_opts
     * asks: a constant; "": nothing. Leaves this thread's error record. NULL: nothing.
     */
    const char *(*engine)(const char *launcher, const char *transport);
    /*
     * After a share, when the job ends on this rank. has_failed: other ranks may be missing, so the
     * end of the process waits for none. Not called if the rank ends inside the job.
     */
    void (*unshare)(bool has_failed);
};

enum ku_rank_state {
    KU_RANK_ABSENT,
    KU_RANK_JOINED,
    KU_RANK_LEAVING,
    KU_RANK_LEFT,
    KU_RANK_EXITED,
    KU_RANK_DIED
};

/*
 * The flight recorder. Its stores are relaxed: a torn event only garbles a line of a dump.
 */
enum { KU_FLIGHT_NOW_WORDS = 8 };
enum ku_flight_kind { KU_FLIGHT_NONE, KU_FLIGHT_START, KU_FLIGHT_DONE, KU_FLIGHT_FAIL };
struct ku_flight_event {
    ku_a64 cycles; /* raw; converted with the two clock pairs when printed */
    ku_a64 what;   /* kind | slot << 8 | the client's code of the operation << 16 */
    ku_a64 seq;
    ku_a64 count;
};
struct ku_flight {
    _Alignas(128) ku_a64 n; /* number of events so far; event i is at [i % KU_FLIGHT_EVENTS] */
    ku_a64 now[KU_FLIGHT_NOW_WORDS]; /* text of the instruction that the rank executes; "": none */
    struct ku_flight_event event[KU_FLIGHT_EVENTS];
};

enum ku_asleep {
    KU_AWAKE,
    KU_ASLEEP,        /* on `wakeup` */
    KU_ASLEEP_IN_POLL /* where its doorbell (job/control.h) wakes it */
};
struct ku_rank_line {
    _Alignas(128) ku_a32 asleep; /* enum ku_asleep */
    ku_a32 wakeup;               /* (any) futex: incremented to wake the rank */
    /*
     * Incremented per tile, chunk, MiB read and collective. A deadline runs only while it is
     * constant.
     */
    _Alignas(128) ku_a64 progress;
    _Alignas(128) ku_a32 state; /* enum ku_rank_state; (any) may set DIED */
    ku_a32 heeds_stop;          /* 1: it acts on `stop` itself, the launcher forwards no signal */
    ku_a32 pid;
    /*
     * Rank of the job + 1 that it waits for, 0: none. A deadline counts for the last rank of this
     * chain.
     */
    ku_a32 awaits;
    /*
     * Checks done while waiting. A rank whose process is stopped does not increment it.
     */
    ku_a32 looks;
    ku_a32 exit_status;           /* valid in EXITED */
    ku_a64 cpus[KU_OS_CPU_WORDS]; /* where it may run; set before it joins */
    /*
     * Robust, held by the rank's service thread. The kernel releases it within 0.1 ms of a SIGKILL.
     */
    pthread_mutex_t life;
};

/* Whether a bridge passes proposals on; it ended, or never was; its process died. */
enum ku_bridge_state { KU_BRIDGE_NONE, KU_BRIDGE_RUNS, KU_BRIDGE_DEAD };

struct ku_segment {
    uint32_t magic, abi;
    int32_t n_local;
    uint64_t bytes, client_off; /* of the segment; start of the client area */
    uint64_t job_id;
    uint64_t cycles0; /* first clock pair, with ns0 */
    int64_t ns0;
    int32_t first_rank, n_ranks; /* of this host, and of the job */
    ku_a32 host, n_hosts;        /* index in the table, and its rows; n_hosts 0: not met yet */
    uint32_t has_secret;         /* of the hosts: the launcher stored it, or the join did */
    uint8_t secret[KU_SECRET_BYTES];
    /* (any) 0, or set once: 1 << 63 | -status << 32 | culprit + 1 */
    _Alignas(128) ku_a64 abort_word;
    ku_a32 root_ready;      /* `root` is written */
    ku_a32 root_said;       /* (any) the root cause was printed */
    ku_a32 stop;            /* (any) signal number: finish the step, save, leave */
    ku_a32 n_asleep;        /* (any) sleeping ranks; with 0 the store of a flag wakes none */
    struct kumi_error root; /* written by the rank that set abort_word */
    /* Several hosts: a host's proposal of the root cause, until the hosts' root has decided. */
    _Alignas(128) ku_a64 cause_word; /* (any) as abort_word */
    ku_a32 cause_ready;              /* `cause` is written */
    ku_a32 root_host;                /* host that proposed `root`, + 1; before root_ready */
    ku_a32 is_bridged;               /* (any) enum ku_bridge_state */
    struct kumi_error cause;
};

/*
 * A rank's question to a rank of another host. The rank asks, the bridge answers; each writes its
 * own fields. An answer counts while `answered` equals `asked`.
 */
enum { KU_ANSWER_WORDS = 20 };
struct ku_question {
    _Alignas(128) ku_a32 asked; /* number of questions so far */
    ku_a32 rank;                /* of the job */
    ku_a64 asked_ns;            /* when */
    ku_a32 sent;                /* the bridge's: questions that it has passed on */
    ku_a32 answered;
    ku_a64 progress;
    ku_a32 state, looks, awaits, stopped_pid; /* awaits + 1 */
    ku_a64 last[KU_ANSWER_WORDS];             /* text, relaxed */
};

/*
 * Create a segment in a sealed memfd, and map it. Does not block. Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_segment_create(const struct ku_job_client *client, int n_local, uint64_t job_id,
                            int *fd, struct ku_segment **seg);
/*
 * Record the error for a memfd of `bytes` bytes that the system refused (errno): KUMI_ESTORAGE for
 * a file size limit, else KUMI_ENOMEM. Returns it.
 */
KU_STATUS ku_segment_refused(const char *what, size_t bytes);
/* Create a segment in anonymous shared memory, for ranks as threads. */
KU_STATUS ku_segment_create_private(const struct ku_job_client *client, int n_local,
                                    struct ku_segment **seg);
/*
 * Map a segment from its descriptor, after a check of seals, size, magic and ABI. Errors:
 * KUMI_EINVAL.
 */
KU_STATUS ku_segment_map(const struct ku_job_client *client, int fd, struct ku_segment **seg);
void ku_segment_unmap(struct ku_segment *seg);

static inline struct ku_rank_line *ku_segment_line(struct ku_segment *seg, int local)
{
    return (struct ku_rank_line *)(void *)(seg + 1) + local;
}
/*
 * Whether the rank's process has ended inside the job: its life mutex is free, but its state still
 * says that it is in the job, and becomes DIED, so one caller finds it. A rank that leaves changes
 * its state before it releases the mutex. For ranks that are processes.
 */
bool ku_segment_find_death(struct ku_rank_line *line);
struct ku_flight *ku_segment_flight(struct ku_segment *seg, int local);
struct ku_question *ku_segment_question(struct ku_segment *seg, int local);
struct ku_host_row *ku_segment_hosts(struct ku_segment *seg);
/*
 * Say which ranks of the job this host has; the creator of a segment calls it before another
 * process maps it. At first: n_local ranks from 0, and no other host.
 */
void ku_segment_set_ranks(struct ku_segment *seg, int first_rank, int n_ranks);
/* Store the secret of the job's hosts, as the launcher got it; likewise before it is mapped. */
void ku_segment_set_secret(struct ku_segment *seg, const uint8_t secret[KU_SECRET_BYTES]);
/* The client area, aligned to a page */
static inline void *ku_segment_area(struct ku_segment *seg)
{
    return (char *)seg + seg->client_off;
}

/*
 * Set the root cause. Returns 1 to the first caller, which prints it, and 0 to all others: then
 * there is a root cause. Any thread may call it, also the launcher. With several hosts it waits at
 * most KU_VERDICT_NS for the decision of their root.
 *
 *   culprit   rank of the job; -1: none
 */
enum { KU_VERDICT_NS = 1000 * 1000 * 1000 };
int ku_segment_abort(struct ku_segment *seg, const struct kumi_error *error, int culprit);
/* The culprit of the root cause; -1: none. */
int ku_segment_culprit(struct ku_segment *seg);
/*
 * Set the root cause of this host's segment alone: for the bridge.
 *
 *   host   that proposed it
 */
int ku_segment_set_root(struct ku_segment *seg, const struct kumi_error *error, int culprit,
                        int host);
/* Ask the job to stop, unless it was asked; the other hosts learn it too. Any thread. */
void ku_segment_stop(struct ku_segment *seg, int signal);
/*
 * Copy the root cause; waits at most 100 ms for its text. Returns its status, or 0 without one.
 */
int ku_segment_root(struct ku_segment *seg, struct kumi_error *out);
/* Wake a rank of this host if it sleeps. Any thread. */
void ku_segment_wake(struct ku_segment *seg, int local);
/* Wake every sleeping rank. */
void ku_segment_ring_all(struct ku_segment *seg);

/*
 * Add an event to a rank's ring (10 ns). Only that rank calls it.
 */
static inline void ku_flight_add(struct ku_flight *flight, enum ku_flight_kind kind, uint32_t slot,
                                 uint64_t what, uint64_t seq, uint64_t count)
{
    uint64_t n = atomic_load_explicit(&flight->n, memory_order_relaxed);
    struct ku_flight_event *e = &flight->event[n % KU_FLIGHT_EVENTS];
    atomic_store_explicit(&e->cycles, ku_clock_cycles(), memory_order_relaxed);
    atomic_store_explicit(&e->what, (uint64_t)kind | slot << 8 | what << 16, memory_order_relaxed);
    atomic_store_explicit(&e->seq, seq, memory_order_relaxed);
    atomic_store_explicit(&e->count, count, memory_order_relaxed);
    atomic_store_explicit(&flight->n, n + 1, memory_order_release);
}
/*
 * Note what the rank executes from now on (5 ns). Only that rank calls it.
 *
 *   text   the bytes of a string, cut to fit with its end
 */
static inline void ku_flight_note(struct ku_flight *flight,
                                  const uint64_t text[KU_FLIGHT_NOW_WORDS])
{
    for (int i = 0; i < KU_FLIGHT_NOW_WORDS; i++)
        atomic_store_explicit(&flight->now[i], text[i], memory_order_relaxed);
}
/*
 * The rank's last operation, as "all_reduce f32 x 1000 (work 12 of comm 3)", and the instruction
 * that it executes, as ", in 1I3 wait recv h.2"; empty before the first.
 */
void ku_flight_last(struct ku_segment *seg, const struct ku_job_client *client, int local,
                    char *text, size_t cap);
/* Write every rank's last events to the log (comm:debug). */
void ku_flight_dump(struct ku_segment *seg, const struct ku_job_client *client);

#endif
