/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_TCP_PRIVATE_H
#define KU_COMM_TCP_PRIVATE_H

#include "comm/net/queue.h"
#include "comm/tcp/tcp.h"

enum {
    /*
     * Headers and small messages are read through this buffer. 36 messages of 8 bytes fit; of a
     * chunk of 256 KiB at most 1 byte in 128 is copied twice.
     */
    KU_TCP_BUFFER_BYTES = 2048,
    /*
     * Bytes of one system call. A chunk of an exchange (256 KiB), so that what is sent and what is
     * received stay in the second-level cache.
     */
    KU_TCP_QUANTUM_BYTES = 256 * 1024,
    /*
     * Up to this many active links are tried in turn. A try that moves nothing takes 0.45 us, a
     * poll(2) of k descriptors 0.1 us and 0.06 us for each.
     */
    KU_TCP_TRIED_LINKS = 1,
    /*
     * Connections are taken when a link awaits one, after a sleep, and at every so many calls of
     * progress: those that came early leave the queue of the doorbell, which holds few.
     */
    KU_TCP_CALLS_PER_TAKE = 64,
    KU_TCP_VECTORS = 64, /* pieces of one system call: at least 12 messages */
    /*
     * Silence after which a peer is probed, and time without an acknowledgement after which a
     * connection is given up, as in job/control/private.h.
     */
    KU_TCP_KEEPALIVE_S = 1,
    KU_TCP_SILENCE_MS = 9 * 1000,
    /* Connections without a link. A peer dials once per link, and a rank has at most this many. */
    KU_TCP_MAX_EARLY = 16384,
    /* Descriptors besides the connections: sockets of 512 ranks of a host, files, the next link */
    KU_TCP_OTHER_FILES = 1024
};
#define KU_TCP_DIAL_NS (INT64_C(10) * 1000 * 1000 * 1000)
/* Between two looks for links whose peer is silent: one system call for each active link */
#define KU_TCP_LOOK_NS (INT64_C(500) * 1000 * 1000)

struct ku_tcp_link {
    struct ku_net_link base;
    int fd;     /* -1: not connected */
    int status; /* 0; or why the link is broken, with `error` */
    /* A message differed: the rest of the stream cannot be read. */
    bool is_mismatched;
    bool is_full, is_dry; /* in this call of progress: the system moves no more */
    bool is_in_first;
    struct ku_net_queue out, in;
    struct ku_tcp_link *next, *prev;               /* all links of the network, circular */
    struct ku_tcp_link *next_active, *prev_active; /* with pending requests; NULL: not active */
    struct kumi_error error;
    size_t at, end; /* of what is buffered: [at, end) */
    unsigned char buffer[KU_TCP_BUFFER_BYTES];
};

/* A connection whose link does not exist yet */
struct ku_tcp_early {
    struct ku_dial_head head;
    int fd;
};

struct ku_tcp {
    struct ku_net base;
    struct ku_tcp_wires wires;
    int rank, n;
    struct ku_tcp_link *links;
    struct ku_tcp_link *active; /* the next to be served */
    int n_active;
    int n_awaited; /* of those, waiting for the peer's dial */
    bool has_polled;
    uint32_t n_calls;   /* of progress */
    int64_t looked_ns;  /* time of the last look for silent peers */
    struct pollfd *fds; /* room for every link */
    uint32_t cap_fds;
    struct ku_tcp_early *early;
    uint32_t n_early, cap_early;
    struct ku_net_stats stats;
};

/* The lane of a connection says whether its link has one way. */
static inline uint32_t ku_tcp_lane(const struct ku_tcp_link *link)
{
    return link->base.way != KU_NET_BOTH_WAYS;
}
/* Whether the peer makes the connection */
static inline bool ku_tcp_is_dialled(const struct ku_tcp *tcp, const struct ku_tcp_link *link)
{
    return link->base.way == KU_NET_BOTH_WAYS ? tcp->rank > link->base.rank
                                              : link->base.way == KU_NET_IN;
}
static inline bool ku_tcp_wants_in(const struct ku_tcp_link *link)
{
    return link->in.head && !link->is_mismatched;
}

/* tcp.c */
/* "rank 5 on host b" */
void ku_tcp_name(const struct ku_tcp *tcp, int rank, char text[128]);
/* Raise the limit of open files as the connections grow, also those that are early. */
void ku_tcp_raise_files(const struct ku_tcp *tcp);
/* End the link and its requests with this status and the thread's record. Returns it. */
KU_STATUS ku_tcp_break(struct ku_tcp *tcp, struct ku_tcp_link *link, int status);
/* connect.c */
/* Dial, if this rank does; else the peer does. Returns 0 or a status, with its record. */
KU_STATUS ku_tcp_connect(struct ku_tcp *tcp, struct ku_tcp_link *link);
/* Give every connection that has arrived to its link. */
KU_STATUS ku_tcp_take(struct ku_tcp *tcp);
/* Take over the connection that came before the link, if any. */
void ku_tcp_adopt(struct ku_tcp *tcp, struct ku_tcp_link *link);
/* transfer.c */
/*
 * Move at most max_bytes of the link's requests in one system call, or from its buffer. *moved:
 * bytes; 0 with is_full or is_dry set. Errors: KUMI_EPEER, ETIMEDOUT, with a record.
 */
KU_STATUS ku_tcp_send(struct ku_tcp *tcp, struct ku_tcp_link *link, size_t max_bytes,
                      size_t *moved);
KU_STATUS ku_tcp_recv(struct ku_tcp *tcp, struct ku_tcp_link *link, size_t max_bytes,
                      size_t *moved);
/* Whether the peer's kernel answers. Errors: KUMI_ETIMEDOUT, with a record. */
KU_STATUS ku_tcp_look(struct ku_tcp *tcp, const struct ku_tcp_link *link);

#endif
