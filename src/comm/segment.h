/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_SEGMENT_H
#define KU_COMM_SEGMENT_H

#include "base/os/os.h"
#include "kumi/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The control segment: shared memory through which the ranks of a host coordinate. It is one sealed
 * memfd (with ranks as threads: anonymous memory), created by the launcher or by local rank 0.
 * Membership is possession of the descriptor; there is no name to open.
 *
 *     header          magic, sizes, abort flag and root cause, stop flag
 *     rank lines      [n]             state, progress counter, wake-up futex, life mutex
 *     flight rings    [n]             last 256 events of each rank
 *     flags           [slots][n]      arrivals and counters of each member of a comm
 *     channels        [slots][n][n]   point-to-point messages, [from][to]
 *     stages          [slots][n]      staging buffers for private memory
 *
 * A slot belongs to one comm at a time. The mapping is sparse: untouched parts take no memory. All
 * shared fields are C11 atomics, sequentially consistent unless their comment says otherwise.
 * Fences are not used, because ThreadSanitizer does not model them. Every field has one writer,
 * except those marked (any). Plain fields are published by the atomic next to them.
 */
typedef _Atomic uint32_t ku_a32;
typedef _Atomic uint64_t ku_a64;

enum {
    KU_MAX_LOCAL = 512,   /* ranks of a host: the largest servers have 384 hardware threads */
    KU_SLOTS = 64,        /* comms alive at a time on a rank: one bit each in a uint64_t */
    KU_RING = 16,         /* max works of a comm between the fastest and the slowest rank */
    KU_INLINE_BYTES = 88, /* payload in an arrival: fills its second cache line */
    KU_STAGE_BYTES = 256 * 1024, /* one piece of a staged call: fits L2 together with its source */
    KU_LETTER_BYTES = 96,        /* eager message, without a chunk: fills its second cache line */
    KU_CHUNK_BYTES = 64 * 1024,  /* piece of a staged send */
    KU_N_CHUNKS = 8,             /* pieces in flight per rank and comm; two per message */
    KU_FLIGHT_EVENTS = 256,      /* power of two */
    /*
     * Max sleep. A rank that wakes checks for aborts, deaths and deadlines.
     */
    KU_SLEEP_NS = 50 * 1000 * 1000
};
#define KU_SEGMENT_MAGIC 0x6b756d69u
#define KU_SEGMENT_ABI   4u

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
enum ku_flight_kind {
    KU_FLIGHT_NONE,
    KU_FLIGHT_START,
    KU_FLIGHT_DONE,
    KU_FLIGHT_WAIT,
    KU_FLIGHT_FAIL
};
struct ku_flight_event {
    ku_a64 cycles; /* raw; converted with the two clock pairs when printed */
    ku_a64 what;   /* kind | slot << 8 | ku_coll_what() << 16 */
    ku_a64 seq;
    ku_a64 count;
};
struct ku_flight {
    _Alignas(128) ku_a64 n; /* number of events so far; event i is at [i % KU_FLIGHT_EVENTS] */
    struct ku_flight_event event[KU_FLIGHT_EVENTS];
};

struct ku_rank_line {
    _Alignas(128) ku_a32 asleep; /* 1 while it sleeps on `bell` */
    ku_a32 bell;                 /* (any) futex: incremented to wake the rank */
    /*
     * Incremented per tile, chunk, MiB read and collective. A deadline runs only while it is
     * constant.
     */
    _Alignas(128) ku_a64 progress;
    _Alignas(128) ku_a32 state; /* enum ku_rank_state; (any) may set DIED */
    ku_a32 heeds_stop;          /* 1: it acts on `stop` itself, the launcher forwards no signal */
    ku_a32 pid;
    /*
     * Rank + 1 that it waits for, 0: none. A deadline counts for the last rank of this chain.
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

/*
 * The arrival of a rank at a work: sequence number, fingerprint and a small payload. Everything is
 * written before `seq` is stored, and stays unchanged until all members' `done` reach `seq`.
 */
struct ku_entry {
    _Alignas(64) ku_a64 seq;
    ku_a64 at_ns;          /* chaos: time of arrival */
    uint64_t what;         /* ku_coll_what(): kind, dtype, reduction, root */
    uint64_t count, extra; /* elements; hash of the counts or of the part list */
    union {
        struct {
            uint64_t in, out; /* public calls: arena << 48 | offset, or KU_PRIVATE */
        } place;
        unsigned char payload[KU_INLINE_BYTES]; /* the first 24 bytes lie in the line of `seq` */
    };
};
struct ku_flags {
    struct ku_entry ring[KU_RING]; /* arrival at work seq is [seq % KU_RING] */
    /* last finished work: this rank no longer touches a peer's memory for it */
    _Alignas(64) ku_a64 done;
    ku_a64 filled, freed; /* staged pieces written and released, counted over the comm's life */
    ku_a64 at_ns[3];      /* chaos: time of the last store of done, filled, freed */
    ku_a64 closed;        /* not used */
};

/*
 * One piece of a message, or a whole eager message. Written before `number` is stored.
 */
struct ku_post {
    _Alignas(64) ku_a64 number; /* number of this piece in the channel, from 1 */
    uint64_t count;             /* elements of its message */
    /* dtype of its message; the sender's `acked` of the other direction */
    uint32_t what, acked;
    uint32_t chunk, bytes;
    unsigned char letter[KU_LETTER_BYTES]; /* eager message; 32 bytes lie in the line of `number` */
};
/*
 * One direction between two ranks of a comm. An eager message (at most KU_LETTER_BYTES) is posted
 * at once. A longer one is a rendezvous:
 *
 *     receiver                         sender
 *     what, count, want = message ──>  compares, takes two chunks
 *                                 <──  post[0], post[1]: piece in a chunk
 *     copies, acked++             ──>  next piece
 *
 * A post also carries the acknowledgements of the other direction, so two ranks that answer each
 * other read no cache line but that of the post.
 */
struct ku_channel {
    struct ku_post post[2];     /* sender: piece p is at [p % 2] */
    _Alignas(64) ku_a64 want;   /* receiver: last message it is ready for */
    ku_a64 acked;               /* receiver: pieces taken */
    uint64_t what, count;       /* receiver: dtype and elements of message `want` */
    _Alignas(64) ku_a64 posted; /* sender: pieces written */
    ku_a64 at_ns;               /* chaos: time of the last store of `posted` */
    uint64_t acked_seen;        /* sender: lower bound of `acked` */
};
struct ku_stage {
    _Alignas(4096) unsigned char piece[2][KU_STAGE_BYTES]; /* piece p is at [p % 2] */
    unsigned char chunk[KU_N_CHUNKS][KU_CHUNK_BYTES];
};

struct ku_segment {
    uint32_t magic, abi;
    int32_t n_local, n_slots;
    uint64_t bytes;
    uint64_t job_id;
    uint64_t cycles0; /* first clock pair, with ns0 */
    int64_t ns0;
    _Alignas(128) ku_a64
        abort_word;         /* (any) 0, or set once: 1 << 63 | -status << 32 | culprit + 1 */
    ku_a32 root_ready;      /* `root` is written */
    ku_a32 root_said;       /* (any) the root cause was printed */
    ku_a32 stop;            /* (any) signal number: finish the step, save, leave */
    ku_a32 n_asleep;        /* (any) sleeping ranks; with 0 the store of a flag wakes none */
    struct kumi_error root; /* written by the rank that set abort_word */
};

/* Bytes of a segment for n_local ranks. */
size_t ku_segment_bytes(int n_local);
/*
 * Create a segment in a sealed memfd, and map it. Does not block. Errors: KUMI_ENOMEM.
 */
int ku_segment_create(int n_local, uint64_t job_id, int *fd, struct ku_segment **seg);
/*
 * Record the error for a memfd of `bytes` bytes that the system refused (errno): KUMI_ESTORAGE for
 * a file size limit, else KUMI_ENOMEM. Returns it.
 */
int ku_segment_refused(const char *what, size_t bytes);
/* Create a segment in anonymous shared memory, for ranks as threads. */
int ku_segment_create_private(int n_local, struct ku_segment **seg);
/*
 * Map a segment from its descriptor, after a check of seals, size, magic and ABI. Errors:
 * KUMI_EINVAL.
 */
int ku_segment_map(int fd, struct ku_segment **seg);
void ku_segment_unmap(struct ku_segment *seg);

static inline struct ku_rank_line *ku_segment_line(struct ku_segment *seg, int local)
{
    return (struct ku_rank_line *)(void *)(seg + 1) + local;
}
struct ku_flight *ku_segment_flight(struct ku_segment *seg, int local);
struct ku_flags *ku_segment_flags(struct ku_segment *seg, uint32_t slot); /* [n_local] */
struct ku_channel *ku_segment_channel(struct ku_segment *seg, uint32_t slot, int from, int to);
struct ku_stage *ku_segment_stage(struct ku_segment *seg, uint32_t slot, int local);

/*
 * Set the root cause. Returns 1 to the first caller, which prints it, and 0 to all others. Any
 * thread may call it.
 */
int ku_segment_abort(struct ku_segment *seg, const struct kumi_error *error, int culprit);
/*
 * Copy the root cause; waits at most 100 ms for its text. Returns its status, or 0 without one.
 */
int ku_segment_root(struct ku_segment *seg, struct kumi_error *out);
/* Wake every sleeping rank. */
void ku_segment_ring_all(struct ku_segment *seg);

/*
 * Add an event to a rank's ring (10 ns). Only that rank calls it.
 */
void ku_flight_add(struct ku_flight *flight, enum ku_flight_kind kind, uint32_t slot, uint64_t what,
                   uint64_t seq, uint64_t count);
/*
 * The rank's last operation, as "all_reduce f32 x 1000 (work 12 of comm 3)"; empty before the
 * first.
 */
void ku_flight_last(struct ku_segment *seg, int local, char *text, size_t cap);
/* Write every rank's last events to the log (comm:debug). */
void ku_flight_dump(struct ku_segment *seg);

#endif
