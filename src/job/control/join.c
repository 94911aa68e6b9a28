/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a host joins.
 *
 *     root      listens ─> rows of all hosts ─> check ─> places ─> joined
 *     others    listen on any port
 *               ─> ROOT: connect, hello, ROW ─> PLACE ─> is the root the parent?
 *                    yes: that connection is PARENT        no: connect to it, hello
 *               ─> ROWS: the table ─> joined
 *
 * A root that does not listen yet, or another program or job on one of its ports, is tried again
 * until the time is up.
 *
 * Two processes with rank 0 are two roots. The one that finds a port of the meeting place taken, or
 * that is on another host than that, sends its row there as well: the root there has rank 0 twice,
 * and refuses both.
 *
 * A join that fails is told to the hosts that come up to KU_REFUSE_NS later: they need not wait for
 * their own deadline.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/process.h"
#include "base/os/stream.h"
#include "job/control/private.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

enum {
    BACKLOG = 1024,
    /* after all ports were tried; from then on half as long again, for a root that comes late */
    PAUSE_NS = 20 * 1000 * 1000,
    PAUSE_MAX_NS = 1000 * 1000 * 1000,
    SECRETS_MAX = 20,
    ROUND_MS = 50
};
/* For a port of several on which another program listens and says nothing */
static const int64_t ATTEMPT_NS = INT64_C(2000000000);

bool ku_control_is_joined(const struct ku_control *c)
{
    return c->has_table && c->n_rows == c->n_hosts && c->status == 0 && !c->gather;
}

void ku_join_fail(struct ku_control *c)
{
    if (c->status < 0)
        return;
    c->failure = *ku_err_get();
    c->status = c->failure.status;
}

/* The name of the peer of the current attempt: "root a:29400", "host b (10.0.0.2:4000)" */
static void peer_text(const struct ku_control *c, const struct ku_conn *conn, char *text,
                      size_t cap)
{
    char at[KU_ADDRESS_TEXT];
    ku_address_print(&conn->peer, at);
    if (conn->role == KU_CONN_ROOT)
        snprintf(text, cap, "root %s (%s)", c->meeting.name, at);
    else
        snprintf(text, cap, "host %d (%s)", conn->host, at);
}

/* A connection of the join ended before its time. */
static void end_attempt(struct ku_control *c, struct ku_conn *conn, enum ku_hello_end end)
{
    char text[400];
    if (c->is_root) { /* no rival answers there */
        ku_conn_drop(c, conn);
        return;
    }
    peer_text(c, conn, text, sizeof text);
    const bool is_final = conn->role != KU_CONN_ROOT || !conn->hello || c->meeting.n_ports == 1;
    const bool has_spoken = end == KU_HELLO_SECRET || end == KU_HELLO_OTHER_VERSION;
    if (!conn->hello) {
        KU_IGNORE(KU_ERR(KUMI_EPEER,
                         "join: %s closed the connection before all hosts had met; see the error "
                         "that it printed",
                         text),
                  "the join fails with it");
        ku_join_fail(c);
    } else if (has_spoken && (is_final || ++c->n_secrets >= SECRETS_MAX)) {
        KU_IGNORE(KU_ERR(KUMI_EINVAL, "join: %s: %s", text, ku_hello_why(end)),
                  "the join fails with it");
        ku_join_fail(c);
    }
    ku_conn_drop(c, conn);
}

int ku_join_row(struct ku_control *c, struct ku_join_row *out)
{
    struct ku_os_address own;
    if (ku_os_tcp_address(c->listener->fd, false, &own) < 0)
        return KU_ERR(KUMI_ENOMEM, "join: own port: %s", ku_os_why());
    c->address.port = own.port;
    ku_row_own(c, out);
    return 0;
}

/* In place of a row: why this host has none */
static void send_refusal(struct ku_control *c, struct ku_conn *conn)
{
    struct ku_message m = ku_message_of(c, KU_MESSAGE_REFUSE, sizeof *c->opts.refusal);
    m.number = (uint32_t)c->opts.n_local;
    ku_conn_send(c, conn, &m, c->opts.refusal);
    KU_IGNORE(ku_err_put(c->opts.refusal), "the join fails with it");
    ku_join_fail(c);
}

static void send_row(struct ku_control *c, struct ku_conn *conn)
{
    struct ku_message m = ku_message_of(c, KU_MESSAGE_ROW, sizeof(struct ku_join_row));
    const struct ku_os_address own = c->address; /* of a root: not yet chosen */
    struct ku_join_row j;
    if (ku_address_choose(c->name, c->opts.interface, &conn->peer, &c->address) < 0 ||
        ku_join_row(c, &j) < 0)
        ku_join_fail(c);
    else
        ku_conn_send(c, conn, &m, &j);
    if (c->is_root)
        c->address = own;
}

static void become_joined(struct ku_control *c)
{
    struct ku_segment *seg = c->seg;
    if (!seg->has_secret)
        ku_segment_set_secret(seg, c->opts.secret);
    c->children_due_ns = ku_clock_ns() + c->opts.timeout_ns;
    c->is_up = true;
    atomic_store(&seg->host, (uint32_t)c->host);
    atomic_store(&seg->n_hosts, (uint32_t)c->n_hosts);
    if (c->parent) /* what came right after the table */
        ku_bridge_event(c, c->parent);
}

static int take_place(struct ku_control *c, struct ku_conn *conn, const struct ku_message *m,
                      const uint8_t *payload)
{
    struct ku_host_row parent;
    if (conn->role != KU_CONN_ROOT || c->n_hosts || c->is_root)
        return -1;
    memcpy(&parent, payload, sizeof parent);
    c->host = m->to;
    c->n_hosts = (int)m->number;
    memcpy(c->parent_at.ip, parent.address, sizeof c->parent_at.ip);
    c->parent_at.port = parent.port;
    if (ku_parent_of(c->host) == 0) {
        conn->role = KU_CONN_PARENT;
        conn->host = 0;
        c->parent = conn;
    } else {
        conn->role = KU_CONN_LAST; /* the root closes it as well */
        c->retry_ns = 0;
    }
    ku_accept_children(c);
    return 0;
}

/* The ranks of the rows follow each other, and this host's are its own. */
static int take_rows(struct ku_control *c, struct ku_conn *conn, const struct ku_message *m,
                     const uint8_t *payload)
{
    struct ku_host_row *table = ku_segment_hosts(c->seg);
    const int n = (int)(m->bytes / sizeof *table);
    if (conn->role != KU_CONN_PARENT || c->has_table || (int)m->number != c->n_rows ||
        n > c->n_hosts - c->n_rows)
        return -1;
    memcpy(&table[c->n_rows], payload, m->bytes);
    for (int i = c->n_rows; i < c->n_rows + n; i++)
        if (table[i].first_rank != (i ? table[i - 1].first_rank + table[i - 1].n_ranks : 0))
            return -1;
    c->n_rows += n;
    if (c->n_rows < c->n_hosts)
        return 0;
    if (table[c->host].first_rank != c->seg->first_rank ||
        table[c->host].n_ranks != c->seg->n_local ||
        table[c->n_hosts - 1].first_rank + table[c->n_hosts - 1].n_ranks != c->opts.n)
        return -1;
    c->has_table = true;
    for (int i = 0; i < KU_CONTROL_RADIX; i++)
        if (c->child[i])
            ku_bridge_rows(c, c->child[i]);
    return 0;
}

static int take_message(struct ku_control *c, struct ku_conn *conn, const struct ku_message *m,
                        const uint8_t *payload)
{
    struct kumi_error e;
    switch ((enum ku_message_kind)m->kind) {
    case KU_MESSAGE_PLACE:
        return take_place(c, conn, m, payload);
    case KU_MESSAGE_ROWS:
        return take_rows(c, conn, m, payload);
    case KU_MESSAGE_REFUSE:
        if (conn->role == KU_CONN_ROOT && m->number == KU_REFUSE_ELSEWHERE) {
            c->has_met_others = true;
            conn->role = KU_CONN_LAST; /* this job's root may be on the next port */
            return 0;
        }
        memcpy(&e, payload, sizeof e);
        ku_message_clean(&e);
        KU_IGNORE(ku_err_put(&e), "the join fails with it");
        ku_join_fail(c);
        return 0;
    default:
        return -1;
    }
}

void ku_join_event(struct ku_control *c, struct ku_conn *conn)
{
    uint8_t payload[KU_MESSAGE_MAX];
    struct ku_message m;
    int n;
    if (conn->hello) {
        const enum ku_hello_end end = ku_hello_step(conn->hello, conn->fd);
        if (end == KU_HELLO_GOING)
            ku_conn_watch(c, conn, ku_hello_has_output(conn->hello));
        else if (end != KU_HELLO_DONE)
            end_attempt(c, conn, end);
        if (end != KU_HELLO_DONE)
            return;
        ku_free(conn->hello);
        conn->hello = NULL;
        ku_conn_watch(c, conn, false);
        if (conn->role == KU_CONN_ROOT && c->opts.refusal)
            send_refusal(c, conn);
        else if (conn->role == KU_CONN_ROOT)
            send_row(c, conn);
        return;
    }
    if (ku_conn_flush(c, conn) < 0 || ku_conn_fill(conn) < 0) {
        end_attempt(c, conn, KU_HELLO_CLOSED);
        return;
    }
    while (!ku_control_is_joined(c) && conn->role != KU_CONN_LAST &&
           (n = ku_conn_next(conn, &m, payload)) != 0) {
        if (n > 0 && take_message(c, conn, &m, payload) == 0)
            continue;
        KU_IGNORE(KU_ERR(KUMI_EINVAL,
                         "join: host %d sent a message (%s) that does not belong there; use one "
                         "version of kumi on all hosts",
                         conn->host, n > 0 ? ku_message_name(m.kind) : "unknown"),
                  "the join fails with it");
        ku_join_fail(c);
        return;
    }
    if (conn->role == KU_CONN_LAST)
        ku_conn_drop(c, conn);
}

/* Connect to the next address and port of the root, or to the parent. */
static void dial(struct ku_control *c)
{
    struct ku_os_address to = c->parent_at;
    struct ku_claim claim = {.kind = KU_CLAIM_LINK, .from = c->host, .to = ku_parent_of(c->host)};
    if (!c->n_hosts) {
        const int n_ports = c->is_root ? c->n_rival_ports : c->meeting.n_ports;
        to = c->root[c->candidate / n_ports % c->n_root];
        to.port = (uint16_t)(c->meeting.port + c->candidate % n_ports);
        claim = (struct ku_claim){.kind = KU_CLAIM_JOIN,
                                  .from = c->opts.rank,
                                  .slot = (uint32_t)c->meeting.port,
                                  .lane = (uint32_t)c->meeting.n_ports};
        c->candidate = (c->candidate + 1) % (n_ports * c->n_root);
    }
    c->retry_ns = 0;
    if (c->n_hosts || c->candidate == 0) {
        c->pause_ns = c->pause_ns ? c->pause_ns + c->pause_ns / 2 : PAUSE_NS;
        c->pause_ns = c->pause_ns < PAUSE_MAX_NS ? c->pause_ns : PAUSE_MAX_NS;
        c->retry_ns = ku_clock_ns() + c->pause_ns;
    }
    int fd = ku_os_tcp_connect(&to);
    if (fd < 0)
        return;
    KU_IGNORE(ku_os_stream_tune(fd, KU_KEEPALIVE_S, KU_PEER_TIMEOUT_MS, true), "it works without");
    struct ku_conn *conn = ku_conn_add(c, c->n_hosts ? KU_CONN_PARENT : KU_CONN_ROOT, fd);
    if (!conn)
        return;
    conn->peer = to;
    conn->host = claim.to;
    conn->deadline_ns =
        c->n_hosts || c->meeting.n_ports == 1 ? INT64_MAX : ku_clock_ns() + ATTEMPT_NS;
    if (c->n_hosts)
        c->parent = conn;
    conn->hello = ku_malloc(sizeof *conn->hello);
    if (!conn->hello || ku_hello_start(conn->hello, &claim, c->opts.secret) < 0) {
        ku_join_fail(c);
        ku_conn_drop(c, conn);
        return;
    }
    ku_conn_watch(c, conn, true);
}

/* The root knows this host, and does not have all others yet. */
static bool has_met_root(const struct ku_control *c)
{
    for (const struct ku_conn *conn = c->conns; conn; conn = conn->next)
        if (conn->role == KU_CONN_ROOT && !conn->hello)
            return true;
    return false;
}

static bool is_dialling(const struct ku_control *c)
{
    for (const struct ku_conn *conn = c->conns; conn; conn = conn->next)
        if (conn->role == KU_CONN_ROOT || conn->role == KU_CONN_PARENT)
            return true;
    return false;
}

/* Leave a port where no kumi answers, for the next one. */
static void expire_attempt(struct ku_control *c, int64_t now)
{
    for (struct ku_conn *conn = c->conns; conn; conn = conn->next)
        if (conn->role == KU_CONN_ROOT && conn->hello && now > conn->deadline_ns) {
            end_attempt(c, conn, KU_HELLO_CLOSED);
            return;
        }
}

/* The job may end before its hosts have met. */
static int look(struct ku_control *c)
{
    struct kumi_error root;
    int signal = (int)atomic_load(&c->seg->stop);
    signal = signal ? signal : ku_os_stop_pending();
    if (!c->opts.refusal && ku_segment_root(c->seg, &root) < 0)
        return ku_err_put(&root);
    if (signal)
        return KU_ERR(KUMI_ESTOPPED, "stopped: signal %d (%s): before all hosts had met", signal,
                      strsignal(signal));
    return c->status < 0 ? ku_err_put(&c->failure) : 0;
}

static int late(const struct ku_control *c)
{
    if (c->n_hosts)
        return KU_ERR(KUMI_ETIMEDOUT,
                      "join: the table of hosts did not come from host %d within %.3g s",
                      ku_parent_of(c->host), (double)c->opts.timeout_ns * 1e-9);
    if (has_met_root(c))
        return KU_ERR(KUMI_ETIMEDOUT,
                      "join: root %s:%d: not all hosts met within %.3g s; check that all hosts "
                      "were started and reach the root",
                      c->meeting.name, c->meeting.port, (double)c->opts.timeout_ns * 1e-9);
    return KU_ERR(KUMI_ETIMEDOUT,
                  "join: root %s:%d: %s within %.3g s; check that the host of rank 0 was started "
                  "and that this host reaches it",
                  c->meeting.name, c->meeting.port,
                  c->n_secrets        ? ku_hello_why(KU_HELLO_SECRET)
                  : c->has_met_others ? "only other jobs of kumi answered"
                                      : "no kumi answered",
                  (double)c->opts.timeout_ns * 1e-9);
}

/*
 * The root may have begun later than this host, and its error names the ranks that are missing. The
 * other ranks of this host wait longer (await_hosts in job.c).
 */
static int64_t grace_ns(const struct ku_control *c)
{
    return has_met_root(c) ? c->opts.timeout_ns / 8 + KU_VERDICT_NS : 0;
}

/* The join has failed: hosts that come late are told too. Keeps this thread's record. */
static void refuse_late(struct ku_control *c)
{
    const int64_t deadline = ku_clock_ns() + KU_REFUSE_NS;
    const struct kumi_error error = *ku_err_get();
    while (c->gather->n_told < c->opts.n && ku_clock_ns() < deadline && !ku_os_stop_pending() &&
           !atomic_load(&c->seg->stop)) {
        KU_IGNORE(ku_os_await(c->epoll, POLLIN, ROUND_MS), "what is there is served");
        ku_control_serve(c);
    }
    KU_IGNORE(ku_err_put(&error), "the caller's record stays");
}

static int finish_gather(struct ku_control *c, bool is_late)
{
    const int status = ku_gather_finish(c, is_late);
    if (status < 0 && status != KUMI_ESTOPPED && !is_late)
        refuse_late(c);
    return status;
}

static int meet(struct ku_control *c)
{
    const int64_t deadline = ku_clock_ns() + c->opts.timeout_ns;
    while (!ku_control_is_joined(c)) {
        int status = look(c);
        const int64_t now = ku_clock_ns();
        if (c->gather && (status < 0 || c->gather->n_ranks >= c->opts.n || now > deadline)) {
            if (status < 0 && c->status == 0)
                ku_join_fail(c);
            KU_TRY(finish_gather(c, now > deadline));
            continue;
        }
        if (status < 0)
            return status;
        if (now > deadline + grace_ns(c))
            return late(c);
        expire_attempt(c, now);
        if ((!c->is_root || c->n_rival_ports) && now >= c->retry_ns && !is_dialling(c))
            dial(c);
        KU_IGNORE(ku_os_await(c->epoll, POLLIN, ROUND_MS), "what is there is served");
        ku_control_serve(c);
    }
    for (struct ku_conn *conn = c->conns, *next; c->is_root && conn; conn = next) {
        next = conn->next;
        if (conn->role == KU_CONN_ROOT)
            ku_conn_drop(c, conn);
    }
    return 0;
}

static int refuse_port(unsigned port)
{
    const int why = errno;
    char program[32], owner[80] = "";
    if (why != EADDRINUSE)
        return KU_ERR(KUMI_ENOMEM, "join: listening on port %u: %s", port, strerror(why));
    const pid_t pid = ku_os_port_owner((uint16_t)port, program);
    if (pid)
        snprintf(owner, sizeof owner, " by process %d (%s)", (int)pid, program);
    return KU_ERR(
        KUMI_EINVAL,
        "join: listening on port %u: %s%s; if another job runs there, give each a port of "
        "its own (MASTER_PORT or KUMI_RENDEZVOUS)",
        port, strerror(why), owner);
}

/* On all addresses: the others may know this host by another one than KUMI_INTERFACE chooses. */
static int listen_at(struct ku_control *c)
{
    struct ku_os_address at = {.port = 0};
    const int n_ports = c->is_root ? c->meeting.n_ports : 1;
    int fd = -1;
    if (c->opts.listener) {
        fd = c->opts.listener - 1;
    } else {
        for (int i = 0; i < n_ports && fd < 0; i++) {
            at.port = (uint16_t)(c->is_root ? c->meeting.port + i : c->opts.port);
            fd = ku_os_tcp_listen(&at, BACKLOG);
            if (fd < 0 && errno != EADDRINUSE)
                break;
            c->n_rival_ports = c->is_root ? i : 0;
        }
    }
    if (fd < 0)
        return refuse_port(at.port);
    c->listener = ku_conn_add(c, KU_CONN_LISTENER, fd);
    if (!c->listener && !c->opts.listener)
        ku_os_close(fd);
    return c->listener ? 0 : KUMI_ENOMEM;
}

/* The root of a job with one rank 0 is on the host of the meeting place, and has its first port. */
static void find_rivals(struct ku_control *c)
{
    char name[16];
    if (c->n_root <= 0)
        c->n_rival_ports = 0;
    else if (!ku_address_is_loopback(&c->root[0]) && !*ku_address_interface(&c->root[0], name))
        c->n_rival_ports = c->meeting.n_ports;
}

static int open_control(struct ku_control *c, const struct ku_control_opts *opts)
{
    const char *why = "";
    struct ku_os_address unused;
    if (!opts->root || !*opts->root)
        return KU_ERR(KUMI_EINVAL,
                      "join: %d of %d ranks are on this host, and nothing says where the hosts "
                      "meet%s%s; set KUMI_RENDEZVOUS=HOST:PORT on all of them",
                      opts->n_local, opts->n, opts->root_why ? ": " : "",
                      opts->root_why ? opts->root_why : "");
    KU_TRY(ku_meeting_parse("KUMI_RENDEZVOUS", opts->root, &c->meeting));
    if (opts->host_name && *opts->host_name)
        snprintf(c->name, sizeof c->name, "%s", opts->host_name);
    else if (ku_os_host_name(c->name, sizeof c->name) < 0)
        return KU_ERR(KUMI_ENOMEM, "join: name of this host: %s", ku_os_why());
    if (opts->interface) {
        snprintf(c->interface, sizeof c->interface, "%s", opts->interface);
        c->opts.interface = c->interface;
        KU_TRY(
            ku_address_choose(c->name, c->interface, NULL, &unused)); /* one that does not exist */
    }
    c->is_root = opts->rank == 0;
    if (opts->refusal && opts->timeout_ns > KU_REFUSE_NS)
        c->opts.timeout_ns = KU_REFUSE_NS;
    if (opts->refusal && c->is_root) {
        KU_IGNORE(ku_err_put(opts->refusal), "the join fails with it");
        ku_join_fail(c);
    }
    c->epoll = ku_os_epoll();
    if (c->epoll < 0)
        return KU_ERR(KUMI_ENOMEM, "join: epoll: %s", ku_os_why());
    KU_TRY(listen_at(c));
    c->n_root = ku_os_resolve(c->meeting.name, c->root, sizeof c->root / sizeof *c->root, &why);
    if (c->is_root) {
        find_rivals(c);
        return ku_gather_start(c);
    }
    if (c->n_root <= 0)
        return KU_ERR(KUMI_EINVAL, "join: root %s: %s; set KUMI_RENDEZVOUS", c->meeting.name, why);
    return 0;
}

int ku_control_join(const struct ku_control_opts *opts, struct ku_segment *seg,
                    struct ku_control **out)
{
    struct ku_control *c = ku_calloc(1, sizeof *c);
    int status;
    if (!c)
        return KUMI_ENOMEM;
    c->opts = *opts;
    c->seg = seg;
    c->epoll = -1;
    c->poll_ns = INT64_MAX;
    if (opts->rank == 0) /* a descriptor per host while the hosts meet */
        ku_os_raise_files(KU_MAX_HOSTS + 64);
    KU_TRY_OUT(open_control(c, opts));
    KU_TRY_OUT(meet(c));
    KU_TRY_OUT(ku_doorbell_open(seg->job_id, c->host, KU_DOORBELL_BRIDGE, &c->doorbell));
    status = ku_conn_add(c, KU_CONN_DOORBELL, ku_doorbell_fd(c->doorbell)) ? 0 : KUMI_ENOMEM;
    KU_TRY_OUT(status);
    become_joined(c);
    char at[KU_ADDRESS_TEXT];
    KU_LOG(LAUNCH, INFO, "host %s (%d of %d) joined with ranks %d to %d, at %s", c->name, c->host,
           c->n_hosts, seg->first_rank, seg->first_rank + seg->n_local - 1,
           ku_address_print(&c->address, at));
    *out = c;
    return 0;
out:
    ku_control_break(c);
    return status;
}
