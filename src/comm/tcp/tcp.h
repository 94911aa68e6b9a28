/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_TCP_TCP_H
#define KU_COMM_TCP_TCP_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "comm/net.h"
#include "job/control.h"

/*
 * The engine `tcp`: a link is one TCP connection.
 *
 *     rank 1                                              rank 5
 *     requests    header payload header payload …         requests posted in the same order
 *       send ───> sendmsg ── kernel ══════ kernel ── recvmsg ───> recv
 *
 * One rank of a link dials, when its first request is posted, so two dials never cross:
 *
 *     both ways   the lower rank, for a send or a receive. The higher one waits for the connection:
 *                 both post the same messages, so the lower one needs it as well.
 *     one way     the sender: it does not wait for the receiver to need the message.
 *
 * A connection of a stream that has no link yet is kept until the link is made.
 *
 * Bytes go from and to the caller's memory. Headers are read through a buffer of the link, with
 * what is there of the small messages after them, so one system call receives many of those; the
 * rest of a payload is received in place. Without a posted request nothing is read, and the
 * kernel's windows stop the sender, for as long as the receiver is busy. A peer whose kernel does
 * not answer is found after 9 s (base/os/stream.h).
 *
 * Nothing runs between calls of progress: no thread, no signal. Only links with pending requests
 * cost anything: one is tried, of several one poll(2) finds those that can move bytes.
 */

/* How a rank gets its connections. The functions may not be called concurrently. */
struct ku_tcp_wires {
    void *ctx;
    /* A connection to rank head->to. Blocks at most timeout_ns. Errors: with a record. */
    int (*dial)(void *ctx, const struct ku_dial_head *head, int64_t timeout_ns, int *fd);
    /* Take the next connection that was accepted for this rank: 1; 0: none; a status. */
    int (*take)(void *ctx, struct ku_dial_head *head, int *fd);
    int doorbell; /* this descriptor is readable when take has one; -1: there is none */
    /* "rank 5 on host b", for messages; NULL: "rank 5" */
    void (*name)(void *ctx, int rank, char *text, size_t cap);
    const char *where;      /* "eth0 10.77.0.1"; NULL: unknown */
    void (*end)(void *ctx); /* when the network is closed; NULL: nothing to do */
};

/*
 * Open the engine for rank `rank` of `n`. *wires is copied. Does not block. Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_tcp_open(const struct ku_tcp_wires *wires, int rank, int n, struct ku_net **net);
/* The same for a rank of a job of several hosts. Does not block. Errors: KUMI_ENOMEM, EINVAL. */
KU_STATUS ku_tcp_open_job(struct ku_job *job, struct ku_net **net);

#endif
