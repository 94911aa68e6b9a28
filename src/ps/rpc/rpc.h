/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_RPC_RPC_H
#define KU_PS_RPC_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Remote procedure calls over gRPC: a server with handlers by method path, and a client. Messages
 * are bytes; what is in them is the concern of the services (ps/proto.h).
 *
 *     server                                            client
 *     one thread accepts, one watches deadlines         ku_rpc_channel: one connection, back-off
 *     N event threads, one completion queue each          ku_rpc_unary:  request -> reply, blocking
 *       a call belongs to one of them: its events         ku_rpc_stream: send, recv, blocking with
 *       (open, message, sent, end, close) come in                        deadlines; cancel
 *       turn, from that thread
 *
 * Back-pressure: the next message of a call is read only when the handler has consumed the last
 * one, so the transport's window closes and the sender waits. A send queue holds at most
 * KU_RPC_MAX_QUEUED messages; ku_rpc_send refuses more. No queue grows with the peer's speed.
 *
 * What the server defends against, and how (limits: ps/rpc/rpc_limits.h, ku_rpc_limits):
 *
 *     strangers                  a Unix socket with mode 0600, or loopback; any other address needs
 *                                mutual TLS or a token. Loopback TCP is open to every user of the
 *                                host: use a Unix socket or a token where these are not trusted
 *     a guessed token            compared in constant time, before the message is read
 *     large messages, metadata   refused by length before memory is taken
 *     many connections, calls    counted; beyond the limit a connection is closed at once, a call
 *                                is refused with RESOURCE_EXHAUSTED
 *     slow and silent peers      a connection without a call, a call without a complete message
 *                                and a peer that does not read are ended on their deadlines
 *     a peer that vanished       keepalive pings
 *     floods of metadata and announced messages, which gRPC 1.51 stores without a bound: the bytes
 *                                of a TCP connection are held against what its calls take
 *                                (accept_guard.c); gRPC's buffers have a quota in all
 *     compressed messages        refused: none can grow
 *     gRPC 1.51's listener, which stops for good when the process is out of descriptors: plain
 *                                connections are accepted here and handed over
 *
 * With TLS gRPC listens itself: the number of connections and their bytes beyond calls are not
 * bounded there, handshakes end on first_call_ns, and a peer without a certificate gets no further.
 * It does not defend against: readers of the network where only a token is used (it is sent in
 * clear: use TLS), a peer that holds a valid token or certificate, floods of packets.
 *
 * Statuses: an enum kumi_status travels as the nearest gRPC status and, in the trailing metadata
 * "kumi-status", as its number; the text of the error record is the message. Clients of other
 * programs read the former, ku_rpc_* clients both.
 */

/* ---- Buffers: messages to be sent ---- */

/*
 * A message being made: `bytes` bytes at `data`, written once by the caller, then handed over to a
 * send without a copy.
 */
struct ku_rpc_buf {
    void *data;
    size_t bytes;
    void *slice[4]; /* gRPC's: zeros are an empty buffer */
};
/* 0 bytes are allowed. Errors: KUMI_ENOMEM. */
KU_STATUS ku_rpc_buf_init(struct ku_rpc_buf *b, size_t bytes);
KU_STATUS ku_rpc_buf_copy(struct ku_rpc_buf *b, const void *data, size_t bytes);
void ku_rpc_buf_fini(struct ku_rpc_buf *b); /* of one that was not handed over; empty is allowed */

/* ---- Messages that were received ---- */

/*
 * A message as it lies in the transport's buffers: pieces in order (struct iovec of <sys/uio.h>,
 * which ps/proto.h reads in place), none of them empty. A message of 0 bytes has no piece.
 */
struct iovec;
struct ku_rpc_msg {
    const struct iovec *piece;
    int n_pieces;
    size_t bytes;
    void *owner; /* the layer's */
};
void ku_rpc_msg_fini(struct ku_rpc_msg *m); /* zeros are allowed */
/* Copy bytes [offset, offset + bytes) of the message, which the caller has checked to be there. */
void ku_rpc_msg_read(const struct ku_rpc_msg *m, size_t offset, void *out, size_t bytes);

/* ---- Security ---- */

/* Files; NULL: not given. All zeros: none. TLS is mutual: cert, key and ca come together. */
struct ku_rpc_security {
    const char *cert; /* PEM: this side's certificate chain */
    const char *key;  /* PEM: its private key; readable by the owner alone */
    const char *ca;   /* PEM: certificates that sign the other side's */
    /*
     * A file with a token of 16 to 256 printable characters, readable by the owner alone; white
     * space around it is left out. Sent as "authorization: Bearer TOKEN". A server with a token
     * wants it of every call, on every address.
     */
    const char *token_file;
    const char *server_name; /* client: the name in the server's certificate; NULL: the host */
};

/* ---- Server ---- */

struct ku_rpc_server;
struct ku_rpc_call;

/* What a handler returns beside 0 and a negative status. */
enum { KU_RPC_HOLD = 1 };

/*
 * A method. Callbacks of one call come one at a time, from one event thread. They may take
 * milliseconds; longer work belongs to the service's own threads, with KU_RPC_HOLD, since other
 * calls wait meanwhile. They are made without any lock of this layer.
 *
 *   message   a message is there. The service may keep *m by copying the struct and setting
 *             m->owner to NULL, and frees it with ku_rpc_msg_fini; otherwise it is freed on return.
 *             Returns
 *               0             consumed. Streams: the next message is read. Unary: the reply has
 *                             been given (ku_rpc_finish), or an empty one is sent
 *               KU_RPC_HOLD   streams: the next message is read after ku_rpc_next. Unary: the
 *                             reply follows (ku_rpc_finish), from any thread
 *               < 0           the call ends with this status and the thread's error record
 *   open      streams: the call has begun, its metadata is accepted. NULL: nothing. Results as
 *             above. Unary calls have no open.
 *   sent      streams: one more message of ku_rpc_send has left; n_queued are still waiting. NULL:
 *             nothing
 *   end       streams: the client sends no more, or has cancelled. The service calls
 *             ku_rpc_finish, now or later. NULL: finished with 0
 *   close     the call is over, for whatever reason: finished, cancelled, connection lost, deadline
 *             (status: 0, or what ended it). Comes exactly once for each call that had another
 *             callback, as the last one; after its return the call must not be used. A service that
 *             keeps the call for another thread forgets it here, under the service's own lock.
 */
struct ku_rpc_method {
    const char *path; /* "/ParameterServer/PushGradients" */
    bool is_stream;   /* bidirectional; else unary */
    /*
     * The longest time without progress. 0: the limits' idle_ns. INT64_MAX: none (keepalive still
     * ends a dead connection).
     */
    int64_t first_ns; /* until the first message of the client is complete */
    /*
     * Streams: from a message to the next complete one, while it is read. Then the stream ends with
     * UNAVAILABLE, which is KUMI_EPEER at the client: it may open another one.
     */
    int64_t idle_ns;
    int64_t send_ns; /* until a message of ku_rpc_send, the reply or the status has left */
    int (*open)(void *ctx, struct ku_rpc_call *call);
    int (*message)(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m);
    void (*sent)(void *ctx, struct ku_rpc_call *call, int n_queued);
    int (*end)(void *ctx, struct ku_rpc_call *call);
    void (*close)(void *ctx, struct ku_rpc_call *call, int status);
};

/* Bounds of a server; 0: the default of ps/rpc/rpc_limits.h. */
struct ku_rpc_limits {
    size_t message_bytes; /* of a received message */
    int metadata_bytes;   /* of all metadata of a call */
    int connections;      /* at a time, of all addresses */
    int calls;            /* at a time, of all connections */
    int connection_calls; /* at a time, of one connection */
    int call_rate;        /* in a second, of one connection; as many at once after a rest */
    size_t memory_bytes;  /* of gRPC's buffers for all connections */
    int64_t idle_ns;      /* where a struct ku_rpc_method gives no deadline */
    /* A new connection makes a call before this that is admitted: all its headers and the token. */
    int64_t first_call_ns;
    int64_t unused_ns;    /* later, a connection without a call for as long is closed */
    int64_t keepalive_ns; /* a silent connection is asked after this; half of it is the deadline */
};

struct ku_rpc_server_opts {
    const char *const *listen; /* [n_listen] "unix:PATH", "HOST:PORT", "[::1]:PORT"; port 0: any */
    int n_listen;              /* 1 .. KU_RPC_MAX_LISTEN */
    struct ku_rpc_security security;
    struct ku_rpc_limits limits;
    int n_threads;                      /* event threads, 1 .. KU_RPC_MAX_THREADS; 0: 2 */
    const struct ku_rpc_method *method; /* [n_methods] borrowed until destroy; `ctx` of all */
    int n_methods;
    void *ctx;
};
/*
 * Listen on all addresses and serve. An unknown method is refused with UNIMPLEMENTED.
 *
 * Errors: KUMI_EINVAL (address malformed, or not loopback and neither TLS nor token given; files
 * unreadable, open to others, expired); KUMI_EBUSY (address in use; its owner if /proc tells);
 * KUMI_ESTORAGE (no socket); KUMI_ENOMEM. Nothing is left behind.
 */
KU_STATUS ku_rpc_server_create(const struct ku_rpc_server_opts *o, struct ku_rpc_server **server);
/*
 * Addresses and files as ku_rpc_server_create checks them, without listening: for a server that has
 * much to do before it listens. n_listen may be 0. Errors: KUMI_EINVAL, likewise.
 */
KU_STATUS ku_rpc_server_check(const struct ku_rpc_server_opts *o);
/* The i-th address, as clients can use it, with the actual port: "127.0.0.1:41234". Borrowed. */
const char *ku_rpc_server_address(const struct ku_rpc_server *s, int i);
/*
 * Accept no more connections and calls, and wait until all calls are over, at most grace_ns; then
 * cancel the others. The callbacks `close` have been made when it returns. Socket files are
 * removed. May be called again; not from a callback.
 */
void ku_rpc_server_stop(struct ku_rpc_server *s, int64_t grace_ns);
void ku_rpc_server_destroy(struct ku_rpc_server *s); /* stops without grace; NULL is allowed */
struct ku_rpc_stats {
    int connections, calls;                /* now */
    uint64_t accepted, refused, timed_out; /* connections; connections and calls; likewise */
};
void ku_rpc_server_stats(struct ku_rpc_server *s, struct ku_rpc_stats *out);

/*
 * Functions on a call; threads: any, until `close` has returned.
 *
 *   send     queue a message of a stream; it is handed over (*b is empty after it). KUMI_EBUSY:
 *            KU_RPC_MAX_QUEUED messages wait; *b is unchanged, go on at `sent`. KUMI_EPEER: the
 *            call is over; `close` comes.
 *   next     read the next message, after KU_RPC_HOLD
 *   finish   end the call once the queued messages have left. status 0; or < 0 with the thread's
 *            error record as the text. reply: of a unary call with status 0, handed over; NULL: an
 *            empty message. Later calls of finish do nothing.
 *   abort    end the call at once, also one that was finished and whose messages the peer does not
 *            read: what is queued is dropped. status < 0, with the thread's error record
 */
KU_STATUS ku_rpc_send(struct ku_rpc_call *call, struct ku_rpc_buf *b);
void ku_rpc_next(struct ku_rpc_call *call);
void ku_rpc_finish(struct ku_rpc_call *call, int status, struct ku_rpc_buf *reply);
void ku_rpc_abort(struct ku_rpc_call *call, int status);
int ku_rpc_n_queued(struct ku_rpc_call *call);
/* One pointer of the service per call; NULL at first. */
void ku_rpc_set_data(struct ku_rpc_call *call, void *data);
void *ku_rpc_get_data(struct ku_rpc_call *call);
/* "127.0.0.1:5123", "unix:pid 77"; for messages. Borrowed until close has returned. */
const char *ku_rpc_peer(const struct ku_rpc_call *call);
/* The index in the list of methods. */
int ku_rpc_method_index(const struct ku_rpc_call *call);

/* ---- Client ---- */

struct ku_rpc_channel;
struct ku_rpc_channel_opts {
    const char *address; /* as the server's */
    struct ku_rpc_security security;
    size_t message_bytes;    /* of a received message; 0: the default */
    int64_t max_back_off_ns; /* between attempts to connect, from 0.1 s on; 0: 5 s */
    int64_t keepalive_ns;    /* 0: the default */
};
/*
 * A channel connects at its first call, and again after a failure, with back-off. Threads: any.
 * Errors: KUMI_EINVAL (address, files; address not loopback with neither TLS nor token); ENOMEM.
 */
KU_STATUS ku_rpc_channel_create(const struct ku_rpc_channel_opts *o, struct ku_rpc_channel **ch);
/* After all of its streams. NULL is allowed. */
void ku_rpc_channel_destroy(struct ku_rpc_channel *ch);
/*
 * Wait until the channel is connected. A call does not need it. Errors: KUMI_ETIMEDOUT.
 */
KU_STATUS ku_rpc_channel_wait(struct ku_rpc_channel *ch, int64_t timeout_ns);
/*
 * Call a unary method.
 *
 *   path         borrowed, also by open below, as long as the call is under way
 *   request      handed over, on failure too
 *   timeout_ns   of the whole call; INT64_MAX: none
 *   wait         wait for a connection until the deadline; false: a failed attempt is KUMI_EPEER
 *   reply        out: freed with ku_rpc_msg_fini
 *
 * Errors: KUMI_ETIMEDOUT; KUMI_EPEER (no connection, or lost: whether the server has acted is not
 * known); the server's, with its text.
 */
KU_STATUS ku_rpc_unary(struct ku_rpc_channel *ch, const char *path, struct ku_rpc_buf *request,
                       int64_t timeout_ns, bool wait, struct ku_rpc_msg *reply);

/*
 * A bidirectional stream. One thread may send while another one receives; cancel may come from any
 * thread.
 *
 *   open        start; does not block. `wait` as above
 *   send        hand over a message and wait until the transport has taken it, which it does as the
 *               server reads. KUMI_ETIMEDOUT: the message is still on its way; the next send waits
 *               for it first
 *   close_send  no more messages follow; waits as send does
 *   recv        the next message. *is_end: the server has finished with status OK, there is none.
 *               KUMI_ETIMEDOUT: call it again to go on
 *   cancel      end the stream; waiting calls return KUMI_EPEER
 *   destroy     cancels it if it has not ended. No other call is under way. NULL is allowed
 *
 * Errors: as of ku_rpc_unary; when the server has ended the stream, send and recv both return its
 * status, recv after the messages that came before.
 */
struct ku_rpc_stream;
KU_STATUS ku_rpc_stream_open(struct ku_rpc_channel *ch, const char *path, bool wait,
                             struct ku_rpc_stream **stream);
KU_STATUS ku_rpc_stream_send(struct ku_rpc_stream *s, struct ku_rpc_buf *b, int64_t timeout_ns);
KU_STATUS ku_rpc_stream_close_send(struct ku_rpc_stream *s, int64_t timeout_ns);
KU_STATUS ku_rpc_stream_recv(struct ku_rpc_stream *s, struct ku_rpc_msg *m, bool *is_end,
                             int64_t timeout_ns);
void ku_rpc_stream_cancel(struct ku_rpc_stream *s);
void ku_rpc_stream_destroy(struct ku_rpc_stream *s);

#endif
