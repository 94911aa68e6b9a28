/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rpc/private.h"

#include <errno.h>
#include <grpc/grpc_posix.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/process.h"

/*
 * Two threads. One accepts plain connections within the limits and hands them to gRPC, which may
 * read and parse in that thread for as long as the peer sends. So the other one, the guard, runs no
 * code of gRPC's transports: it ends calls and connections on their deadlines.
 *
 *     accept_epoll   listeners | eventfd
 *     epoll          duplicates of connections (the end shows as EPOLLHUP) | eventfd
 *
 * gRPC's own listener ends for good at the first accept that fails (out of descriptors, a
 * connection that was reset in the queue); this one goes on.
 *
 * gRPC 1.51 bounds neither the metadata that come in CONTINUATION frames nor a message before it is
 * whole. So the bytes that a TCP connection has received (TCP_INFO) are held against what the calls
 * have taken from it:
 *
 *     received <= ceiling + calls under way * message_bytes + SLACK
 *
 * `ceiling` rises with every message and every call that is over, and is at most what was received,
 * so that no credit is saved up. Beyond it the connection is closed. On Unix sockets the peer is
 * this user. Connections over TLS are accepted by gRPC and found afterwards (tls_guard.c).
 */
enum { SLACK = 4 << 20 };
enum { N_EVENTS = 64, ACCEPTS = 32 /* per turn, so that deadlines are looked at */ };

static void set_peer(struct ku_rpc_conn *c, bool is_unix, const struct ku_os_address *peer)
{
    const uint8_t *ip = peer->ip;
    if (is_unix)
        snprintf(c->peer, sizeof c->peer, "unix:pid %d", (int)ku_os_unix_peer(c->dup));
    else if (ku_os_address_is_v4(peer))
        snprintf(c->peer, sizeof c->peer, "%u.%u.%u.%u:%u", ip[12], ip[13], ip[14], ip[15],
                 peer->port);
    else
        snprintf(c->peer, sizeof c->peer, "[%x:%x:%x:%x:%x:%x:%x:%x]:%u", ip[0] << 8 | ip[1],
                 ip[2] << 8 | ip[3], ip[4] << 8 | ip[5], ip[6] << 8 | ip[7], ip[8] << 8 | ip[9],
                 ip[10] << 8 | ip[11], ip[12] << 8 | ip[13], ip[14] << 8 | ip[15], peer->port);
}

void ku_rpc_conn_drop(struct ku_rpc_server *s, struct ku_rpc_conn *c)
{
    if (c->next)
        c->next->prev = c->prev;
    if (c->prev)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    s->n_conns--;
    (void)ku_os_epoll_set(s->epoll, c->dup, false, 0, NULL); /* gRPC's descriptor may be open */
    ku_os_close(c->dup);
    c->is_gone = true;
    if (c->n_calls == 0)
        ku_free(c);
}

struct ku_rpc_conn *ku_rpc_conn_begin(struct ku_rpc_server *s, const char *grpc_peer)
{
    struct ku_rpc_conn *c = NULL;
    const bool is_fd = strncmp(grpc_peer, "fd:", 3) == 0;
    const long fd = is_fd ? strtol(grpc_peer + 3, NULL, 10) : -1;
    pthread_mutex_lock(&s->lock);
    for (c = is_fd ? s->conns : NULL; c && c->fd != fd; c = c->next)
        ;
    if (!is_fd)
        c = ku_rpc_find_peer(s, grpc_peer);
    if (c)
        c->n_calls++;
    pthread_mutex_unlock(&s->lock);
    return c;
}

/*
 * A token bucket that holds a second's calls, as one number: each call moves due_ns on by its share
 * of a second, and the bucket is empty when due_ns is a second ahead.
 */
static bool is_within_rate(const struct ku_rpc_server *s, struct ku_rpc_conn *c)
{
    const int64_t now = ku_clock_ns(), share = KU_RPC_SECOND / s->limits.call_rate;
    const int64_t due = (c->due_ns > now ? c->due_ns : now) + share;
    if (due - now > KU_RPC_SECOND)
        return false;
    c->due_ns = due;
    return true;
}

bool ku_rpc_conn_use(struct ku_rpc_server *s, struct ku_rpc_conn *c)
{
    pthread_mutex_lock(&s->lock);
    const bool is_good = c == NULL || is_within_rate(s, c);
    if (c && is_good)
        c->is_used = true;
    pthread_mutex_unlock(&s->lock);
    return is_good;
}

void ku_rpc_conn_end(struct ku_rpc_server *s, struct ku_rpc_conn *c)
{
    if (c->is_used) /* else its first call is awaited: refused ones buy no time */
        c->since_ns = ku_clock_ns();
    c->credit += (int64_t)s->limits.message_bytes;
    if (--c->n_calls > 0)
        return;
    c->has_settled = true;
    if (c->is_gone)
        ku_free(c);
}

void ku_rpc_conn_credit(struct ku_rpc_conn *c, size_t received, size_t sent)
{
    enum { FRAMES = 1024 }; /* 9 bytes per 16 KiB; a window update per 4 KiB */
    enum { RECORDS = 64 };  /* TLS: 22 bytes for each write of the peer, of 1.4 KB or more */
    if (c)
        c->credit += (int64_t)(received + received / FRAMES + sent / (FRAMES / 4) +
                               (c->is_tls ? (received + sent / FRAMES) / RECORDS : 0)) +
                     FRAMES;
}

/* Whether the peer has sent more than the calls explain. */
static bool is_flooding(const struct ku_rpc_server *s, struct ku_rpc_conn *c)
{
    enum { FORGIVEN = 128 << 10 };
    enum { CONTROL = 64 << 10 }; /* pings and window updates of a tick */
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    if (c->is_unix || getsockopt(c->dup, IPPROTO_TCP, TCP_INFO, &info, &bytes) < 0)
        return false;
    const int64_t received = (int64_t)info.tcpi_bytes_received;
    c->ceiling += atomic_exchange(&c->credit, 0) + (c->n_calls > 0 ? CONTROL : 0);
    if (c->has_settled) /* small errors of the account do not add up; a flood is not forgiven */
        c->ceiling += FORGIVEN;
    if (c->ceiling > received)
        c->ceiling = received;
    c->has_settled = false;
    return received > c->ceiling + c->n_calls * (int64_t)s->limits.message_bytes + SLACK;
}

/* Whether the connection may be; with the lock. */
static bool has_room(struct ku_rpc_server *s)
{
    if (s->n_conns < s->limits.connections && !s->is_stopping)
        return true;
    s->refused++;
    return false;
}

bool ku_rpc_conn_add(struct ku_rpc_server *s, struct ku_rpc_conn *c, int fd, int dup, bool is_unix,
                     const struct ku_os_address *peer)
{
    if (!has_room(s) || ku_os_epoll_set(s->epoll, dup, true, EPOLLHUP | EPOLLERR, c) < 0)
        return false;
    c->fd = fd;
    c->dup = dup;
    c->is_unix = is_unix;
    c->address = *peer;
    c->since_ns = ku_clock_ns();
    set_peer(c, is_unix, peer);
    c->next = s->conns;
    if (s->conns)
        s->conns->prev = c;
    s->conns = c;
    s->n_conns++;
    s->accepted++;
    if (!s->is_watched)
        ku_os_ring(s->wake);
    return true;
}

static void hand_over(struct ku_rpc_server *s, int fd, bool is_unix,
                      const struct ku_os_address *peer)
{
    const int on = 1;
    struct ku_rpc_conn *c = ku_calloc(1, sizeof *c), *old;
    int dup = c ? ku_os_dup_above(fd, 3) : -1;
    pthread_mutex_lock(&s->lock);
    for (old = dup >= 0 ? s->conns : NULL; old && old->fd != fd; old = old->next)
        ;
    if (old) /* gRPC has closed that descriptor; its end has not been looked at yet */
        ku_rpc_conn_drop(s, old);
    const bool is_taken = dup >= 0 && ku_rpc_conn_add(s, c, fd, dup, is_unix, peer);
    const int n = s->n_conns;
    pthread_mutex_unlock(&s->lock);
    if (is_taken) {
        if (!is_unix)
            (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        grpc_server_add_channel_from_fd(s->grpc, fd, s->plain);
        return;
    }
    ku_rpc_say(s, "a new connection", "", "closed: %d connections, or no descriptor or memory", n);
    if (dup >= 0)
        ku_os_close(dup);
    ku_os_close(fd);
    ku_free(c);
}

/*
 * Descriptors in turn: gRPC names the connection of a call by its descriptor's number, and calls of
 * a connection that has ended may still be in its queues when the next one is accepted.
 */
static int rename_fd(struct ku_rpc_server *s, int fd)
{
    enum { FIRST = 64 };
    const int n_turns = 2 * s->limits.connections;
    const int other = ku_os_dup_above(fd, FIRST + (int)(s->n_named++ % (unsigned)n_turns));
    if (other < 0)
        return fd;
    ku_os_close(fd);
    return other;
}

static void accept_some(struct ku_rpc_server *s, const struct ku_rpc_listener *l)
{
    struct ku_os_address peer = {0};
    for (int i = 0; i < ACCEPTS; i++) {
        int fd = ku_os_tcp_accept(l->fd, &peer);
        if (fd >= 0) {
            hand_over(s, rename_fd(s, fd), l->address.is_unix, &peer);
            continue;
        }
        /* Without descriptors the queue stays readable: wait a little for some to be closed. */
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            ku_rpc_say(s, l->address.text, "", "accepting: %s", ku_os_why());
            ku_os_await(-1, 0, 20);
        }
        if (errno != ECONNABORTED && errno != EPROTO)
            return;
    }
}

/* A stream that has worked and rests too long is no failure of its peer, which may open another. */
static void end_call(struct ku_rpc_server *s, struct ku_rpc_call *c, bool is_recv)
{
    pthread_mutex_lock(&c->lock);
    const bool is_late = !c->is_over, rests = is_recv && c->has_message;
    c->recv_ns = c->send_ns = INT64_MAX;
    c->is_late |= is_late;
    if (is_late && c->status == KUMI_OK)
        c->status = rests ? KUMI_EPEER : KUMI_ETIMEDOUT;
    pthread_mutex_unlock(&c->lock);
    if (!is_late)
        return;
    s->timed_out++;
    grpc_call_cancel_with_status(
        c->grpc, rests ? GRPC_STATUS_UNAVAILABLE : GRPC_STATUS_DEADLINE_EXCEEDED,
        rests     ? "no complete message before the deadline; open the stream again"
        : is_recv ? "no complete message before the deadline"
                  : "the messages were not read before the deadline",
        NULL);
}

/* Ends what is over its deadline. Returns whether there is anything to look at again. */
static bool look(struct ku_rpc_server *s, int64_t now, bool finds_tls)
{
    char peer[sizeof s->conns->peer] = "";
    bool has_flooded = false;
    pthread_mutex_lock(&s->lock);
    if (finds_tls)
        ku_rpc_find_tls(s);
    for (struct ku_rpc_call *c = s->calls; c; c = c->next)
        if (now > c->recv_ns || now > c->send_ns)
            end_call(s, c, now > c->recv_ns);
    for (struct ku_rpc_conn *c = s->conns; c; c = c->next) {
        const int64_t allowed = c->is_used ? s->limits.unused_ns : s->limits.first_call_ns;
        const bool is_resting = c->n_calls == 0 || !c->is_used;
        const bool is_silent = is_resting && now - c->since_ns >= allowed;
        const bool is_full = !c->is_ending && is_flooding(s, c);
        if (c->is_ending || (!is_full && !is_silent))
            continue;
        s->timed_out++;
        if (is_full || !c->is_used) { /* a client's channel that rests is no news */
            memcpy(peer, c->peer, sizeof peer);
            has_flooded = is_full;
        }
        c->is_ending = true; /* gRPC sees the end and closes it */
        (void)shutdown(c->dup, SHUT_RDWR);
    }
    const bool is_busy = s->is_watched = s->conns || s->calls || s->has_tls;
    pthread_mutex_unlock(&s->lock);
    if (peer[0])
        ku_rpc_say(s, peer, "", "connection closed: %s",
                   has_flooded ? "it sent more than its calls take"
                               : "it made no call that was admitted");
    return is_busy;
}

/* What TLS has refused, without the peer, which gRPC does not tell. */
static void tell_handshakes(struct ku_rpc_server *s)
{
    char why[128];
    const uint64_t n = ku_rpc_n_handshakes_failed(why, sizeof why);
    if (n > s->n_handshakes)
        ku_rpc_say(s, "a new connection", "",
                   "refused: TLS handshake: %s (%llu since the last line)", why,
                   (unsigned long long)(n - s->n_handshakes));
    s->n_handshakes = n;
}

static struct ku_rpc_listener *listener_of(struct ku_rpc_server *s, const void *tag)
{
    for (int i = 0; i < s->n_listeners; i++)
        if (tag == &s->listener[i])
            return &s->listener[i];
    return NULL;
}

static void take_event(struct ku_rpc_server *s, void *tag)
{
    uint64_t n;
    if (tag == s) {
        (void)ku_os_read(s->wake, &n, sizeof n);
        return;
    }
    pthread_mutex_lock(&s->lock);
    struct ku_rpc_conn *c = s->conns;
    while (c && c != tag)
        c = c->next;
    if (c && ku_os_await(c->dup, 0, 0) > 0) /* not another one at the same place */
        ku_rpc_conn_drop(s, c);
    pthread_mutex_unlock(&s->lock);
}

static bool is_at_end(struct ku_rpc_server *s)
{
    pthread_mutex_lock(&s->lock);
    const bool is_ending = s->is_ending;
    pthread_mutex_unlock(&s->lock);
    return is_ending;
}

void *ku_rpc_accept_main(void *server)
{
    struct ku_rpc_server *s = server;
    struct epoll_event events[KU_RPC_MAX_LISTEN + 1];
    for (;;) {
        (void)ku_os_await(s->accept_epoll, POLLIN, -1);
        if (is_at_end(s))
            return NULL;
        const int n = ku_os_epoll_take(s->accept_epoll, events, KU_RPC_MAX_LISTEN + 1);
        for (int i = 0; i < n; i++) {
            const struct ku_rpc_listener *l = listener_of(s, events[i].data.ptr);
            if (l)
                accept_some(s, l);
        }
    }
}

void *ku_rpc_guard_main(void *server)
{
    enum {
        TICK_MS = KU_RPC_TICK_NS / 1000000,
        FIND_TICKS = 4 /* of TLS: a walk over all descriptors */
    };
    struct ku_rpc_server *s = server;
    struct epoll_event events[N_EVENTS];
    int64_t looked_ns = 0;
    bool is_busy = s->has_tls;
    for (unsigned n_looks = 0;;) {
        (void)ku_os_await(s->epoll, POLLIN, is_busy ? TICK_MS : -1);
        if (is_at_end(s))
            return NULL;
        const int n = ku_os_epoll_take(s->epoll, events, N_EVENTS);
        for (int i = 0; i < n; i++)
            take_event(s, events[i].data.ptr);
        const int64_t now = ku_clock_ns();
        if (!is_busy || now - looked_ns >= KU_RPC_TICK_NS) {
            is_busy = look(s, now, s->has_tls && n_looks++ % FIND_TICKS == 0);
            looked_ns = now;
            if (s->has_tls)
                tell_handshakes(s);
        }
    }
}
