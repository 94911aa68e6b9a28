/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_NET_H
#define KU_COMM_NET_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct ku_job;

/*
 * Ordered messages to ranks of other hosts: all that a communicator needs of a network.
 *
 *     comm "dp" of rank 1                                 comm "dp" of rank 5
 *     link (slot 2, rank 5)  ══ one ordered stream ══>    link (slot 2, rank 1)
 *          send(req) send(req)                                recv(req) recv(req)
 *
 * A link is the stream between this rank and one other rank for one communicator, both directions.
 * Works of a communicator start in one order on all its ranks, so a stream never delivers a message
 * that its receiver does not need next. Messages of different communicators never share a stream.
 *
 * A request is the caller's storage from send or recv until is_done. The requests of a direction
 * complete in order. A message is a header of fixed size and a payload. A receiver states the
 * payload's size in advance; the header of a message of another size is stored, its payload is not,
 * and the request ends with KUMI_EMISMATCH.
 *
 * Engines: tcp (sockets), mpi (an MPI library, loaded at run time), chaos (wraps either and injects
 * faults). One thread uses a network: the rank's own. No call blocks, except open and close.
 */

/* What a message says of itself: little endian, sent as it is. The receiver compares it. */
struct ku_net_head {
    uint64_t seq;   /* number of the work on its communicator */
    uint64_t what;  /* ku_coll_what */
    uint64_t count; /* elements of the call */
    uint64_t extra; /* hash of counts or parts */
    uint32_t stage; /* of the exchange */
    uint32_t chunk; /* of the stage */
    uint64_t bytes; /* of the payload; the engine sets it */
};
_Static_assert(sizeof(struct ku_net_head) == 48, "sent as it is");

enum { KU_NET_VECTORS = 4 };
struct ku_net_req {
    struct ku_net_head head; /* send: given; recv: what came */
    /* The payload's pieces, in order; recv: where they go. Borrowed until is_done. */
    struct {
        void *at;
        size_t bytes;
    } piece[KU_NET_VECTORS];
    int n_pieces;
    bool is_done;
    int status; /* with is_done: 0, or why the payload was not stored */
    /* the engine's */
    struct ku_net_req *next;
    size_t moved; /* bytes of header and payload so far */
    void *priv;
};

struct ku_net;      /* one rank's side of an engine */
struct ku_net_link; /* one stream */

/* Totals over the life of a network, for reports and tests. */
struct ku_net_stats {
    uint64_t sent_bytes, received_bytes; /* payloads */
    uint64_t n_sent, n_received;         /* messages */
    int n_links;
};

struct ku_net_ops {
    const char *name; /* "tcp", "openmpi", "mpich" */
    uint32_t ops_bytes, abi;
    /*
     * Collective over the job's ranks in the sense that all of them open the same engine. Blocks at
     * most for the job's join time-out. Errors: EINVAL (not available here: why), EPEER, ENOMEM.
     */
    int (*open)(struct ku_job *job, struct ku_net **net);
    /* Waits for no peer. has_failed: pending requests are dropped. Takes NULL. */
    void (*close)(struct ku_net *net, bool has_failed);
    /*
     * The stream of comm slot `slot` and generation `stream` (the same on both sides, never reused
     * in a job) to rank `rank` of the job. Does not wait for the peer: its connection is made when
     * the first message needs it.
     */
    int (*link)(struct ku_net *net, uint32_t slot, uint64_t stream, int rank,
                struct ku_net_link **link);
    /* No request may be pending. */
    void (*unlink)(struct ku_net_link *link);
    /*
     * Post a message, or a buffer for the next one. May move bytes at once. 0, or a status: the
     * stream is broken (EPEER: the connection was closed; ETIMEDOUT: the system gave it up), and
     * the record names the peer.
     */
    int (*send)(struct ku_net_link *link, struct ku_net_req *req);
    int (*recv)(struct ku_net_link *link, struct ku_net_req *req);
    /*
     * Move at most about budget_bytes of all links (< 0: what can be moved without waiting).
     * *has_moved is set to true if a byte moved, and else left alone. 0, or a status as send.
     */
    int (*progress)(struct ku_net *net, int64_t budget_bytes, bool *has_moved);
    /*
     * The descriptors whose events mean progress for pending requests, at most cap; returns their
     * number. -1: the engine has none, and a waiting rank must call progress again after at most
     * 0.2 ms.
     */
    int (*poll)(struct ku_net *net, struct pollfd *fds, int cap);
    void (*stats)(const struct ku_net *net, struct ku_net_stats *out);
    /* One line for `kumi info --hosts`: "tcp over eth0, 10.77.0.1" */
    void (*describe)(const struct ku_net *net, char *text, size_t cap);
};
enum { KU_NET_ABI = 1 };

extern const struct ku_net_ops ku_net_tcp, ku_net_chaos;
/* The plug-in of the MPI library that started this rank, loaded at run time. EINVAL: why not. */
KU_STATUS ku_net_mpi(const struct ku_net_ops **ops);

#endif
