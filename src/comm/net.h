/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_NET_H
#define KU_COMM_NET_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct ku_job;
struct ku_chaos;

/*
 * Ordered messages to ranks of other hosts: all that a communicator needs of a network.
 *
 *     comm "dp" of rank 1                                 comm "dp" of rank 5
 *     link (slot 2, rank 5)  ══ one ordered stream ══>    link (slot 2, rank 1)
 *          send(req) send(req)                                recv(req) recv(req)
 *
 * A link is the stream between this rank and one other rank for one communicator. A stream of
 * collectives has both directions. A stream of messages has one: the sender of an eager message
 * goes on at once, and the receiver may not use the stream for a long time.
 * Works of a communicator start in one order on all its ranks, so a stream never delivers a message
 * that its receiver does not need next. Messages of different communicators never share a stream.
 *
 * A request is the caller's storage from send or recv until is_done. The requests of a direction
 * complete in order. A message is a header of fixed size and a payload. A receiver states the
 * header and the payload's size in advance. A message that differs is a mismatch: its header is
 * stored in `came`, its payload is not stored (tcp) or of no use (mpi), the request ends with
 * KUMI_EMISMATCH, and its link receives no more. The caller writes the error record, which needs
 * both headers.
 *
 * Engines: tcp (sockets), mpi (an MPI library, loaded at run time), chaos (wraps either and injects
 * faults). One thread uses a network: the rank's own. No call blocks, except open, close, and
 * progress while it connects a link that is used for the first time.
 */

/* What a message says of itself: little endian, sent as it is. */
struct ku_net_head {
    uint64_t seq;   /* number of the work on its communicator */
    uint64_t what;  /* ku_coll_what */
    uint64_t count; /* elements of the call */
    uint64_t extra; /* hash of counts or parts */
    uint32_t stage; /* of the exchange */
    uint32_t chunk; /* of the stage */
    uint64_t bytes; /* of the payload; the engine sets it, the sum of the pieces */
};
_Static_assert(sizeof(struct ku_net_head) == 48, "sent as it is");

enum { KU_NET_PIECES = 4 };
struct ku_net_req {
    /* The caller's, borrowed until is_done */
    struct ku_net_head head; /* send: what goes; recv: what must come */
    struct ku_net_piece {
        void *at;
        size_t bytes;
    } piece[KU_NET_PIECES + 1]; /* of the payload, in order; a wrapper takes the last place */
    int n_pieces;               /* at most KU_NET_PIECES; 0: a header alone */
    /* The engine's, set by send and recv */
    bool is_done;
    /*
     * With is_done: 0; KUMI_EMISMATCH without an error record; or the status of the broken link,
     * which progress returned with a record
     */
    int status;
    struct ku_net_head came; /* recv, with is_done and status 0 or KUMI_EMISMATCH */
    struct ku_net_req *next;
    size_t moved; /* bytes of header and payload so far */
};

/* The directions of a link, as this rank sees it: the peer of an OUT link has an IN link. */
enum ku_net_way { KU_NET_BOTH_WAYS, KU_NET_OUT, KU_NET_IN };

/* One rank's side of an engine, and one stream. An engine's own structs begin with these. */
struct ku_net {
    const struct ku_net_ops *ops;
    struct ku_net_link *broken; /* the last that broke; NULL: none, or the engine cannot tell */
    /*
     * Payload from which a message runs at full rate; equal on all ranks. 0: messages are pieces of
     * a byte stream, and their length does not matter.
     */
    size_t full_rate_bytes;
};
struct ku_net_link {
    struct ku_net *net;
    uint64_t stream;
    uint32_t slot;
    int rank; /* the peer's, in the job */
    enum ku_net_way way;
};

/* Totals over the life of a network, for reports and tests. Messages count when they are done. */
struct ku_net_stats {
    uint64_t sent_bytes, received_bytes; /* payloads */
    uint64_t n_sent, n_received;         /* messages */
    uint64_t n_refused; /* connections: a second one of a stream, or one that is for no stream */
    int n_links;        /* at present */
};

struct ku_net_ops {
    const char *name; /* "tcp", "openmpi", "mpich", "chaos" */
    uint32_t ops_bytes, abi;
    /*
     * Collective over the job's ranks in the sense that all of them open the same engine. Blocks at
     * most for the job's join time-out. NULL: the engine has a constructor of its own.
     * Errors: EINVAL (not available here: why), EPEER, ENOMEM.
     */
    int (*open)(struct ku_job *job, struct ku_net **net);
    /*
     * Frees the links that are left. Waits for no peer; what was sent is delivered while the peer
     * lives. has_failed: pending requests are dropped; else there are none. Takes NULL.
     */
    void (*close)(struct ku_net *net, bool has_failed);
    /*
     * The stream of comm slot `slot` and generation `stream` (the same on both sides, never reused
     * in a job) to rank `rank` of the job. A slot has at most two streams of a direction to a rank
     * at a time, one of even generation and one of odd. Does not wait for the peer: the connection
     * is made when the first message needs it. Errors: ENOMEM.
     */
    int (*link)(struct ku_net *net, uint32_t slot, uint64_t stream, int rank, enum ku_net_way way,
                struct ku_net_link **link);
    /* As close, of one link. Takes NULL. */
    void (*unlink)(struct ku_net_link *link, bool has_failed);
    /*
     * Post a message, or a buffer for the next one. Moves no bytes: progress does, and joins small
     * messages that were posted together. 0; or the status of the broken link, with its record, and
     * the request stays the caller's.
     */
    int (*send)(struct ku_net_link *link, struct ku_net_req *req);
    int (*recv)(struct ku_net_link *link, struct ku_net_req *req);
    /*
     * Move at most budget_bytes of all links, headers included (< 0: what can be moved without
     * waiting). *has_moved is set to true if a byte moved or a request ended, and else left alone.
     * 0; or the status of a link that broke (EPEER: the connection was closed; ETIMEDOUT: the
     * peer's host does not answer), with a record that names the peer, and net->broken set. Its
     * pending requests have ended with that status; the other links go on.
     */
    int (*progress)(struct ku_net *net, int64_t budget_bytes, bool *has_moved);
    /*
     * The descriptors whose events mean progress for pending requests. Writes at most cap and
     * returns their number, which may be larger. -1: the engine has none, and a waiting rank must
     * call progress again after at most 0.2 ms. Call progress after poll(2), whatever it returned.
     */
    int (*poll)(struct ku_net *net, struct pollfd *fds, int cap);
    void (*stats)(const struct ku_net *net, struct ku_net_stats *out);
    /* One line for `kumi info --hosts`: "tcp", "mpi (openmpi): …" */
    void (*describe)(const struct ku_net *net, char *text, size_t cap);
};
enum {
    KU_NET_ABI = 1,
    /*
     * full_rate_bytes of MPI. A large message begins with a handshake, which costs a round trip
     * between processes that poll: a 64 MiB all-reduce between 2 hosts over TCP was 0.71 times
     * (Open MPI) and 0.69 times (MPICH) as fast as MPI_Allreduce with 256 KiB, 1.62 and 1.16 times
     * with 2 MiB and gathers of 32 MiB.
     */
    KU_NET_MPI_FULL_RATE_BYTES = 2 << 20
};

extern const struct ku_net_ops ku_net_tcp;
/* The plug-in of the MPI library that started this rank, loaded at run time. EINVAL: why not. */
KU_STATUS ku_net_mpi(const struct ku_net_ops **ops);
/* The broadcast of struct ku_job_client, by that library. */
KU_STATUS ku_net_mpi_share(const char *launcher, int rank, int n, void *data, size_t bytes,
                           int64_t timeout_ns);
/* The job's end on this rank, of struct ku_job_client too. Leaves this thread's error record. */
void ku_net_mpi_unshare(bool has_failed);
/*
 * Wrap an engine: every rank of the job does, with the same options. On success *net owns `inner`.
 *
 *   rank   this one, for options that name a rank
 *
 * Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_net_chaos(struct ku_net *inner, const struct ku_chaos *chaos, int rank,
                       struct ku_net **net);

#endif
