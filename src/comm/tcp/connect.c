/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: which rank dials, and where a connection belongs that was accepted. */
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/stream.h"
#include "comm/tcp/private.h"

static int set_fd(struct ku_tcp *tcp, struct ku_tcp_link *link, int fd)
{
    KU_ASSERT(link->fd < 0 && fd >= 0);
    if (link->next_active && ku_tcp_is_dialled(tcp, link))
        tcp->n_awaited--;
    link->fd = fd;
    link->is_full = link->is_dry = false;
    if (ku_os_stream_tune(fd, KU_TCP_KEEPALIVE_S, KU_TCP_SILENCE_MS, false) < 0) {
        char name[128];
        ku_tcp_name(tcp, link->base.rank, name);
        return KU_ERR(KUMI_EPEER, "%s: connection: options: %s", name, ku_os_why());
    }
    return 0;
}

int ku_tcp_connect(struct ku_tcp *tcp, struct ku_tcp_link *link)
{
    struct ku_dial_head head = {.from = tcp->rank,
                                .to = link->base.rank,
                                .slot = link->base.slot,
                                .lane = ku_tcp_lane(link),
                                .stream = link->base.stream};
    int fd = -1;
    if (ku_tcp_is_dialled(tcp, link))
        return 0;
    KU_TRY(tcp->wires.dial(tcp->wires.ctx, &head, KU_TCP_DIAL_NS, &fd));
    return set_fd(tcp, link, fd);
}

static bool is_of(const struct ku_tcp *tcp, const struct ku_dial_head *head,
                  const struct ku_tcp_link *link)
{
    return head->from == link->base.rank && head->slot == link->base.slot &&
           head->stream == link->base.stream && head->lane == ku_tcp_lane(link) &&
           ku_tcp_is_dialled(tcp, link);
}

static bool is_same(const struct ku_dial_head *a, const struct ku_dial_head *b)
{
    return a->from == b->from && a->slot == b->slot && a->stream == b->stream && a->lane == b->lane;
}

/* The link that a connection is for; NULL: it does not exist yet. */
static struct ku_tcp_link *find_link(struct ku_tcp *tcp, const struct ku_dial_head *head)
{
    struct ku_tcp_link *link = tcp->links;
    if (link)
        do {
            if (is_of(tcp, head, link))
                return link;
            link = link->next;
        } while (link != tcp->links);
    return NULL;
}

/* Keep a connection until its link is made. A second one of the same stream is closed. */
static int keep_early(struct ku_tcp *tcp, const struct ku_dial_head *head, int fd)
{
    for (uint32_t i = 0; i < tcp->n_early; i++)
        if (is_same(&tcp->early[i].head, head)) {
            ku_os_close(fd);
            tcp->stats.n_refused++;
            return 0;
        }
    if (tcp->n_early == KU_TCP_MAX_EARLY) {
        ku_os_close(fd);
        return KU_ERR(KUMI_EPEER, "rank %d: %d connections for streams that do not exist here",
                      head->from, KU_TCP_MAX_EARLY);
    }
    int status = KU_GROW(&tcp->early, tcp->n_early, &tcp->cap_early);
    if (status < 0) {
        ku_os_close(fd);
        return status;
    }
    tcp->early[tcp->n_early++] = (struct ku_tcp_early){.head = *head, .fd = fd};
    ku_tcp_raise_files(tcp);
    return 0;
}

/*
 * A connection has arrived. Its head is authenticated but may be wrong: one that no rank of this
 * version sends, or a second one of a stream, is closed, and its dialling rank learns it from that.
 */
static int place(struct ku_tcp *tcp, const struct ku_dial_head *head, int fd)
{
    struct ku_tcp_link *link = find_link(tcp, head);
    const bool is_one_way = head->lane == 1;
    const int end = is_one_way ? tcp->n : tcp->rank; /* of the ranks that dial this one */
    const bool is_wrong = head->to != tcp->rank || head->from < 0 || head->from >= end ||
                          head->from == tcp->rank || (head->lane && !is_one_way) ||
                          (link && (link->fd >= 0 || link->status));
    if (is_wrong) {
        KU_LOG(COMM, DEBUG, "tcp: connection from rank %d to rank %d, slot %u, lane %u: refused",
               head->from, head->to, head->slot, head->lane);
        ku_os_close(fd);
        tcp->stats.n_refused++;
        return 0;
    }
    if (!link)
        return keep_early(tcp, head, fd);
    int status = set_fd(tcp, link, fd);
    return status < 0 ? ku_tcp_break(tcp, link, status) : 0;
}

int ku_tcp_take(struct ku_tcp *tcp)
{
    struct ku_dial_head head;
    int fd = -1, status;
    while ((status = tcp->wires.take(tcp->wires.ctx, &head, &fd)) > 0)
        KU_TRY(place(tcp, &head, fd));
    return status;
}

void ku_tcp_adopt(struct ku_tcp *tcp, struct ku_tcp_link *link)
{
    for (uint32_t i = 0; i < tcp->n_early; i++)
        if (is_of(tcp, &tcp->early[i].head, link)) {
            int fd = tcp->early[i].fd;
            tcp->early[i] = tcp->early[--tcp->n_early];
            int status = set_fd(tcp, link, fd);
            if (status < 0)
                KU_IGNORE(ku_tcp_break(tcp, link, status), "the first request learns it");
            return;
        }
}
