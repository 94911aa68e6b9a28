/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of a link. One sendmsg takes what fits of the queue, headers and pieces of many messages:
 *
 *     queue      [head|piece|piece] [head|piece] [head]
 *     vectors      v0    v1    v2     v3    v4     v5
 *
 * One recvmsg stores the rest of the payload in place, and what follows it in the buffer: the next
 * header, with small messages after it.
 *
 *     stream     … payload of message i | head i+1 | payload i+1 | head i+2 …
 *     vectors      v0 (its pieces)      | v1 (the buffer) ………………………
 */
#include "base/err.h"
#include "base/os/os.h"
#include "base/os/stream.h"
#include "comm/tcp/private.h"

#include <errno.h>
#include <string.h>

enum { HEAD_BYTES = sizeof(struct ku_net_head) };

struct vectors {
    struct iovec v[KU_TCP_VECTORS];
    int n;
    size_t bytes, max_bytes;
};

static void add_vector(struct vectors *vs, void *at, size_t bytes)
{
    if (bytes > vs->max_bytes - vs->bytes)
        bytes = vs->max_bytes - vs->bytes;
    if (bytes == 0 || vs->n == KU_TCP_VECTORS)
        return;
    vs->v[vs->n++] = (struct iovec){.iov_base = at, .iov_len = bytes};
    vs->bytes += bytes;
}

/* What is left of a payload, of which `moved` bytes are done */
static void add_payload(struct vectors *vs, const struct ku_net_req *req, size_t moved)
{
    for (int i = 0; i < req->n_pieces; i++) {
        size_t bytes = req->piece[i].bytes, done = moved < bytes ? moved : bytes;
        add_vector(vs, (char *)req->piece[i].at + done, bytes - done);
        moved -= done;
    }
}

/* The system call failed, or the stream ended (errno 0). */
static int raise_broken(struct ku_tcp *tcp, const struct ku_tcp_link *link)
{
    const int why = errno;
    char name[128];
    ku_tcp_name(tcp, link->base.rank, name);
    switch (why) {
    case 0:
    case EPIPE:
    case ECONNRESET:
        return KU_ERR_SCOPE(KUMI_EPEER, KUMI_SCOPE_COMM, "%s: connection closed", name);
    case ETIMEDOUT:
        return KU_ERR_SCOPE(KUMI_ETIMEDOUT, KUMI_SCOPE_COMM,
                            "%s: no acknowledgement for %d s: its host or the network between is "
                            "down",
                            name, KU_TCP_SILENCE_MS / 1000);
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
        return KU_ERR_SCOPE(KUMI_EPEER, KUMI_SCOPE_COMM,
                            "%s: connection: %s: its host or the network between is down", name,
                            strerror(why));
    default:
        return KU_ERR_SCOPE(ku_os_status(KUMI_EPEER), KUMI_SCOPE_COMM, "%s: connection: %s", name,
                            ku_os_why());
    }
}

int ku_tcp_look(struct ku_tcp *tcp, const struct ku_tcp_link *link)
{
    if (link->fd < 0 || !ku_os_stream_is_dead(link->fd, KU_TCP_SILENCE_MS))
        return 0;
    errno = ETIMEDOUT;
    return raise_broken(tcp, link);
}

int ku_tcp_send(struct ku_tcp *tcp, struct ku_tcp_link *link, size_t max_bytes, size_t *moved)
{
    struct vectors vs = {.max_bytes = max_bytes};
    for (struct ku_net_req *r = link->out.head; r; r = r->next) {
        if (r->moved < HEAD_BYTES)
            add_vector(&vs, (char *)&r->head + r->moved, HEAD_BYTES - r->moved);
        add_payload(&vs, r, r->moved < HEAD_BYTES ? 0 : r->moved - HEAD_BYTES);
        if (vs.bytes == max_bytes || vs.n == KU_TCP_VECTORS)
            break;
    }
    KU_ASSERT(vs.bytes > 0);
    ssize_t n = ku_os_stream_send(link->fd, vs.v, vs.n);
    *moved = 0;
    link->is_full = n < (ssize_t)vs.bytes;
    if (n < 0)
        return errno == EAGAIN ? 0 : raise_broken(tcp, link);
    *moved = (size_t)n;
    for (size_t left = (size_t)n; left > 0;) {
        struct ku_net_req *r = link->out.head;
        size_t rest = ku_net_message_bytes(r) - r->moved, part = left < rest ? left : rest;
        r->moved += part;
        left -= part;
        if (part < rest)
            break;
        tcp->stats.n_sent++;
        tcp->stats.sent_bytes += r->head.bytes;
        ku_net_end(&link->out, 0);
    }
    return 0;
}

/* The header is complete: 0, or the request has ended. */
static int check_head(struct ku_tcp_link *link)
{
    if (!ku_net_is_mismatch(link->in.head))
        return 0;
    link->is_mismatched = true;
    ku_net_end(&link->in, KUMI_EMISMATCH);
    return KUMI_EMISMATCH;
}

static void end_if_received(struct ku_tcp *tcp, struct ku_tcp_link *link)
{
    struct ku_net_req *r = link->in.head;
    if (r->moved < ku_net_message_bytes(r))
        return;
    tcp->stats.n_received++;
    tcp->stats.received_bytes += r->head.bytes;
    ku_net_end(&link->in, 0);
}

static size_t take_buffered(struct ku_tcp_link *link, void *at, size_t bytes)
{
    size_t n = link->end - link->at;
    if (n > bytes)
        n = bytes;
    memcpy(at, link->buffer + link->at, n);
    link->at += n;
    return n;
}

/* Serve requests from the buffer, until it is empty or no request is left. */
static void drain_buffer(struct ku_tcp *tcp, struct ku_tcp_link *link)
{
    while (ku_tcp_wants_in(link) && link->at < link->end) {
        struct ku_net_req *r = link->in.head;
        if (r->moved < HEAD_BYTES) {
            r->moved += take_buffered(link, (char *)&r->came + r->moved, HEAD_BYTES - r->moved);
            if (r->moved < HEAD_BYTES || check_head(link))
                continue;
        }
        struct vectors vs = {.max_bytes = link->end - link->at};
        add_payload(&vs, r, r->moved - HEAD_BYTES);
        for (int i = 0; i < vs.n; i++)
            r->moved += take_buffered(link, vs.v[i].iov_base, vs.v[i].iov_len);
        end_if_received(tcp, link);
    }
}

int ku_tcp_recv(struct ku_tcp *tcp, struct ku_tcp_link *link, size_t max_bytes, size_t *moved)
{
    struct vectors vs = {.max_bytes = max_bytes};
    size_t in_place;
    *moved = 0;
    if (link->at < link->end) { /* read ahead by an earlier call */
        size_t before = link->at;
        drain_buffer(tcp, link);
        *moved = link->at - before;
        return 0;
    }
    if (link->in.head->moved >= HEAD_BYTES)
        add_payload(&vs, link->in.head, link->in.head->moved - HEAD_BYTES);
    in_place = vs.bytes;
    add_vector(&vs, link->buffer, sizeof link->buffer);
    ssize_t n = ku_os_stream_recv(link->fd, vs.v, vs.n);
    link->is_dry = n < (ssize_t)vs.bytes;
    if (n <= 0) {
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n == 0)
            errno = 0;
        return raise_broken(tcp, link);
    }
    *moved = (size_t)n;
    if ((size_t)n < in_place)
        in_place = (size_t)n;
    link->at = 0;
    link->end = (size_t)n - in_place;
    if (in_place > 0) {
        link->in.head->moved += in_place;
        end_if_received(tcp, link);
    }
    drain_buffer(tcp, link);
    return 0;
}
