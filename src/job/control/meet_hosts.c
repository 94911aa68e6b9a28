/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the root does until the hosts have met: it takes their rows, checks them, and tells each
 * host its place.
 *
 *     host h ── ROW ──> root                       for all h, over a connection each
 *     host h <── PLACE {h, row of its parent}      then closed, but for the root's own children
 *
 * So the root has a descriptor per host for the time of the join, and 16 after it.
 *
 * A host whose ranks did not find each other sends REFUSE in place of its row. The first failure is
 * sent to all hosts, also to those that come within KU_REFUSE_NS after it.
 */
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "job/control/private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int add_row(struct ku_gather *g, const struct ku_join_row *j, struct ku_conn *conn)
{
    if (g->n == KU_MAX_HOSTS)
        return KU_ERR(KUMI_EINVAL, "join: more than %d hosts", KU_MAX_HOSTS);
    KU_TRY(KU_GROW(&g->row, g->n, &g->cap_row));
    KU_TRY(KU_GROW(&g->conn, g->n, &g->cap_conn));
    if (g->n)
        KU_TRY(ku_row_check(j, &g->row[0]));
    for (int r = j->row.first_rank; r < j->row.first_rank + j->row.n_ranks; r++) {
        if (!(g->has_rank[r / 8] >> r % 8 & 1))
            continue;
        for (uint32_t i = 0; i < g->n; i++) {
            const struct ku_host_row *other = &g->row[i].row;
            if (r >= other->first_rank && r < other->first_rank + other->n_ranks)
                return KU_ERR(KUMI_EINVAL,
                              "join: hosts %s and %s both have rank %d; start every rank once, "
                              "numbered host by host (mpirun --map-by slot, srun -m block)",
                              other->name, j->row.name, r);
        }
    }
    for (int r = j->row.first_rank; r < j->row.first_rank + j->row.n_ranks; r++)
        g->has_rank[r / 8] = (uint8_t)(g->has_rank[r / 8] | 1u << r % 8);
    g->row[g->n] = *j;
    g->conn[g->n++] = conn;
    g->n_ranks += j->row.n_ranks;
    return 0;
}

int ku_gather_start(struct ku_control *c)
{
    struct ku_gather *g = c->gather = ku_calloc(1, sizeof *g);
    if (!g)
        return KUMI_ENOMEM;
    g->has_rank = ku_calloc((size_t)c->opts.n / 8 + 1, 1);
    return g->has_rank ? 0 : KUMI_ENOMEM;
}

void ku_gather_destroy(struct ku_control *c)
{
    if (!c->gather)
        return;
    ku_free(c->gather->row);
    ku_free(c->gather->conn);
    ku_free(c->gather->has_rank);
    ku_free(c->gather);
    c->gather = NULL;
}

/* The root's own row; the address by which the first host reached it is good for the others. */
static int add_own_row(struct ku_control *c, const struct ku_conn *first)
{
    if (!c->address.port && c->opts.interface)
        KU_TRY(ku_address_choose(c->name, c->opts.interface, &first->peer, &c->address));
    else if (ku_os_tcp_address(first->fd, false, &c->address) < 0)
        return KU_ERR(KUMI_ENOMEM, "join: own address: %s", ku_os_why());
    struct ku_join_row j;
    KU_TRY(ku_join_row(c, &j));
    return add_row(c->gather, &j, NULL);
}

/* Whether the root has dialled itself, by an address of which no interface knows. */
static bool is_own(const struct ku_control *c, const struct ku_join_row *j)
{
    struct ku_os_address own;
    return ku_os_tcp_address(c->listener->fd, false, &own) == 0 && j->row.port == own.port &&
           j->row.kernel == ku_os_kernel() && strcmp(j->row.name, c->name) == 0;
}

static int take_row(struct ku_control *c, struct ku_conn *conn, const struct ku_join_row *j)
{
    struct ku_gather *g = c->gather;
    if (g->n == 0)
        KU_TRY(add_own_row(c, conn));
    KU_TRY(add_row(g, j, conn));
    conn->host = (int)g->n - 1;
    ku_free(conn->in); /* it says nothing more before its place */
    conn->in = NULL;
    conn->n_in = conn->cap_in = 0;
    return 0;
}

/* Tell a host of n_ranks ranks why there is no job. */
static void refuse(struct ku_control *c, struct ku_conn *conn, int n_ranks)
{
    struct ku_message m = ku_message_of(c, KU_MESSAGE_REFUSE, sizeof(struct kumi_error));
    c->gather->n_told += n_ranks;
    conn->role = KU_CONN_LAST;
    ku_conn_send(c, conn, &m, &c->failure);
    if (!conn->n_out)
        ku_conn_drop(c, conn);
}

/* A host's row, or why it has none; *n_ranks: of the host */
static int take_message(struct ku_control *c, struct ku_conn *conn, const struct ku_message *m,
                        const uint8_t *payload, int *n_ranks)
{
    struct ku_join_row j;
    struct kumi_error e;
    *n_ranks = 0;
    if (m && m->kind == KU_MESSAGE_REFUSE) {
        *n_ranks = m->number < (uint32_t)c->opts.n ? (int)m->number : c->opts.n;
        memcpy(&e, payload, sizeof e);
        ku_message_clean(&e);
        return ku_err_put(&e);
    }
    if (!m || m->kind != KU_MESSAGE_ROW || conn->host >= 0)
        return KU_ERR(KUMI_EINVAL, "join: a host sent what is not its row; use one version of kumi "
                                   "on all hosts");
    memcpy(&j, payload, sizeof j);
    if (is_own(c, &j)) {
        conn->role = KU_CONN_LAST;
        return 0;
    }
    *n_ranks = j.row.n_ranks;
    return c->status < 0 ? c->status : take_row(c, conn, &j);
}

void ku_gather_take(struct ku_control *c, struct ku_conn *conn)
{
    uint8_t payload[KU_MESSAGE_MAX];
    struct ku_message m;
    int n_ranks;
    const int filled = ku_conn_fill(conn);
    if (filled < 0) {
        ku_gather_lost(c, conn);
        return;
    }
    const int n = filled > 0 ? ku_conn_next(conn, &m, payload) : 0;
    if (n == 0 || take_message(c, conn, n > 0 ? &m : NULL, payload, &n_ranks) == 0)
        return;
    ku_join_fail(c);
    refuse(c, conn, n_ranks);
}

void ku_gather_lost(struct ku_control *c, struct ku_conn *conn)
{
    const struct ku_host_row *row = conn->host < 0 ? NULL : &c->gather->row[conn->host].row;
    if (row) {
        KU_IGNORE(KU_ERR(KUMI_EPEER,
                         "join: host %s (from rank %d) closed its connection before all hosts had "
                         "met; see the error that it printed",
                         row->name, row->first_rank),
                  "the join fails with it");
        c->gather->conn[conn->host] = NULL;
        ku_join_fail(c);
    }
    ku_conn_drop(c, conn);
}

struct place {
    int first_rank;
    uint32_t at; /* in the order of coming */
};

static int by_first_rank(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return (x->first_rank > y->first_rank) - (x->first_rank < y->first_rank);
}

/* Put rows and connections into the order of ranks. */
static int sort_rows(struct ku_gather *g)
{
    struct place *place = ku_malloc((g->n + !g->n) * sizeof *place);
    struct ku_join_row *row = ku_malloc((g->n + !g->n) * sizeof *row);
    struct ku_conn **conn = ku_malloc((g->n + !g->n) * sizeof *conn);
    int status = place && row && conn ? 0 : KUMI_ENOMEM;
    for (uint32_t i = 0; !status && i < g->n; i++)
        place[i] = (struct place){g->row[i].row.first_rank, i};
    if (!status && g->n)
        qsort(place, g->n, sizeof *place, by_first_rank);
    for (uint32_t i = 0; !status && i < g->n; i++) {
        row[i] = g->row[place[i].at];
        conn[i] = g->conn[place[i].at];
        if (conn[i])
            conn[i]->host = (int)i;
    }
    for (uint32_t i = 0; !status && i < g->n; i++) {
        g->row[i] = row[i];
        g->conn[i] = conn[i];
    }
    ku_free(place);
    ku_free(row);
    ku_free(conn);
    return status;
}

/* Tell the hosts that have come. One whose row is still on its way is told when the row comes. */
static void refuse_all(struct ku_control *c, bool is_late)
{
    c->gather->n_told += c->seg->n_local;
    for (struct ku_conn *conn = c->conns, *next; conn; conn = next) {
        next = conn->next;
        if (conn->role == KU_CONN_JOINER && conn->host >= 0)
            refuse(c, conn, c->gather->row[conn->host].row.n_ranks);
        else if (conn->role == KU_CONN_JOINER && is_late)
            refuse(c, conn, 0);
    }
}

static void send_places(struct ku_control *c)
{
    const struct ku_gather *g = c->gather;
    for (int i = 1; i < c->n_hosts; i++) {
        struct ku_message m = ku_message_of(c, KU_MESSAGE_PLACE, sizeof(struct ku_host_row));
        struct ku_conn *conn = g->conn[i];
        const bool is_child = ku_parent_of(i) == 0;
        m.to = i;
        m.number = (uint32_t)c->n_hosts;
        conn->host = i;
        conn->role = is_child ? KU_CONN_CHILD : KU_CONN_LAST;
        if (is_child) {
            c->child[i - 1] = conn;
            conn->n_rows = 0;
        }
        ku_conn_send(c, conn, &m, &g->row[ku_parent_of(i)].row);
        if (is_child)
            ku_bridge_rows(c, conn);
        else if (!conn->n_out)
            ku_conn_drop(c, conn);
    }
}

static int check(struct ku_control *c, bool is_late)
{
    struct ku_gather *g = c->gather;
    if (g->n == 0)
        return KU_ERR(KUMI_ETIMEDOUT,
                      "join: no other host came within %.3g s%s; check that all hosts were started "
                      "and reach this one",
                      (double)c->opts.timeout_ns * 1e-9,
                      g->n_refused ? ", but connections that do not have the secret (see the log)"
                                   : "");
    KU_TRY(sort_rows(g));
    return ku_rows_check(g->row, (int)g->n, c->opts.n, is_late, c->opts.timeout_ns);
}

int ku_gather_finish(struct ku_control *c, bool is_late)
{
    struct ku_gather *g = c->gather;
    struct ku_host_row *table = ku_segment_hosts(c->seg);
    int status = c->status < 0 ? ku_err_put(&c->failure) : check(c, is_late);
    if (status < 0) {
        ku_join_fail(c);
        refuse_all(c, is_late);
        return status;
    }
    for (uint32_t i = 0; i < g->n; i++)
        table[i] = g->row[i].row;
    c->host = 0;
    c->n_hosts = c->n_rows = (int)g->n;
    c->has_table = true;
    send_places(c);
    ku_gather_destroy(c);
    return 0;
}
