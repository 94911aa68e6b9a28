/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_RPC_PRIVATE_H
#define KU_PS_RPC_PRIVATE_H

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/os/socket.h"
#include "ps/rpc/rpc_limits.h"
#include "ps/rpc/rpc.h"

/* What the files of this layer share. */

/* grpc_init with gRPC's log led into ours, and its end. Counted by gRPC. */
void ku_rpc_runtime_init(void);
void ku_rpc_runtime_fini(void);
/* TLS handshakes of the process that have failed so far, and why the last one did. */
uint64_t ku_rpc_n_handshakes_failed(char *why, size_t bytes);
gpr_timespec ku_rpc_deadline(int64_t timeout_ns);
grpc_arg ku_rpc_arg(const char *key, int value);

/* Statuses. The text is that of the error record for a status < 0. */
#define KU_RPC_STATUS_KEY "kumi-status"
grpc_status_code ku_rpc_code(int status);
/*
 * The kumi status of a gRPC status with these trailing metadata. Sets the record to
 * "<address>: <path>: <text>". Returns it; 0 for OK.
 */
KU_STATUS ku_rpc_from_code(grpc_status_code code, const grpc_metadata_array *trailing,
                           const char *address, const char *path, const grpc_slice *text);

/* An empty buffer becomes a message of 0 bytes. *b is empty after it. Never NULL. */
grpc_byte_buffer *ku_rpc_buf_take(struct ku_rpc_buf *b);
/* Owns bb, on failure too. Errors: KUMI_ENOMEM. */
KU_STATUS ku_rpc_msg_init(struct ku_rpc_msg *m, grpc_byte_buffer *bb);

/* ---- Addresses ---- */
struct ku_rpc_address {
    bool is_unix, is_loopback; /* is_loopback: a Unix socket is */
    char text[KU_RPC_MAX_ADDRESS];
    const char *path;                  /* in text, of a Unix socket */
    char host[KU_RPC_MAX_ADDRESS - 8]; /* without brackets */
    struct ku_os_address tcp;          /* the first one that the host has */
};
KU_STATUS ku_rpc_address_parse(const char *text, struct ku_rpc_address *a);
/* What clients type: text with the actual port. */
void ku_rpc_address_set_port(struct ku_rpc_address *a, uint16_t port);
/*
 * A listening descriptor, not blocking; a->text gets the actual port. A socket file that no process
 * listens on is replaced. Errors: KUMI_EBUSY (in use), KUMI_ESTORAGE, KUMI_EINVAL.
 */
KU_STATUS ku_rpc_listen(struct ku_rpc_address *a, int *fd);
/*
 * "pid 77 (python3)": the process that listens on this port or socket file, if /proc tells, else
 * "another process".
 */
void ku_rpc_owner(const struct ku_rpc_address *a, char *out, size_t bytes);

/* ---- Security ---- */
struct ku_rpc_secrets { /* what the files hold */
    char *cert, *key, *ca;
    char token[KU_RPC_MAX_TOKEN + 1];
    size_t token_bytes; /* 0: none */
};
/*
 * Reads and checks the files. Errors: KUMI_EINVAL: missing, readable by others, malformed,
 * certificate not valid now, key of another certificate.
 */
KU_STATUS ku_rpc_secrets_init(struct ku_rpc_secrets *s, const struct ku_rpc_security *o);
void ku_rpc_secrets_fini(struct ku_rpc_secrets *s);
/* An address that is not loopback needs TLS or a token. */
KU_STATUS ku_rpc_check_open(const struct ku_rpc_address *a, const struct ku_rpc_secrets *s);
/* Whether one of the metadata is the token; true if there is none. In constant time. */
bool ku_rpc_is_authorized(const struct ku_rpc_secrets *s, const grpc_metadata_array *metadata);

/* ---- Server ---- */
enum ku_rpc_tag_kind { KU_RPC_TAG_RECV, KU_RPC_TAG_SEND, KU_RPC_TAG_CLOSE, KU_RPC_N_TAGS };
struct ku_rpc_tag {
    struct ku_rpc_call *call; /* NULL: a slot for a new call, or the end */
    enum ku_rpc_tag_kind kind;
};

/*
 * A connection. gRPC owns one descriptor of the socket, the guard thread a duplicate: it sees
 * the end there (gRPC shuts the socket down before it closes it), and ends the connection by
 * shutting it down.
 */
struct ku_rpc_conn {
    struct ku_rpc_conn *next, *prev;
    int fd;       /* gRPC's number, by which the calls name their connection */
    int dup;      /* the guard's */
    int n_calls;  /* now */
    bool is_used; /* a call was admitted */
    bool is_ending;
    bool is_gone;     /* out of the list; freed with its last call */
    int64_t since_ns; /* of the end of the last call, if is_used; else of the beginning */
    int64_t due_ns;   /* when the calls so far are due at the rate that is allowed */
    /* Bytes received that are accounted for (accept_guard.c), TCP alone; what calls added since. */
    int64_t ceiling;
    _Atomic int64_t credit;
    bool is_unix, is_tls, has_settled; /* has_settled: n_calls has become 0 */
    struct ku_os_address address;      /* of the peer; zeros: is_unix */
    char peer[64];
};

/* A thread that takes the events of one completion queue. */
struct ku_rpc_thread {
    struct ku_rpc_server *server;
    pthread_t id;
    grpc_completion_queue *cq;
    struct ku_rpc_call *slot; /* the call that gRPC will fill next */
    struct ku_rpc_tag slot_tag;
};

struct ku_rpc_listener {
    struct ku_rpc_address address;
    int fd;                 /* -1: TLS, gRPC listens itself; or closed */
    uint64_t device, inode; /* of the socket file that was made; 0: none */
    bool is_tls;
};

struct ku_rpc_server {
    grpc_server *grpc;
    const struct ku_rpc_method *method;
    int n_methods;
    void *ctx;
    struct ku_rpc_limits limits;
    struct ku_rpc_secrets secrets;
    grpc_server_credentials *plain;
    struct ku_rpc_listener listener[KU_RPC_MAX_LISTEN];
    int n_listeners;
    struct ku_rpc_thread thread[KU_RPC_MAX_THREADS];
    int n_threads;
    pthread_t guard, acceptor;
    int epoll, wake;               /* of the guard thread */
    int accept_epoll, accept_wake; /* of the accepting one */
    unsigned n_named;              /* likewise */
    bool has_guard, has_acceptor, has_tls;
    /* Over everything below. Taken before a call's own lock, never after it. */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* n_calls, is_shut */
    struct ku_rpc_conn *conns;
    struct ku_rpc_call *calls;
    int n_conns, n_calls;
    uint64_t accepted, refused, timed_out;
    bool is_watched; /* the guard thread looks at deadlines, every KU_RPC_TICK_NS */
    bool is_stopping, is_ending, is_shut, is_stopped;
    uint64_t n_handshakes; /* of the guard thread: failed ones that were reported */
    int64_t said_ns;       /* of the last second's messages, and their number */
    int n_said, n_unsaid;
    struct ku_rpc_tag shut_tag;
};

struct ku_rpc_call {
    struct ku_rpc_server *server;
    struct ku_rpc_thread *thread;
    struct ku_rpc_call *next, *prev;
    struct ku_rpc_conn *conn; /* NULL: it has ended */
    grpc_call *grpc;
    grpc_call_details details;
    grpc_metadata_array metadata;
    struct ku_rpc_tag tag[KU_RPC_N_TAGS];
    const struct ku_rpc_method *method; /* NULL: refused */
    void *data;
    char peer[64], path[128];
    _Atomic int64_t recv_ns, send_ns; /* deadlines; INT64_MAX: none */
    size_t sending_bytes;
    bool is_told; /* a callback was made, so close follows; of the event thread */
    grpc_byte_buffer *received;
    int is_cancelled;
    /* Over everything below. */
    pthread_mutex_t lock;
    int n_pending; /* batches under way */
    bool has_sent_initial, is_sending, is_reading, is_over, has_status, is_finished, has_ended;
    bool has_message; /* the first one is complete */
    bool is_late;     /* ended on a deadline */
    grpc_byte_buffer *queue[KU_RPC_MAX_QUEUED], *sending, *reply;
    int first, n_queued;
    int status; /* what ended it, 0: nothing yet, or the service with success */
    grpc_status_code code;
    grpc_metadata trailing;
    char number[12], text[440];
};

/* A thread's event loop; and the first slot. */
void *ku_rpc_thread_main(void *thread);
KU_STATUS ku_rpc_thread_arm(struct ku_rpc_thread *t);
void ku_rpc_call_free(struct ku_rpc_call *c);
/* One line of the server about a peer, at most KU_RPC_MAX_LINES a second. */
void ku_rpc_say(struct ku_rpc_server *s, const char *peer, const char *path, const char *format,
                ...) __attribute__((format(printf, 4, 5)));

void *ku_rpc_guard_main(void *server);
void *ku_rpc_accept_main(void *server);
/* The connection of a call, by the name that gRPC has for its peer, with one more call, or NULL. */
struct ku_rpc_conn *ku_rpc_conn_begin(struct ku_rpc_server *s, const char *grpc_peer);
void ku_rpc_conn_end(struct ku_rpc_server *s, struct ku_rpc_conn *c);
/* Admit a call of the connection; false: it has made too many in this second. c NULL: true. */
bool ku_rpc_conn_use(struct ku_rpc_server *s, struct ku_rpc_conn *c);
/*
 * Bytes of the peer are accounted for: a message received (sent: the peer answers with window
 * updates), the rest of a call that is over. c NULL: nothing.
 */
void ku_rpc_conn_credit(struct ku_rpc_conn *c, size_t received, size_t sent);
/* With the server's lock. */
void ku_rpc_conn_drop(struct ku_rpc_server *s, struct ku_rpc_conn *c);
/*
 * Add a connection to the list, if there is room.
 *
 *   c         zeros
 *   fd, dup   gRPC's descriptor, and the guard's
 *
 * Returns whether it was added; else c and dup are the caller's. With the server's lock.
 */
bool ku_rpc_conn_add(struct ku_rpc_server *s, struct ku_rpc_conn *c, int fd, int dup, bool is_unix,
                     const struct ku_os_address *peer);
/* tls_guard.c, with the server's lock: take in connections that gRPC has accepted. */
void ku_rpc_find_tls(struct ku_rpc_server *s);
struct ku_rpc_conn *ku_rpc_find_peer(struct ku_rpc_server *s, const char *grpc_peer);

#endif
