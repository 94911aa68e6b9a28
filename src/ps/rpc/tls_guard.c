/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections over TLS. gRPC accepts them itself and tells of them only by the peer of a call, so
 * the guard finds their descriptors in /proc/self/fd: sockets whose own port is one that gRPC
 * listens on. From then on they are connections like the others: counted, ended on their deadlines
 * and when they send more than their calls take. One beyond the limit is shut down when it is
 * found, which takes 0.2 s at most.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ps/rpc/private.h"

static bool is_equal(const struct ku_os_address *a, const struct ku_os_address *b)
{
    return a->port == b->port && memcmp(a->ip, b->ip, sizeof a->ip) == 0;
}

/* Whether a descriptor is a connection to a port on which gRPC listens; its peer. */
static bool is_tls(const struct ku_rpc_server *s, int fd, struct ku_os_address *peer)
{
    struct ku_os_address own;
    if (ku_os_tcp_address(fd, false, &own) < 0 || ku_os_tcp_address(fd, true, peer) < 0)
        return false;
    for (int i = 0; i < s->n_listeners; i++)
        if (s->listener[i].is_tls && s->listener[i].address.tcp.port == own.port)
            return true;
    return false;
}

/*
 * Takes a connection in, or ends it if there are too many. Returns the guard's descriptor, or -1.
 * The server's lock is held.
 */
static int adopt(struct ku_rpc_server *s, int fd, const struct ku_os_address *peer)
{
    struct ku_os_address again;
    struct ku_rpc_conn *c = ku_calloc(1, sizeof *c);
    const int dup = c ? ku_os_dup_above(fd, 3) : -1;
    /* gRPC may have closed fd since: what counts is what the duplicate is. */
    const bool is_it = dup >= 0 && is_tls(s, dup, &again) && is_equal(&again, peer);
    if (is_it && ku_rpc_conn_add(s, c, fd, dup, false, peer)) {
        c->is_tls = true;
        return dup;
    }
    if (is_it)
        (void)shutdown(dup, SHUT_RDWR);
    if (dup >= 0)
        ku_os_close(dup);
    ku_free(c);
    return -1;
}

/* The connections of the list by gRPC's descriptor; their duplicates are marked by `mine`. */
struct known {
    struct ku_rpc_conn **conn; /* [n] */
    bool *mine;                /* [n] */
    int n;
};

static bool look_up(const struct ku_rpc_server *s, struct known *k)
{
    k->conn = ku_calloc((size_t)k->n, sizeof *k->conn);
    k->mine = ku_calloc((size_t)k->n, sizeof *k->mine);
    if (k->conn == NULL || k->mine == NULL)
        return false;
    for (struct ku_rpc_conn *c = s->conns; c; c = c->next) {
        if (c->fd < k->n)
            k->conn[c->fd] = c;
        if (c->dup < k->n)
            k->mine[c->dup] = true;
    }
    return true;
}

static void take_in(struct ku_rpc_server *s, const struct known *k, int fd)
{
    struct ku_os_address peer;
    if (k->mine[fd] || !is_tls(s, fd, &peer))
        return;
    struct ku_rpc_conn *old = k->conn[fd];
    if (old && old->is_tls && is_equal(&old->address, &peer))
        return;
    if (old) { /* gRPC has closed that descriptor; its end has not been looked at yet */
        ku_rpc_conn_drop(s, old);
        k->conn[fd] = NULL;
    }
    const int dup = adopt(s, fd, &peer);
    if (dup >= 0 && dup < k->n) /* the number of the walk's own descriptor, or of one that closed */
        k->mine[dup] = true;
}

void ku_rpc_find_tls(struct ku_rpc_server *s)
{
    struct known k = {0};
    char **names;
    int n = 0;
    if (ku_os_list("/proc/self/fd", &names, &n) < 0)
        return;
    for (int i = 0; i < n; i++) {
        const int fd = (int)strtol(names[i], NULL, 10);
        k.n = fd >= k.n ? fd + 1 : k.n;
    }
    if (k.n > 0 && look_up(s, &k))
        for (int i = 0; i < n; i++)
            take_in(s, &k, (int)strtol(names[i], NULL, 10));
    ku_free(k.conn);
    ku_free(k.mine);
    ku_free(names);
}

/* "ipv4:192.0.2.1:77", "ipv6:[2001:db8::1]:77", with the brackets perhaps as %5B and %5D. */
static bool parse_peer(const char *text, struct ku_os_address *out)
{
    char host[64];
    const char *from = text + 5, *colon = strrchr(text, ':');
    size_t n = 0;
    if ((strncmp(text, "ipv4:", 5) != 0 && strncmp(text, "ipv6:", 5) != 0) || colon <= from)
        return false;
    for (const char *at = from; at < colon && n + 1 < sizeof host; at++) {
        if (*at == '%' && colon - at > 2 && at[1] == '5') /* of %5B, %5D */
            at += 2;
        else if (*at != '[' && *at != ']')
            host[n++] = *at;
    }
    host[n] = '\0';
    memset(out, 0, sizeof *out);
    out->port = (uint16_t)strtoul(colon + 1, NULL, 10);
    if (text[3] == '6')
        return inet_pton(AF_INET6, host, out->ip) == 1;
    out->ip[10] = out->ip[11] = 0xff;
    return inet_pton(AF_INET, host, out->ip + 12) == 1;
}

static struct ku_rpc_conn *find(const struct ku_rpc_server *s, const struct ku_os_address *peer)
{
    struct ku_rpc_conn *c = s->conns;
    while (c && !(c->is_tls && is_equal(&c->address, peer)))
        c = c->next;
    return c;
}

struct ku_rpc_conn *ku_rpc_find_peer(struct ku_rpc_server *s, const char *grpc_peer)
{
    struct ku_os_address peer;
    if (!s->has_tls || !parse_peer(grpc_peer, &peer))
        return NULL;
    struct ku_rpc_conn *c = find(s, &peer);
    if (c == NULL) {
        ku_rpc_find_tls(s);
        c = find(s, &peer);
    }
    return c;
}
