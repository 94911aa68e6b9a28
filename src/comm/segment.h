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
 * The host's control memory: one sealed memfd (ranks as threads: anonymous memory), made by the
 * launcher or by the host's first rank. Whoever holds it is a member of the job; names decide
 * nothing.
 *
 *     header | rank lines[n] | flight rings[n] | flags[slots][n] | channels[slots][n][n] |
 * stages[slots][n]
 *
 * Sparse: only what is used takes memory. All words are C11 atomics, sequentially consistent unless
 * their comment says otherwise, and no fences are used (ThreadSanitizer knows none). Every word has
 * one writer, but those marked (any).
 */
typedef _Atomic uint32_t ku_a32;
typedef _Atomic uint64_t ku_a64;

enum {
    KU_MAX_LOCAL = 512, /* ranks of a host: the largest servers have 384 hardware threads */
    KU_SLOTS = 64,      /* comms alive at a time on a rank: one bit each in a word */
    KU_RING =
        16, /* works of a comm that may have arrived before the slowest rank finished the first */
    KU_INLINE_BYTES = 88, /* payload that rides with the arrival: to the end of its second line */
    KU_STAGE_BYTES =
        256 * 1024, /* a piece of a public call on private memory: fits L2 beside its source */
    KU_LETTER_BYTES = 96,       /* a message without a chunk: to the end of its second line */
    KU_CHUNK_BYTES = 64 * 1024, /* a piece of a staged send */
    KU_N_CHUNKS = 8,            /* send pieces under way per rank and comm; two a message */
    KU_FLIGHT_EVENTS = 256,     /* power of two */
    KU_SLEEP_NS =
        50 * 1000 * 1000 /* no sleep is longer: on waking one looks for aborts, deaths, deadlines */
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

/* Words of the flight recorder; relaxed, since a torn event is only a strange line in a dump. */
enum ku_flight_kind {
    KU_FLIGHT_NONE,
    KU_FLIGHT_START,
    KU_FLIGHT_DONE,
    KU_FLIGHT_WAIT,
    KU_FLIGHT_FAIL
};
struct ku_flight_event {
    ku_a64 cycles; /* raw; converted by the header's two clock pairs when printed */
    ku_a64 what;   /* event | slot << 8 | ku_coll_what() << 16 */
    ku_a64 seq;
    ku_a64 count;
};
struct ku_flight {
    _Alignas(128) ku_a64 n; /* events ever; event i is at [i % KU_FLIGHT_EVENTS] */
    struct ku_flight_event event[KU_FLIGHT_EVENTS];
};

struct ku_rank_line {
    _Alignas(128) ku_a32 asleep;   /* 1 while it sleeps on bell */
    ku_a32 bell;                   /* (any) futex word: bumped to wake it */
    _Alignas(128) ku_a64 progress; /* bumped per tile, chunk, MiB read, collective: deadlines count
                                      only while it stands still */
    _Alignas(128) ku_a32 state;    /* enum ku_rank_state; (any) may turn JOINED into DIED */
    ku_a32 heeds_stop; /* it acts on `stop` itself; the launcher need not forward signals */
    ku_a32 pid;
    ku_a32 awaits; /* rank + 1 that it waits for at the moment, 0 none: deadlines follow the chain
                      to its end */
    ku_a32 looks;  /* times that it looked around while it waited: a rank that is stopped in a wait
                      does not */
    ku_a32 exit_status;           /* valid in EXITED */
    ku_a64 cpus[KU_OS_CPU_WORDS]; /* where it may run; set before it joins */
    pthread_mutex_t
        life; /* robust, held by the rank's service thread: taken over 0.1 ms after a SIGKILL */
};

/* An arrival: the flag, what is called, and a small payload. Written before seq is stored, stable
 * until all members' `done` reach seq. */
struct ku_entry {
    _Alignas(64) ku_a64 seq;
    ku_a64 at_ns;          /* chaos: when it arrived */
    uint64_t what;         /* ku_coll_what(): kind, dtype, reduction, root */
    uint64_t count, extra; /* elements; hash of counts or of the part list */
    union {
        struct {
            uint64_t in, out; /* public calls: arena << 48 | offset, or KU_PRIVATE */
        } place;
        unsigned char payload[KU_INLINE_BYTES]; /* its first 24 bytes lie in the flag's own line */
    };
};
struct ku_flags {
    struct ku_entry ring[KU_RING]; /* arrival of work seq at [seq % KU_RING] */
    _Alignas(64) ku_a64 done; /* works finished: nothing of a peer is read or written any more */
    ku_a64 filled, freed; /* staged pieces written / no longer used, counted over the comm's life */
    ku_a64 at_ns[3];      /* chaos: when done, filled, freed were stored last */
    ku_a64 closed;        /* all-time high of seq, for the next comm in this slot */
};

/* A piece of a message; small ones ride along. Written before number is stored. */
struct ku_post {
    _Alignas(64) ku_a64 number; /* piece number - 1 of the channel is here */
    uint64_t count;             /* of its message */
    uint32_t what, acked;       /* of its message; the sender's `acked` of the other direction */
    uint32_t chunk, bytes;
    unsigned char letter[KU_LETTER_BYTES]; /* instead of a chunk; 32 bytes lie in the flag's line */
};
/* One direction between two ranks of a comm. A message of one letter is posted at once. For a
 * longer one the receiver opens message `want`, the sender posts pieces; the receiver acknowledges
 * each, and once more in its next post the other way: who answers each other look at no line but
 * that of the post. */
struct ku_channel {
    struct ku_post post[2];     /* sender: piece p is at [p % 2] */
    _Alignas(64) ku_a64 want;   /* receiver: messages opened */
    ku_a64 acked;               /* receiver: pieces taken */
    uint64_t what, count;       /* receiver: of message `want` */
    _Alignas(64) ku_a64 posted; /* sender: pieces written */
    ku_a64 at_ns;               /* chaos: when posted was stored last */
    uint64_t acked_seen;        /* sender: acked is at least this */
};
struct ku_stage {
    _Alignas(4096) unsigned char piece[2][KU_STAGE_BYTES]; /* piece p is in [p % 2] */
    unsigned char chunk[KU_N_CHUNKS][KU_CHUNK_BYTES];
};

struct ku_segment {
    uint32_t magic, abi;
    int32_t n_local, n_slots;
    uint64_t bytes;
    uint64_t job_id;
    uint64_t cycles0; /* with ns0: the first clock pair, made with the segment */
    int64_t ns0;
    _Alignas(128) ku_a64
        abort_word;         /* (any) 0, or set once: 1 << 63 | -status << 32 | culprit + 1 */
    ku_a32 root_ready;      /* `root` is written */
    ku_a32 root_said;       /* (any) and printed */
    ku_a32 stop;            /* (any) signal number: finish the step, save, leave */
    ku_a32 n_asleep;        /* (any) ranks asleep: who stores a flag rings only if there are any */
    struct kumi_error root; /* by the winner of abort_word */
};

/* Bytes of a segment for n_local ranks. */
size_t ku_segment_bytes(int n_local);
/* A new segment in a sealed memfd, mapped. Blocks: no. Errors: KUMI_ENOMEM. */
int ku_segment_create(int n_local, uint64_t job_id, int *fd, struct ku_segment **seg);
/* Decides what the system's refusal (errno) of a memory file of so many bytes means: KUMI_ESTORAGE
 * for a limit of files, else ENOMEM. */
int ku_segment_refused(const char *what, size_t bytes);
/* A new segment in anonymous shared memory, for ranks as threads. */
int ku_segment_create_private(int n_local, struct ku_segment **seg);
/* Maps a segment received by descriptor; checks seals, size, magic and ABI. Errors: KUMI_EINVAL. */
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

/* Root cause: the first to call wins, writes the record and returns 1 (the caller prints it);
 * others get 0. Any thread. */
int ku_segment_abort(struct ku_segment *seg, const struct kumi_error *error, int culprit);
/* Copies the root cause; waits <= 100 ms for its text. Returns its status, or 0 when there is none.
 */
int ku_segment_root(struct ku_segment *seg, struct kumi_error *out);
/* Wakes every rank that sleeps. */
void ku_segment_ring_all(struct ku_segment *seg);

/* Adds an event to a rank's ring (10 ns). Only that rank calls it. */
void ku_flight_add(struct ku_flight *flight, enum ku_flight_kind kind, uint32_t slot, uint64_t what,
                   uint64_t seq, uint64_t count);
/* "all_reduce f32 x 1000 (work 12 of comm 3)": the rank's last operation; empty: it began none. */
void ku_flight_last(struct ku_segment *seg, int local, char *text, size_t cap);
/* Writes every rank's last events to the log (comm:debug). */
void ku_flight_dump(struct ku_segment *seg);

#endif
