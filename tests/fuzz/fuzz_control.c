/* SPDX-License-Identifier: Apache-2.0 */
/* links: base job */
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "fuzz.h"
#include "job/control/private.h"
#include "job_client.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * The first byte says what the connection is, the rest comes over it: a neighbour of a host in the
 * middle of a tree, the root of a host that joins, or a host that joins this root. What is refused
 * leaves the segment as it was, or in a state that its readers take.
 */
enum { N_HOSTS = 40, N_LOCAL = 2, BYTES_MAX = 60000 };

static const enum ku_conn_role roles[] = {KU_CONN_CHILD, KU_CONN_PARENT, KU_CONN_REPORT,
                                          KU_CONN_ROOT,  KU_CONN_PARENT, KU_CONN_JOINER};
enum { JOINS = 3, JOINS_BY_ROWS, GATHERS, N_FORMS };

static void fill_table(struct ku_control *c)
{
    struct ku_host_row *row = ku_segment_hosts(c->seg);
    for (int h = 0; h < N_HOSTS; h++) {
        row[h] = (struct ku_host_row){.first_rank = h * N_LOCAL, .n_ranks = N_LOCAL};
        snprintf(row[h].name, sizeof row[h].name, "host%d", h);
    }
    c->has_table = c->is_up = true;
    c->n_rows = N_HOSTS;
    atomic_store(&c->seg->host, (uint32_t)c->host);
    atomic_store(&c->seg->n_hosts, N_HOSTS);
}

static struct ku_control *make(int form)
{
    struct ku_control *c = ku_calloc(1, sizeof *c);
    KU_ASSERT(c);
    c->opts = (struct ku_control_opts){
        .client = &client, .n = N_HOSTS * N_LOCAL, .n_local = N_LOCAL, .timeout_ns = 1000000000};
    KU_ASSERT((c->epoll = ku_os_epoll()) >= 0);
    KU_ASSERT(ku_segment_create_private(&client, N_LOCAL, &c->seg) == 0);
    c->poll_ns = INT64_MAX;
    c->host = form == GATHERS || form == JOINS ? 0 : 1;
    ku_segment_set_ranks(c->seg, c->host * N_LOCAL, c->opts.n);
    snprintf(c->name, sizeof c->name, "host%d", c->host);
    c->n_hosts = form == GATHERS || form == JOINS ? 0 : N_HOSTS;
    if (form < JOINS)
        fill_table(c);
    if (form == GATHERS) {
        struct ku_os_address at = {.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
        c->is_root = true;
        c->listener = ku_conn_add(c, KU_CONN_LISTENER, ku_os_tcp_listen(&at, 1));
        KU_ASSERT(c->listener && ku_gather_start(c) == 0);
    }
    return c;
}

static void check(const struct ku_control *c)
{
    struct kumi_error root;
    if (ku_segment_root(c->seg, &root) < 0)
        KU_ASSERT(strnlen(root.text, sizeof root.text) < sizeof root.text);
    if (c->status < 0)
        KU_ASSERT(c->failure.status == c->status && !strchr(c->failure.text, '\n'));
    if (c->has_table)
        for (int r = 0; r < c->opts.n; r++)
            KU_ASSERT(ku_segment_hosts(c->seg)[r / N_LOCAL].n_ranks > 0);
    if (c->gather)
        KU_ASSERT(c->gather->n_ranks <= c->opts.n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    int pair[2];
    if (bytes < 1 || bytes > BYTES_MAX)
        return 0;
    setenv("KUMI_LOG", "error", 1); /* refusals are the usual thing here */
    const int form = data[0] % N_FORMS;
    struct ku_control *c = make(form);
    KU_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    struct ku_conn *conn = ku_conn_add(c, roles[form], pair[0]);
    KU_ASSERT(conn);
    conn->host = form == 0 ? 17 : form == GATHERS ? -1 : 0;
    if (form == 0)
        c->child[0] = conn;
    if (roles[form] == KU_CONN_PARENT)
        c->parent = conn;
    KU_ASSERT(write(pair[1], data + 1, bytes - 1) == (ssize_t)(bytes - 1));
    for (int i = 0; i < 4; i++)
        ku_control_serve(c);
    check(c);
    close(pair[1]);
    ku_control_serve(c);
    check(c);
    ku_segment_unmap(c->seg);
    c->seg = NULL;
    ku_control_break(c);
    return 0;
}
