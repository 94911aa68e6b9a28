/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of a bridge: none of these functions waits. */
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "job/control/private.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

struct ku_conn *ku_conn_add(struct ku_control *c, enum ku_conn_role role, int fd)
{
    struct ku_conn *conn = ku_calloc(1, sizeof *conn);
    if (!conn || ku_os_epoll_set(c->epoll, fd, true, EPOLLIN, conn) < 0) {
        if (conn)
            KU_IGNORE(KU_ERR(KUMI_ENOMEM, "join: epoll: %s", ku_os_why()), "NULL says it");
        ku_free(conn);
        if (role != KU_CONN_LISTENER && role != KU_CONN_DOORBELL)
            ku_os_close(fd);
        return NULL;
    }
    conn->role = role;
    conn->fd = fd;
    conn->host = conn->n_rows = -1;
    conn->next = c->conns;
    if (c->conns)
        c->conns->prev = conn;
    c->conns = conn;
    return conn;
}

void ku_conn_drop(struct ku_control *c, struct ku_conn *conn)
{
    if (!conn)
        return;
    if (conn->role == KU_CONN_PENDING)
        c->n_pending--;
    if (c->parent == conn)
        c->parent = NULL;
    for (int i = 0; i < KU_CONTROL_RADIX; i++)
        if (c->child[i] == conn)
            c->child[i] = NULL;
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        c->conns = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    /* the socket may live on in a rank */
    KU_IGNORE(ku_os_epoll_set(c->epoll, conn->fd, false, 0, conn), "it is closed");
    if (conn->role != KU_CONN_DOORBELL && conn->role != KU_CONN_LISTENER)
        ku_os_close(conn->fd);
    ku_free(conn->hello);
    ku_free(conn->in);
    ku_free(conn->out);
    ku_free(conn);
}

void ku_conn_watch(struct ku_control *c, struct ku_conn *conn, bool has_output)
{
    if (conn->is_out_watched == has_output)
        return;
    conn->is_out_watched = has_output;
    KU_IGNORE(
        ku_os_epoll_set(c->epoll, conn->fd, false, EPOLLIN | (has_output ? EPOLLOUT : 0), conn),
        "the descriptor is in the set");
}

int ku_conn_flush(struct ku_control *c, struct ku_conn *conn)
{
    while (conn->n_sent < conn->n_out) {
        ssize_t n = ku_os_tcp_send(conn->fd, conn->out + conn->n_sent, conn->n_out - conn->n_sent);
        if (n < 0 && errno != EAGAIN)
            return -1;
        if (n < 0)
            break;
        conn->n_sent += (size_t)n;
    }
    if (conn->n_sent == conn->n_out)
        conn->n_sent = conn->n_out = 0;
    ku_conn_watch(c, conn, conn->n_out > 0);
    return 0;
}

void ku_conn_send(struct ku_control *c, struct ku_conn *conn, const struct ku_message *head,
                  const void *payload)
{
    const size_t bytes = sizeof *head + head->bytes;
    if (conn->n_out + bytes > conn->cap_out) {
        const size_t cap = (conn->n_out + bytes) * 2;
        uint8_t *out = ku_realloc(conn->out, cap, 1);
        if (!out)
            return; /* the message is lost; questions are asked again, causes come by deadlines */
        conn->out = out;
        conn->cap_out = cap;
    }
    memcpy(conn->out + conn->n_out, head, sizeof *head);
    if (head->bytes)
        memcpy(conn->out + conn->n_out + sizeof *head, payload, head->bytes);
    conn->n_out += bytes;
    if (ku_conn_flush(c, conn) < 0)
        ku_conn_watch(c, conn, true); /* the next event finds it broken */
}

int ku_conn_fill(struct ku_conn *conn)
{
    if (conn->cap_in < KU_MESSAGE_MAX) {
        uint8_t *in = ku_realloc(conn->in, KU_MESSAGE_MAX, 1);
        if (!in) {
            errno = ENOMEM;
            return -1;
        }
        conn->in = in;
        conn->cap_in = KU_MESSAGE_MAX;
    }
    if (conn->n_in == conn->cap_in)
        return 1; /* a whole message is there */
    ssize_t n = ku_os_tcp_recv(conn->fd, conn->in + conn->n_in, conn->cap_in - conn->n_in);
    if (n < 0)
        return errno == EAGAIN ? 0 : -1;
    if (n == 0) {
        errno = 0;
        return -1;
    }
    conn->n_in += (size_t)n;
    return 1;
}

int ku_conn_next(struct ku_conn *conn, struct ku_message *head, uint8_t *payload)
{
    const uint8_t *at;
    int n = ku_message_parse(conn->in, conn->n_in, head, &at);
    if (n > 0) {
        memcpy(payload, at, head->bytes);
        conn->n_in -= (size_t)n;
        memmove(conn->in, conn->in + n, conn->n_in);
    }
    return n;
}

struct ku_message ku_message_of(const struct ku_control *c, enum ku_message_kind kind, size_t bytes)
{
    return (struct ku_message){.magic = KU_MESSAGE_MAGIC,
                               .kind = kind,
                               .bytes = (uint32_t)bytes,
                               .from = c->host,
                               .rank = -1};
}
