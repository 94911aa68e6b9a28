/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_CONTROL_PRIVATE_H
#define KU_JOB_CONTROL_PRIVATE_H

#include "base/err.h"
#include "base/os/socket.h"
#include "job/control.h"
#include "job/control/address.h"
#include "job/control/hello.h"
#include "job/control/message.h"
#include "job/segment.h"

/*
 *     address.c   text of addresses; which address of this host the others use
 *     secret.c    where the secret comes from
 *     hello.c     both ends prove that they have it
 *     message.c   what goes over a control connection
 *     conn.c      a connection: its queue, its end
 *     accept.c    incoming connections, until they are authenticated and have found their place
 *     join.c      a host joins; meet_hosts.c: what the root does meanwhile, host_rows.c: its checks
 *     bridge.c    events of a joined host: causes, stop signals, questions, lost connections
 *     ask.c       questions, as ranks see them
 *     dial.c      data connections, and the report of a rank whose bridge died
 *     doorbell.c  datagrams to the ranks of a host
 *
 * One thread at a time uses a ku_control: first that which joins, then the service thread. It never
 * waits: all descriptors are in one epoll set.
 */
enum {
    KU_PENDING_MAX = 64, /* connections that are not authenticated yet */
    KU_PENDING_MS = 5000,
    KU_KEEPALIVE_S = 1,
    /*
     * With the time that a cause takes, and the ranks to end, a job that is cut ends within 11 s.
     * The kernel retransmits after 0.2, 0.6, 1.4, 3.0 and 6.2 s: 5 s kills after a pause of 3.4 s,
     * 9 s survives one of 6 s, and one of 3 s for every first time-out below 3 s.
     */
    KU_PEER_TIMEOUT_MS = 9000,
    KU_RETRY_MS = 5 /* of a connection for a rank whose queue is full */
};
/*
 * How long the root tells hosts that come late of a join that has failed, and how long a host tries
 * to tell the root. Launchers start the hosts of a job within about a second.
 */
#define KU_REFUSE_NS INT64_C(3000000000)

enum ku_conn_role {
    KU_CONN_LISTENER, /* no connection: the host's port */
    KU_CONN_DOORBELL, /* no connection: the bridge's doorbell */
    KU_CONN_PENDING,  /* came in; in its hello */
    KU_CONN_PASS,     /* carries data; waits for room in its rank's queue */
    KU_CONN_JOINER,   /* root: a host, from its hello to its place */
    KU_CONN_EARLY,    /* a child that came before this host knew its own place */
    KU_CONN_CHILD,
    KU_CONN_REPORT, /* a rank whose bridge died */
    KU_CONN_ROOT,   /* to the root, for a place */
    KU_CONN_PARENT,
    KU_CONN_LAST /* is closed when its queue is empty */
};
struct ku_conn {
    enum ku_conn_role role;
    int fd;
    int host; /* CHILD, PARENT, EARLY: index; JOINER: index in the gathered rows, -1: none yet */
    bool is_out_watched, has_said_bye;
    struct ku_hello_side *hello; /* NULL: it is done */
    struct ku_os_address peer;
    int64_t deadline_ns; /* PENDING, PASS, ROOT */
    struct ku_claim claim;
    uint8_t *in, *out;
    size_t n_in, cap_in, n_out, n_sent, cap_out;
    int n_rows; /* CHILD: rows of the table that are sent or queued; -1: none due */
    struct ku_conn *prev, *next; /* in ku_control.conns */
};

/* The root's work until the hosts have met */
struct ku_gather {
    struct ku_join_row *row; /* [n] in the order of their coming */
    struct ku_conn **conn;   /* [n] NULL: this host */
    uint8_t *has_rank;       /* bit per rank of the job */
    uint32_t n, cap_row, cap_conn;
    int64_t n_ranks; /* sum of the rows' */
    int64_t n_told;  /* ranks that know that the join has failed */
    int n_refused;   /* strangers and wrong secrets */
};

/* A connection of the tree that closed without BYE; blamed at the deadline without any cause */
struct ku_lost {
    int64_t deadline_ns; /* 0: none */
    int host, why;       /* errno; 0: closed */
};

struct ku_control {
    struct ku_control_opts opts; /* without borrowed texts */
    struct ku_segment *seg;
    int epoll;
    int host, n_hosts; /* n_hosts 0: no place yet */
    bool is_root, has_table;
    bool is_up; /* the table is in the segment for all to see */
    char name[KU_HOST_NAME_BYTES];
    struct ku_os_address address; /* of this host for the others; zero: not chosen yet */
    struct ku_doorbell *doorbell;
    struct ku_conn *conns; /* all, also the listener and the doorbell */
    struct ku_conn *listener, *parent;
    struct ku_conn *child[KU_CONTROL_RADIX];
    int n_pending, n_logged;
    bool is_deaf; /* pending are too many, or there is no descriptor for another */
    /* joining */
    struct ku_gather *gather;
    struct ku_meeting meeting;
    char interface[64];
    struct ku_os_address root[8], parent_at; /* addresses of the root's name; of the parent */
    int n_root, candidate, n_secrets;        /* next to try; times that the secret was another */
    bool has_met_others;                     /* roots of other jobs */
    int n_rival_ports;                       /* root: where another one may listen */
    int n_rows;                              /* of the table, so far */
    int64_t retry_ns, pause_ns;
    int status; /* of the join, with `failure` */
    struct kumi_error failure;
    /* joined */
    struct ku_lost lost_parent, lost_child[KU_CONTROL_RADIX];
    bool has_parent_left;    /* it said goodbye, or is lost: this host decides for its subtree */
    int64_t children_due_ns; /* children that have not come by then are lost */
    bool has_seen_local, has_cause, has_verdict;
    bool is_cause_own, is_cause_parent; /* the bridge raised it; as it lost its parent */
    struct ku_message cause_head;       /* the first cause that was seen here */
    struct kumi_error cause;
    uint32_t stop;   /* signal that was passed on; 0: none */
    int64_t poll_ns; /* next time to look at what has no descriptor; INT64_MAX: none */
};

/* conn.c */
/*
 * Watches the descriptor, and takes it, also on failure; those of a listener and of a doorbell stay
 * the caller's. NULL with a record: no memory.
 */
struct ku_conn *ku_conn_add(struct ku_control *c, enum ku_conn_role role, int fd);
void ku_conn_drop(struct ku_control *c, struct ku_conn *conn);
/* Queue a message and send what the socket takes. payload: head.bytes. A failure shows as a lost
 * connection when its event is served. */
void ku_conn_send(struct ku_control *c, struct ku_conn *conn, const struct ku_message *head,
                  const void *payload);
/* Send what is queued. 0, or -1 with errno: the connection is broken. */
int ku_conn_flush(struct ku_control *c, struct ku_conn *conn);
/* Read what is there into `in`. 1: bytes came, 0: none, -1: broken with errno, or closed with 0. */
int ku_conn_fill(struct ku_conn *conn);
/* The next whole message: as ku_message_parse; the payload counts until the next call. */
int ku_conn_next(struct ku_conn *conn, struct ku_message *head, uint8_t *payload);
void ku_conn_watch(struct ku_control *c, struct ku_conn *conn, bool has_output);
struct ku_message ku_message_of(const struct ku_control *c, enum ku_message_kind kind,
                                size_t bytes);

/* accept.c */
void ku_accept(struct ku_control *c);
void ku_accept_step(struct ku_control *c, struct ku_conn *conn); /* PENDING */
void ku_accept_pass(struct ku_control *c, struct ku_conn *conn); /* PASS */
void ku_accept_expire(struct ku_control *c, int64_t now);
/* Attach children that came early, once this host has its place. */
void ku_accept_children(struct ku_control *c);
int ku_parent_of(int host);

/* meet_hosts.c: the root */
KU_STATUS ku_gather_start(struct ku_control *c);
void ku_gather_take(struct ku_control *c, struct ku_conn *conn); /* JOINER has input */
void ku_gather_lost(struct ku_control *c, struct ku_conn *conn);
/* All rows are there, or the deadline has passed: check them, and tell every host. */
KU_STATUS ku_gather_finish(struct ku_control *c, bool is_late);
void ku_gather_destroy(struct ku_control *c);
/* host_rows.c: checks without I/O. `row` is sorted by first rank. */
KU_STATUS ku_rows_check(struct ku_join_row *row, int n, int n_ranks, bool is_late,
                        int64_t timeout_ns);
/* This host's, with its address */
void ku_row_own(const struct ku_control *c, struct ku_join_row *row);
/* One row that came, against the first: versions, number of ranks, range. */
KU_STATUS ku_row_check(const struct ku_join_row *row, const struct ku_join_row *first);

/* join.c: connections to the root and to the parent */
void ku_join_event(struct ku_control *c, struct ku_conn *conn);
void ku_join_fail(struct ku_control *c); /* with this thread's record */
/* This host's row; its address is chosen already. Sets the port of the address. */
KU_STATUS ku_join_row(struct ku_control *c, struct ku_join_row *out);
bool ku_control_is_joined(const struct ku_control *c);

/* bridge.c */
void ku_bridge_tick(struct ku_control *c, int64_t now);
void ku_bridge_event(struct ku_control *c, struct ku_conn *conn); /* CHILD PARENT REPORT */
void ku_bridge_rows(struct ku_control *c, struct ku_conn *conn);  /* queue rows for a child */

/* ask.c */
void ku_ask_pass_on(struct ku_control *c); /* new questions of this host's ranks */
void ku_ask_take(struct ku_control *c, const struct ku_message *head, const uint8_t *payload);
/* Send a message on its way to host head.to. */
void ku_bridge_route(struct ku_control *c, const struct ku_message *head, const void *payload);

/* dial.c */
/* Connect, and prove the secret, with a claim. Blocks; *fd does not. `peer` names it. */
KU_STATUS ku_dial(const struct ku_os_address *to, const char *peer, const struct ku_claim *claim,
                  const uint8_t secret[KU_SECRET_BYTES], struct ku_segment *seg, int64_t timeout_ns,
                  int *fd);

/* Hand a connection to a rank of the bridge's host. 0, or -1: EAGAIN: its queue is full. */
int ku_doorbell_pass(const struct ku_doorbell *own, int local, const struct ku_dial_head *head,
                     int fd);

#endif
