/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_AREA_H
#define KU_COMM_AREA_H

#include "job/segment.h"

/*
 * The communicators' part of the control segment (its client area).
 *
 *     flags       [slots][n]      arrivals and counters of each member of a comm
 *     channels    [slots][n][n]   point-to-point messages, [from][to]
 *     stages      [slots][n]      staging buffers for private memory
 *
 * A slot belongs to one comm at a time. The rules for shared fields are those of job/segment.h.
 */
enum {
    KU_SLOTS = 64,               /* comms alive at a time on a rank: one bit each in a uint64_t */
    KU_RING = 16,                /* max works of a comm between the fastest and the slowest rank */
    KU_INLINE_BYTES = 88,        /* payload in an arrival: fills its second cache line */
    KU_STAGE_BYTES = 256 * 1024, /* one piece of a staged call: fits L2 together with its source */
    KU_LETTER_BYTES = 96,        /* eager message, without a chunk: fills its second cache line */
    KU_CHUNK_BYTES = 64 * 1024,  /* max piece of a staged send */
    KU_N_CHUNKS = 8,             /* pieces in flight per rank and comm; two per message */
    KU_PLACE_BYTES = 1 << 30,    /* max piece in an arena: struct ku_post counts in 32 bits */
    KU_IN_PLACE = KU_N_CHUNKS    /* ku_post.chunk of such a piece */
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
    ku_a64 far;           /* last work for which the messages of other hosts are there */
    ku_a64 at_ns[4];      /* chaos: time of the last store of done, filled, freed, far */
};

/*
 * One piece of a message, or a whole eager message. Written before `number` is stored.
 */
struct ku_post {
    _Alignas(64) ku_a64 number; /* number of this piece in the channel, from 1 */
    uint64_t count;             /* elements of its message */
    /* dtype of its message; the sender's `acked` of the other direction */
    uint32_t what, acked;
    uint32_t chunk, bytes; /* chunk: or KU_IN_PLACE */
    union {
        uint64_t place; /* of a piece in the sender's arena */
        /* eager message; 32 bytes lie in the line of `number` */
        unsigned char letter[KU_LETTER_BYTES];
    };
};
/*
 * One direction between two ranks of a comm. An eager message (at most KU_LETTER_BYTES) is posted
 * at once if a post is free. There are two, because there are n * n channels in each slot: 16 would
 * make a channel of 384 bytes one of 2,176. A longer message is a rendezvous:
 *
 *     receiver                         sender
 *     what, count, want = message ──>  compares, takes two chunks
 *                                 <──  post[0], post[1]: piece in a chunk
 *     copies, acked++             ──>  next piece
 *
 * A message from an arena takes no chunks: its posts say where it lies, and the receiver copies
 * from there. One post then covers it all (up to KU_PLACE_BYTES), so that the sender need not run
 * meanwhile.
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
    ku_a64 at_ns;               /* chaos: time of arrival of the last post */
    uint64_t acked_seen;        /* sender: lower bound of `acked` */
};
struct ku_stage {
    _Alignas(4096) unsigned char piece[2][KU_STAGE_BYTES]; /* piece p is at [p % 2] */
    unsigned char chunk[KU_N_CHUNKS][KU_CHUNK_BYTES];
};

/* Area size and event texts of communicators, for the job that they run in */
extern const struct ku_job_client ku_comm_client;

struct ku_flags *ku_area_flags(struct ku_segment *seg, uint32_t slot); /* [n_local] */
struct ku_channel *ku_area_channel(struct ku_segment *seg, uint32_t slot, int from, int to);
struct ku_stage *ku_area_stage(struct ku_segment *seg, uint32_t slot, int local);

#endif
