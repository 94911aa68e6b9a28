/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Incoming connections.
 *
 *     accept ─> PENDING ── hello ──┬─ JOIN    ─> JOINER (the root, until the hosts have met)
 *                 │ 64 at most     ├─ LINK    ─> CHILD, or EARLY
 *                 │ 5 s each       ├─ DATA    ─> PASS ─> a rank's doorbell
 *                 └─> dropped      └─ REPORT  ─> REPORT
 *
 * A stranger costs one descriptor for 5 s and a line in the log. While 64 are pending the others
 * wait in the kernel's queue.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/stream.h"
#include "job/control/private.h"

#include <errno.h>
#include <sys/epoll.h>

enum { ACCEPTS_PER_EVENT = 64, LOGGED_MAX = 8 };

int ku_parent_of(int host)
{
    return (host - 1) / KU_CONTROL_RADIX;
}

static void log_dropped(struct ku_control *c, const struct ku_conn *conn, const char *why)
{
    char text[KU_ADDRESS_TEXT];
    if (c->gather)
        c->gather->n_refused++;
    if (c->n_logged++ < LOGGED_MAX) /* a flood of strangers fills no log */
        KU_LOG(LAUNCH, WARN, "join: a connection from %s was dropped: %s",
               ku_address_print(&conn->peer, text), why);
}

static void hear(struct ku_control *c, bool is_on)
{
    if (c->is_deaf == !is_on || !c->listener)
        return;
    c->is_deaf = !is_on;
    KU_IGNORE(ku_os_epoll_set(c->epoll, c->listener->fd, is_on, is_on ? EPOLLIN : 0, c->listener),
              "the listener is known");
}

static void accept_one(struct ku_control *c, int fd, const struct ku_os_address *peer)
{
    KU_IGNORE(ku_os_stream_tune(fd, KU_KEEPALIVE_S, KU_PEER_TIMEOUT_MS, true), "it works without");
    struct ku_conn *conn = ku_conn_add(c, KU_CONN_PENDING, fd);
    if (!conn)
        return;
    c->n_pending++;
    conn->peer = *peer;
    conn->deadline_ns = ku_clock_ns() + KU_PENDING_MS * INT64_C(1000000);
    conn->hello = ku_malloc(sizeof *conn->hello);
    if (!conn->hello || ku_hello_start(conn->hello, NULL, c->opts.secret) < 0)
        ku_conn_drop(c, conn);
}

void ku_accept(struct ku_control *c)
{
    for (int i = 0; i < ACCEPTS_PER_EVENT && c->n_pending < KU_PENDING_MAX; i++) {
        struct ku_os_address peer;
        int fd = ku_os_tcp_accept(c->listener->fd, &peer);
        if (fd >= 0) {
            accept_one(c, fd, &peer);
            continue;
        }
        if (errno != EMFILE && errno != ENFILE)
            break;
        hear(c, false); /* until the next round; its event would come at once, again and again */
        if (c->gather) {
            KU_IGNORE(KU_ERR(KUMI_ENOMEM,
                             "join: %u hosts have come, and this process may open no more files; "
                             "raise the limit on the root's host (ulimit -n)",
                             c->gather->n),
                      "the join fails with it");
            ku_join_fail(c);
        }
        break;
    }
    if (c->n_pending >= KU_PENDING_MAX)
        hear(c, false);
}

/* A place as child of this host; is_early: it is not known yet which hosts those are. */
static void take_child(struct ku_control *c, struct ku_conn *conn)
{
    const int host = conn->claim.from, i = host - c->host * KU_CONTROL_RADIX - 1;
    if (host < 1 || host >= KU_MAX_HOSTS || (c->n_hosts && conn->claim.to != c->host)) {
        log_dropped(c, conn, "it is no neighbour of this host");
        ku_conn_drop(c, conn);
        return;
    }
    conn->host = host;
    if (!c->n_hosts) {
        conn->role = KU_CONN_EARLY;
        return;
    }
    if (host >= c->n_hosts || ku_parent_of(host) != c->host || c->child[i] ||
        c->lost_child[i].deadline_ns) {
        log_dropped(c, conn, "it is no child of this host, or it has come before");
        ku_conn_drop(c, conn);
        return;
    }
    conn->role = KU_CONN_CHILD;
    conn->n_rows = 0;
    c->child[i] = conn;
    ku_bridge_rows(c, conn);
}

void ku_accept_children(struct ku_control *c)
{
    for (struct ku_conn *conn = c->conns, *next; conn; conn = next) {
        next = conn->next;
        if (conn->role == KU_CONN_EARLY)
            take_child(c, conn);
    }
}

/* Whether an earlier connection for this rank still waits: ku_conn_add puts the newest first. */
static bool has_earlier(const struct ku_conn *conn)
{
    for (const struct ku_conn *earlier = conn->next; earlier; earlier = earlier->next)
        if (earlier->role == KU_CONN_PASS && earlier->claim.to == conn->claim.to)
            return true;
    return false;
}

void ku_accept_pass(struct ku_control *c, struct ku_conn *conn)
{
    const struct ku_claim *claim = &conn->claim;
    const struct ku_dial_head head = {.from = claim->from,
                                      .to = claim->to,
                                      .slot = claim->slot,
                                      .lane = claim->lane,
                                      .stream = claim->stream};
    const int local = claim->to - c->seg->first_rank;
    if (local < 0 || local >= c->seg->n_local || claim->from < 0 ||
        claim->from >= c->seg->n_ranks) {
        log_dropped(c, conn, "its rank is not on this host");
        ku_conn_drop(c, conn);
        return;
    }
    /*
     * The rank alone reads it from now on; a socket that it shares with this set would wake both. A
     * host that has met the others may dial before this one has its doorbell, and a rank may
     * compute for minutes with a full doorbell: the connection waits. A rank gets its connections
     * in the order of their coming: of two for one stream the first is used.
     */
    if (c->doorbell && !has_earlier(conn) &&
        ku_doorbell_pass(c->doorbell, local, &head, conn->fd) == 0)
        ku_conn_drop(c, conn);
    else if (conn->role == KU_CONN_PENDING || conn->role == KU_CONN_PASS)
        conn->role = KU_CONN_PASS;
}

/*
 * A host that looks for its root on several ports meets other jobs there, and all jobs of a user
 * may have one secret.
 */
static bool is_of_other_job(const struct ku_control *c, const struct ku_conn *conn)
{
    return conn->claim.lane > 1 && conn->claim.slot != (uint32_t)c->meeting.port;
}

/* The root met the hosts, or this is not the root, or not of that job. */
static void refuse_joiner(struct ku_control *c, struct ku_conn *conn)
{
    struct ku_message m = ku_message_of(c, KU_MESSAGE_REFUSE, sizeof(struct kumi_error));
    m.number = is_of_other_job(c, conn) ? KU_REFUSE_ELSEWHERE : 0;
    KU_IGNORE(KU_ERR(KUMI_EINVAL,
                     "join: host %s takes no hosts: it is not the root of the job, or all of its "
                     "hosts have come; give each job a port of its own",
                     c->name),
              "it is sent");
    struct kumi_error e = *ku_err_get();
    conn->role = KU_CONN_LAST;
    ku_conn_send(c, conn, &m, &e);
    if (!conn->n_out)
        ku_conn_drop(c, conn);
}

/* Its hello is done: give it a role. */
static void place(struct ku_control *c, struct ku_conn *conn)
{
    c->n_pending--;
    conn->claim = *ku_hello_claim(conn->hello);
    conn->role = KU_CONN_LAST;
    ku_free(conn->hello);
    conn->hello = NULL;
    switch ((enum ku_claim_kind)conn->claim.kind) {
    case KU_CLAIM_JOIN:
        if (!c->gather || is_of_other_job(c, conn)) {
            refuse_joiner(c, conn);
            return;
        }
        conn->role = KU_CONN_JOINER;
        return;
    case KU_CLAIM_LINK:
        take_child(c, conn);
        return;
    case KU_CLAIM_REPORT:
        conn->role = KU_CONN_REPORT;
        return;
    case KU_CLAIM_DATA:
        conn->role = KU_CONN_PASS;
        ku_conn_watch(c, conn, false);
        /* its bytes are the rank's: no event of them may wake the bridge */
        KU_IGNORE(ku_os_epoll_set(c->epoll, conn->fd, false, 0, conn), "it is in the set");
        ku_accept_pass(c, conn);
        return;
    case KU_CLAIM_NONE:
    case KU_N_CLAIMS:
        break;
    }
    ku_conn_drop(c, conn);
}

void ku_accept_step(struct ku_control *c, struct ku_conn *conn)
{
    const enum ku_hello_end end = ku_hello_step(conn->hello, conn->fd);
    if (end == KU_HELLO_GOING) {
        ku_conn_watch(c, conn, ku_hello_has_output(conn->hello));
        return;
    }
    if (end == KU_HELLO_DONE) {
        place(c, conn);
    } else {
        if (end != KU_HELLO_CLOSED || conn->hello->n_in)
            log_dropped(c, conn, ku_hello_why(end));
        ku_conn_drop(c, conn);
    }
    if (c->n_pending < KU_PENDING_MAX)
        hear(c, true);
}

void ku_accept_expire(struct ku_control *c, int64_t now)
{
    struct ku_conn *first = c->conns;
    while (first && first->next)
        first = first->next;
    for (struct ku_conn *conn = first, *next; conn; conn = next) {
        next = conn->prev;
        if (conn->role == KU_CONN_PASS) {
            ku_accept_pass(c, conn);
        } else if (conn->role == KU_CONN_PENDING && now > conn->deadline_ns) {
            log_dropped(c, conn, ku_hello_why(KU_HELLO_GOING));
            ku_conn_drop(c, conn);
        }
    }
    if (c->n_pending < KU_PENDING_MAX)
        hear(c, true);
}
