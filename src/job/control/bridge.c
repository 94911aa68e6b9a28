/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the bridge of a joined host does.
 *
 *     cause     of this host or from a child: the first goes to the parent, or is the verdict here
 *               if this is the root, or a host whose parent is lost
 *     verdict   becomes the root cause of the segment and goes to all children; it comes once
 *     stop      is set here and goes to all neighbours but the one that sent it
 *     lost      a connection closed without BYE: after 200 ms without any cause the neighbour's
 *               first rank is blamed
 *
 * The host whose cause became the verdict prints it. If the bridge itself raised it, as it lost a
 * neighbour, the bridge prints; of the children of a lost root only the first does.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "job/control/private.h"
#include "job/job.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

enum { EVENTS_PER_SERVE = 256, ROUND_MS = 1000, PENDING_ROUND_MS = 250, OUT_MAX = 1 << 16 };

static void poll_by(struct ku_control *c, int64_t ns)
{
    c->poll_ns = ns < c->poll_ns ? ns : c->poll_ns;
}

/* To all neighbours but one. A child that is still without the table gets it then: send_news. */
static void spread(struct ku_control *c, const struct ku_conn *except, const struct ku_message *m,
                   const void *payload, bool is_up)
{
    if (is_up && c->parent && c->parent != except)
        ku_conn_send(c, c->parent, m, payload);
    for (int i = 0; i < KU_CONTROL_RADIX; i++)
        if (c->child[i] && c->child[i] != except && c->child[i]->n_rows < 0)
            ku_conn_send(c, c->child[i], m, payload);
}

static void send_verdict(struct ku_control *c, struct ku_conn *only)
{
    struct ku_message m = c->cause_head;
    m.kind = KU_MESSAGE_VERDICT;
    if (only) {
        ku_conn_send(c, only, &m, &c->cause);
        return;
    }
    spread(c, NULL, &m, &c->cause, false);
    for (struct ku_conn *conn = c->conns; conn; conn = conn->next)
        if (conn->role == KU_CONN_REPORT)
            ku_conn_send(c, conn, &m, &c->cause);
}

/* What the others learned before this child had the table */
static void send_news(struct ku_control *c, struct ku_conn *conn)
{
    struct ku_message m = ku_message_of(c, KU_MESSAGE_STOP, 0);
    m.number = c->stop;
    if (c->stop)
        ku_conn_send(c, conn, &m, NULL);
    if (c->has_verdict)
        send_verdict(c, conn);
}

void ku_bridge_rows(struct ku_control *c, struct ku_conn *conn)
{
    const struct ku_host_row *table = ku_segment_hosts(c->seg);
    while (c->has_table && conn->n_rows >= 0 && conn->n_out < OUT_MAX) {
        int n = c->n_hosts - conn->n_rows;
        n = n < KU_ROWS_PER_MESSAGE ? n : KU_ROWS_PER_MESSAGE;
        struct ku_message m = ku_message_of(c, KU_MESSAGE_ROWS, (size_t)n * sizeof *table);
        m.number = (uint32_t)conn->n_rows;
        const struct ku_host_row *from = &table[conn->n_rows];
        conn->n_rows = conn->n_rows + n < c->n_hosts ? conn->n_rows + n : -1;
        ku_conn_send(c, conn, &m, from);
        if (conn->n_rows < 0)
            send_news(c, conn);
    }
}

/* The cause that was seen first here is the job's. */
static void decide(struct ku_control *c)
{
    const int origin = c->cause_head.from;
    if (c->has_verdict)
        return;
    c->has_verdict = true;
    const bool is_ours = c->is_cause_own && origin == c->host;
    if (origin != c->host || is_ours)
        atomic_store(&c->seg->root_said, 1);
    send_verdict(c, NULL); /* first: the process may end once it has its root cause */
    if (ku_segment_set_root(c->seg, &c->cause, c->cause_head.rank, origin) && is_ours &&
        (!c->is_cause_parent || c->host == 1)) {
        KU_IGNORE(ku_err_put(&c->cause), "it is printed");
        ku_err_print();
    }
}

static bool is_decider(const struct ku_control *c)
{
    return c->is_root || c->has_parent_left;
}

/* A cause is on its way: the first one that this host sees. */
static void take_cause(struct ku_control *c, const struct ku_message *head,
                       const struct kumi_error *error)
{
    if (c->has_cause || c->has_verdict)
        return;
    c->has_cause = true;
    c->cause_head = *head;
    c->cause = *error;
    ku_message_clean(&c->cause);
    c->cause_head.kind = KU_MESSAGE_CAUSE;
    c->cause_head.bytes = sizeof c->cause;
    c->has_parent_left |= c->lost_parent.deadline_ns != 0; /* no other cause will come from it */
    if (is_decider(c))
        decide(c);
    else if (c->parent)
        ku_conn_send(c, c->parent, &c->cause_head, &c->cause);
}

static void take_verdict(struct ku_control *c, const struct ku_message *head,
                         const struct kumi_error *error)
{
    if (c->has_verdict)
        return;
    c->is_cause_own &= head->from == c->host;
    c->has_cause = true;
    c->cause_head = *head;
    c->cause = *error;
    decide(c);
}

static void take_stop(struct ku_control *c, const struct ku_conn *from, uint32_t signal)
{
    uint32_t none = 0;
    if (c->stop)
        return;
    c->stop = signal;
    atomic_compare_exchange_strong(&c->seg->stop, &none, signal);
    struct ku_message m = ku_message_of(c, KU_MESSAGE_STOP, 0);
    m.number = signal;
    spread(c, from, &m, NULL, true);
}

/* What ranks and the launcher of this host have put into the segment */
static void look_at_segment(struct ku_control *c)
{
    struct ku_message m = ku_message_of(c, KU_MESSAGE_CAUSE, sizeof(struct kumi_error));
    const uint32_t stop = atomic_load(&c->seg->stop);
    if (stop && !c->stop)
        take_stop(c, NULL, stop);
    if (!c->has_seen_local && atomic_load(&c->seg->cause_ready)) {
        c->has_seen_local = true;
        m.rank = (int32_t)(atomic_load(&c->seg->cause_word) & 0xffffffffu) - 1;
        take_cause(c, &m, &c->seg->cause);
    } else if (!c->has_seen_local && !c->has_verdict && atomic_load(&c->seg->root_ready)) {
        c->has_seen_local = true; /* set before there was a bridge, or while it was late */
        m.rank = (int32_t)(atomic_load(&c->seg->abort_word) & 0xffffffffu) - 1;
        take_cause(c, &m, &c->seg->root);
    }
    ku_ask_pass_on(c);
}

static void raise_lost(struct ku_control *c, const struct ku_lost *lost)
{
    const struct ku_host_row *row = &ku_segment_hosts(c->seg)[lost->host];
    struct ku_message m = ku_message_of(c, KU_MESSAGE_CAUSE, sizeof(struct kumi_error));
    char how[64] = "killed or crashed: its connection closed";
    if (lost->why == ETIMEDOUT || lost->why == EHOSTUNREACH)
        snprintf(how, sizeof how, "no answer from its host for %d s", KU_PEER_TIMEOUT_MS / 1000);
    else if (lost->why == ENOTCONN)
        snprintf(how, sizeof how, "its host did not come");
    m.rank = row->first_rank;
    KU_IGNORE(KU_ERR_SCOPE(KUMI_EPEER, KUMI_SCOPE_JOB, "rank died: rank %d on host %s: %s",
                           row->first_rank, row->name, how),
              "it becomes the cause");
    if (!c->has_cause) {
        c->is_cause_own = true;
        c->is_cause_parent = lost == &c->lost_parent;
    }
    take_cause(c, &m, ku_err_get());
}

static void note_lost(struct ku_control *c, struct ku_lost *lost, int host, int why)
{
    *lost = (struct ku_lost){.deadline_ns = ku_clock_ns() + KU_CAUSE_NS, .host = host, .why = why};
    poll_by(c, lost->deadline_ns);
}

/* The connection is closed or broken. */
static void lose(struct ku_control *c, struct ku_conn *conn, int why)
{
    const int i = conn->host - c->host * KU_CONTROL_RADIX - 1;
    const bool is_from_parent = conn->role == KU_CONN_PARENT;
    if (is_from_parent) {
        if (conn->has_said_bye)
            c->has_parent_left = true;
        else
            note_lost(c, &c->lost_parent, conn->host, why);
    } else if (conn->role == KU_CONN_CHILD) {
        KU_ASSERT(i >= 0 && i < KU_CONTROL_RADIX);
        note_lost(c, &c->lost_child[i], conn->host, why);
        if (conn->has_said_bye) /* it came and went */
            c->lost_child[i].deadline_ns = INT64_MAX;
    }
    const bool decides_now = is_from_parent && c->has_cause;
    c->has_parent_left |= decides_now;
    ku_conn_drop(c, conn);
    if (decides_now)
        decide(c);
}

static void tick_lost(struct ku_control *c, struct ku_lost *lost, int64_t now)
{
    if (!lost->deadline_ns || lost->deadline_ns == INT64_MAX)
        return;
    if (now < lost->deadline_ns) {
        poll_by(c, lost->deadline_ns);
        return;
    }
    lost->deadline_ns = INT64_MAX;
    if (lost == &c->lost_parent) {
        c->has_parent_left = true;
        if (c->has_cause)
            decide(c);
    }
    if (!c->has_cause)
        raise_lost(c, lost);
}

/* Children that never came */
static void tick_children(struct ku_control *c, int64_t now)
{
    const int first = c->host * KU_CONTROL_RADIX + 1;
    bool is_missing = false;
    for (int i = 0; i < KU_CONTROL_RADIX && first + i < c->n_hosts; i++) {
        if (c->child[i] || c->lost_child[i].deadline_ns)
            continue;
        is_missing = true;
        if (now >= c->children_due_ns)
            note_lost(c, &c->lost_child[i], first + i, ENOTCONN);
    }
    if (is_missing)
        poll_by(c, c->children_due_ns);
}

void ku_bridge_tick(struct ku_control *c, int64_t now)
{
    look_at_segment(c);
    tick_lost(c, &c->lost_parent, now);
    for (int i = 0; i < KU_CONTROL_RADIX; i++)
        tick_lost(c, &c->lost_child[i], now);
    tick_children(c, now);
}

void ku_bridge_route(struct ku_control *c, const struct ku_message *head, const void *payload)
{
    int at = head->to;
    if (at < 0 || at >= c->n_hosts)
        return;
    while (at > c->host && ku_parent_of(at) != c->host)
        at = ku_parent_of(at);
    struct ku_conn *conn = at > c->host ? c->child[at - c->host * KU_CONTROL_RADIX - 1] : c->parent;
    if (conn && (conn == c->parent || conn->n_rows < 0))
        ku_conn_send(c, conn, head, payload);
}

static bool is_known_error(const struct ku_control *c, const struct ku_message *m)
{
    return m->from < c->n_hosts && m->rank < c->seg->n_ranks;
}

/* 0, or -1: it does not belong here */
static int take_message(struct ku_control *c, struct ku_conn *conn, const struct ku_message *m,
                        const uint8_t *payload)
{
    struct kumi_error e;
    const bool is_below = conn->role == KU_CONN_CHILD || conn->role == KU_CONN_REPORT;
    switch ((enum ku_message_kind)m->kind) {
    case KU_MESSAGE_CAUSE:
    case KU_MESSAGE_VERDICT:
        if (!is_known_error(c, m) || is_below != (m->kind == KU_MESSAGE_CAUSE))
            return -1;
        memcpy(&e, payload, sizeof e);
        if (!is_below)
            take_verdict(c, m, &e);
        else if (!c->has_verdict)
            take_cause(c, m, &e);
        else if (conn->role == KU_CONN_REPORT) /* children have it */
            send_verdict(c, conn);
        return 0;
    case KU_MESSAGE_STOP:
        take_stop(c, conn, m->number);
        return 0;
    case KU_MESSAGE_ASK:
    case KU_MESSAGE_ANSWER:
        if (m->from >= c->n_hosts || m->to >= c->n_hosts || conn->role == KU_CONN_REPORT)
            return -1;
        if (m->to == c->host)
            ku_ask_take(c, m, payload);
        else
            ku_bridge_route(c, m, payload);
        return 0;
    case KU_MESSAGE_BYE:
        conn->has_said_bye = true;
        return 0;
    default:
        return -1;
    }
}

void ku_bridge_event(struct ku_control *c, struct ku_conn *conn)
{
    uint8_t payload[KU_MESSAGE_MAX];
    struct ku_message m;
    int n, filled = 0;
    if (ku_conn_flush(c, conn) < 0) {
        lose(c, conn, errno);
        return;
    }
    if (conn->role == KU_CONN_CHILD)
        ku_bridge_rows(c, conn);
    do {
        while ((n = ku_conn_next(conn, &m, payload)) != 0) {
            if (n > 0 && take_message(c, conn, &m, payload) == 0)
                continue;
            KU_LOG(LAUNCH, WARN, "host %d sent a message (%s) that does not belong there",
                   conn->host, n > 0 ? ku_message_name(m.kind) : "unknown");
            lose(c, conn, EPROTO);
            return;
        }
        filled = ku_conn_fill(conn);
    } while (filled > 0);
    if (filled < 0)
        lose(c, conn, errno);
}

static void serve_last(struct ku_control *c, struct ku_conn *conn)
{
    uint8_t rest[256];
    const bool is_broken = ku_conn_flush(c, conn) < 0;
    if (is_broken || !conn->n_out || ku_os_tcp_recv(conn->fd, rest, sizeof rest) == 0)
        ku_conn_drop(c, conn);
}

static void drain_doorbell(struct ku_control *c)
{
    struct ku_dial_head head;
    int fd, status;
    while ((status = ku_doorbell_take(c->doorbell, &head, &fd)) != 0)
        if (status > 0)
            ku_os_close(fd); /* the bridge takes none */
}

static void serve_event(struct ku_control *c, struct ku_conn *conn)
{
    switch (conn->role) {
    case KU_CONN_LISTENER:
        ku_accept(c);
        break;
    case KU_CONN_DOORBELL:
        drain_doorbell(c);
        break;
    case KU_CONN_PENDING:
        ku_accept_step(c, conn);
        break;
    case KU_CONN_JOINER:
        if (c->gather)
            ku_gather_take(c, conn);
        else
            ku_conn_drop(c, conn);
        break;
    case KU_CONN_EARLY:
        if (ku_conn_fill(conn) < 0)
            ku_conn_drop(c, conn);
        break;
    case KU_CONN_ROOT:
        ku_join_event(c, conn);
        break;
    case KU_CONN_PARENT:
        if (!ku_control_is_joined(c)) {
            ku_join_event(c, conn);
            break;
        }
        ku_bridge_event(c, conn);
        break;
    case KU_CONN_CHILD:
    case KU_CONN_REPORT:
        ku_bridge_event(c, conn);
        break;
    case KU_CONN_LAST:
        serve_last(c, conn);
        break;
    case KU_CONN_PASS:
        break;
    }
}

static bool has_pass(const struct ku_control *c)
{
    for (const struct ku_conn *conn = c->conns; conn; conn = conn->next)
        if (conn->role == KU_CONN_PASS)
            return true;
    return false;
}

void ku_control_serve(struct ku_control *c)
{
    const int64_t ms = 1000000, poll_ns = c->poll_ns;
    struct epoll_event event;
    /* one at a time: an event may end other connections */
    for (int i = 0; i < EVENTS_PER_SERVE && ku_os_epoll_take(c->epoll, &event, 1) > 0; i++)
        serve_event(c, event.data.ptr);
    const int64_t now = ku_clock_ns();
    if (now >= poll_ns) {
        c->poll_ns = INT64_MAX;
        ku_accept_expire(c, now);
    }
    if (c->is_up) {
        ku_bridge_tick(c, now);
        if (has_pass(c))
            poll_by(c, now + KU_RETRY_MS * ms);
    }
    if (c->n_pending || c->is_deaf)
        poll_by(c, now + PENDING_ROUND_MS * ms);
}

int ku_control_fd(const struct ku_control *c)
{
    return c->epoll;
}

int ku_control_timeout_ms(const struct ku_control *c)
{
    const int64_t left_ns = c->poll_ns == INT64_MAX ? INT64_MAX : c->poll_ns - ku_clock_ns();
    if (left_ns <= 0)
        return 0;
    return left_ns > ROUND_MS * INT64_C(1000000) ? ROUND_MS : (int)(left_ns / 1000000) + 1;
}

void ku_control_leave(struct ku_control *c)
{
    if (c && ku_control_is_joined(c)) {
        struct ku_message m = ku_message_of(c, KU_MESSAGE_BYE, 0);
        spread(c, NULL, &m, NULL, true);
    }
    ku_control_break(c);
}

void ku_control_break(struct ku_control *c)
{
    if (!c)
        return;
    const int listener = c->listener && !c->opts.listener ? c->listener->fd : -1;
    while (c->conns)
        ku_conn_drop(c, c->conns);
    if (listener >= 0)
        ku_os_close(listener);
    ku_doorbell_close(c->doorbell);
    ku_gather_destroy(c);
    if (c->epoll >= 0)
        ku_os_close(c->epoll);
    ku_free(c);
}
