/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's table, its links, and the loop that serves those with pending requests. */
#include "comm/tcp/tcp.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "comm/tcp/private.h"

#include <stdio.h>

static struct ku_tcp *tcp_of(const struct ku_net *net)
{
    return (struct ku_tcp *)(uintptr_t)net;
}
static struct ku_tcp_link *link_of(const struct ku_net_link *link)
{
    return (struct ku_tcp_link *)(uintptr_t)link;
}

void ku_tcp_name(const struct ku_tcp *tcp, int rank, char text[128])
{
    if (tcp->wires.name)
        tcp->wires.name(tcp->wires.ctx, rank, text, 128);
    else
        snprintf(text, 128, "rank %d", rank);
}

void ku_tcp_raise_files(const struct ku_tcp *tcp)
{
    ku_os_raise_files((uint64_t)tcp->stats.n_links + tcp->n_early + KU_TCP_OTHER_FILES);
}

/*
 * The active links form a circle, in which progress goes on where it stopped. A link is active
 * while it has requests that can move.
 */
static void activate(struct ku_tcp *tcp, struct ku_tcp_link *link)
{
    if (link->next_active)
        return;
    if (tcp->active) { /* last in the circle */
        link->next_active = tcp->active;
        link->prev_active = tcp->active->prev_active;
        link->prev_active->next_active = link;
        link->next_active->prev_active = link;
    } else {
        link->next_active = link->prev_active = link;
        tcp->active = link;
    }
    tcp->n_active++;
    if (link->fd < 0 && ku_tcp_is_dialled(tcp, link))
        tcp->n_awaited++;
}

static void deactivate(struct ku_tcp *tcp, struct ku_tcp_link *link)
{
    if (!link->next_active)
        return;
    KU_ASSERT(tcp->n_active > 0);
    if (link->fd < 0 && ku_tcp_is_dialled(tcp, link))
        tcp->n_awaited--;
    link->next_active->prev_active = link->prev_active;
    link->prev_active->next_active = link->next_active;
    if (tcp->active == link)
        tcp->active = --tcp->n_active ? link->next_active : NULL;
    else
        tcp->n_active--;
    link->next_active = link->prev_active = NULL;
}

static int tcp_link(struct ku_net *net, uint32_t slot, uint64_t stream, int rank,
                    enum ku_net_way way, struct ku_net_link **out)
{
    struct ku_tcp *tcp = tcp_of(net);
    KU_ASSERT(rank >= 0 && rank < tcp->n && rank != tcp->rank);
    KU_TRY(KU_GROW(&tcp->fds, (uint32_t)tcp->stats.n_links, &tcp->cap_fds));
    ku_tcp_raise_files(tcp);
    struct ku_tcp_link *link = ku_malloc(sizeof *link);
    if (!link)
        return KUMI_ENOMEM;
    *link = (struct ku_tcp_link){
        .base = {.net = net, .stream = stream, .slot = slot, .rank = rank, .way = way}, .fd = -1};
    if (tcp->links) {
        link->next = tcp->links;
        link->prev = tcp->links->prev;
        link->prev->next = link->next->prev = link;
    } else {
        link->next = link->prev = link;
        tcp->links = link;
    }
    tcp->stats.n_links++;
    ku_tcp_adopt(tcp, link);
    *out = &link->base;
    return 0;
}

static void tcp_unlink(struct ku_net_link *net_link, bool has_failed)
{
    if (!net_link)
        return;
    struct ku_tcp_link *link = link_of(net_link);
    struct ku_tcp *tcp = tcp_of(net_link->net);
    KU_ASSERT(has_failed || (!link->out.head && !link->in.head));
    deactivate(tcp, link);
    if (tcp->base.broken == &link->base)
        tcp->base.broken = NULL;
    if (link->fd >= 0)
        ku_os_close(link->fd); /* the kernel goes on sending what it has */
    link->next->prev = link->prev;
    link->prev->next = link->next;
    if (tcp->links == link)
        tcp->links = --tcp->stats.n_links ? link->next : NULL;
    else
        tcp->stats.n_links--;
    ku_free(link);
}

static void tcp_close(struct ku_net *net, bool has_failed)
{
    struct ku_tcp *tcp = tcp_of(net);
    if (!tcp)
        return;
    while (tcp->links)
        tcp_unlink(&tcp->links->base, has_failed);
    KU_ASSERT(tcp->n_active == 0 && tcp->n_awaited == 0 && tcp->stats.n_links == 0);
    ku_free(tcp->fds);
    for (uint32_t i = 0; i < tcp->n_early; i++)
        ku_os_close(tcp->early[i].fd);
    ku_free(tcp->early);
    if (tcp->wires.end)
        tcp->wires.end(tcp->wires.ctx);
    ku_free(tcp);
}

int ku_tcp_break(struct ku_tcp *tcp, struct ku_tcp_link *link, int status)
{
    KU_ASSERT(status < 0 && !link->status);
    deactivate(tcp, link);
    link->status = status;
    link->error = *ku_err_get();
    tcp->base.broken = &link->base;
    if (link->fd >= 0)
        ku_os_close(link->fd);
    link->fd = -1;
    ku_net_end_all(&link->out, status);
    ku_net_end_all(&link->in, status);
    return ku_err_put(&link->error);
}

static int post(struct ku_tcp_link *link, struct ku_net_queue *q, struct ku_net_req *req)
{
    if (link->status)
        return ku_err_put(&link->error);
    ku_net_post(q, req);
    activate(tcp_of(link->base.net), link);
    return 0;
}

static int tcp_send(struct ku_net_link *net_link, struct ku_net_req *req)
{
    struct ku_tcp_link *link = link_of(net_link);
    KU_ASSERT(net_link->way != KU_NET_IN);
    return post(link, &link->out, req);
}

static int tcp_recv(struct ku_net_link *net_link, struct ku_net_req *req)
{
    struct ku_tcp_link *link = link_of(net_link);
    KU_ASSERT(net_link->way != KU_NET_OUT);
    if (link->is_mismatched) {
        char name[128];
        ku_tcp_name(tcp_of(net_link->net), net_link->rank, name);
        return KU_ERR_SCOPE(KUMI_EMISMATCH, KUMI_SCOPE_COMM,
                            "%s: an earlier message was not the expected one", name);
    }
    return post(link, &link->in, req);
}

static size_t min_bytes(int64_t left)
{
    return left < KU_TCP_QUANTUM_BYTES ? (size_t)left : KU_TCP_QUANTUM_BYTES;
}

static int serve_out(struct ku_tcp *tcp, struct ku_tcp_link *link, int64_t *left, bool *has_moved)
{
    size_t moved;
    if (!link->out.head || link->is_full || *left <= 0)
        return 0;
    KU_TRY(ku_tcp_send(tcp, link, min_bytes(*left), &moved));
    *left -= (int64_t)moved;
    *has_moved |= moved > 0;
    return 0;
}

static int serve_in(struct ku_tcp *tcp, struct ku_tcp_link *link, int64_t *left, bool *has_moved)
{
    size_t moved;
    if (!ku_tcp_wants_in(link) || link->is_dry || *left <= 0)
        return 0;
    KU_TRY(ku_tcp_recv(tcp, link, min_bytes(*left), &moved));
    *left -= (int64_t)moved;
    *has_moved |= moved > 0;
    return 0;
}

/* A quantum in each direction. They take turns to be first, so that a small budget serves both. */
static int serve(struct ku_tcp *tcp, struct ku_tcp_link *link, int64_t *left, bool *has_moved)
{
    if (link->fd < 0) {
        KU_TRY(ku_tcp_connect(tcp, link));
        if (link->fd < 0)
            return 0;
    }
    link->is_in_first = !link->is_in_first;
    if (link->is_in_first)
        KU_TRY(serve_in(tcp, link, left, has_moved));
    KU_TRY(serve_out(tcp, link, left, has_moved));
    return link->is_in_first ? 0 : serve_in(tcp, link, left, has_moved);
}

/* One round over the active links, or up to the end of the budget. */
static int serve_all(struct ku_tcp *tcp, int64_t *left, bool *has_moved)
{
    for (int n = tcp->n_active; n > 0 && *left > 0; n--) {
        struct ku_tcp_link *link = tcp->active;
        int status = serve(tcp, link, left, has_moved);
        if (status < 0)
            return ku_tcp_break(tcp, link, status);
        if (!link->out.head && !ku_tcp_wants_in(link))
            deactivate(tcp, link);
        else
            tcp->active = link->next_active;
    }
    return 0;
}

static short events_of(const struct ku_tcp_link *link)
{
    return (short)((link->out.head ? POLLOUT : 0) | (ku_tcp_wants_in(link) ? POLLIN : 0));
}

/* One active link is tried. Of several, one poll(2) finds those that can move bytes. */
static void find_ready(struct ku_tcp *tcp)
{
    struct ku_tcp_link *link = tcp->active;
    struct pollfd *p = tcp->fds;
    const int n = tcp->n_active;
    for (int i = 0; i < n; i++, link = link->next_active) {
        link->is_full = link->is_dry = false;
        p[i] = (struct pollfd){.fd = link->fd, .events = events_of(link)};
    }
    if (n <= KU_TCP_TRIED_LINKS || poll(p, (nfds_t)n, 0) < 0)
        return;
    for (int i = 0; i < n; i++, link = link->next_active) {
        const bool is_broken = p[i].revents & (POLLERR | POLLHUP);
        link->is_full = !is_broken && !(p[i].revents & POLLOUT);
        link->is_dry = !is_broken && !(p[i].revents & POLLIN) && link->at == link->end;
    }
}

/*
 * The kernel gives up an idle connection. One with data that is not acknowledged it keeps for a
 * quarter of an hour, because no shorter limit spares a peer that is busy and leaves data unread.
 */
static int look_for_silence(struct ku_tcp *tcp)
{
    const int64_t now = ku_clock_ns();
    struct ku_tcp_link *link = tcp->active;
    if (now - tcp->looked_ns < KU_TCP_LOOK_NS)
        return 0;
    tcp->looked_ns = now;
    for (int n = tcp->n_active; n > 0; n--, link = link->next_active) {
        const int status = ku_tcp_look(tcp, link);
        if (status < 0)
            return ku_tcp_break(tcp, link, status);
    }
    return 0;
}

static int tcp_progress(struct ku_net *net, int64_t budget_bytes, bool *has_moved)
{
    struct ku_tcp *tcp = tcp_of(net);
    int64_t left = budget_bytes < 0 ? INT64_MAX : budget_bytes;
    const bool is_turn = ++tcp->n_calls % KU_TCP_CALLS_PER_TAKE == 0 || tcp->has_polled;
    if (tcp->n_awaited > 0 || is_turn)
        KU_TRY(ku_tcp_take(tcp));
    tcp->has_polled = false;
    int status = is_turn ? look_for_silence(tcp) : 0;
    *has_moved |= status < 0;
    KU_TRY(status);
    find_ready(tcp);
    for (bool moves = true; moves && left > 0;) {
        moves = false;
        status = serve_all(tcp, &left, &moves);
        *has_moved |= moves || status < 0;
        KU_TRY(status);
    }
    return 0;
}

static int tcp_poll(struct ku_net *net, struct pollfd *fds, int cap)
{
    struct ku_tcp *tcp = tcp_of(net);
    struct ku_tcp_link *link = tcp->active;
    int n_fds = 0;
    if (tcp->wires.doorbell >= 0 && n_fds++ < cap)
        fds[0] = (struct pollfd){.fd = tcp->wires.doorbell, .events = POLLIN};
    for (int n = tcp->n_active; n > 0; n--, link = link->next_active) {
        if (link->fd < 0)
            continue;
        if (n_fds < cap)
            fds[n_fds] = (struct pollfd){.fd = link->fd, .events = events_of(link)};
        n_fds++;
    }
    tcp->has_polled = true;
    return n_fds;
}

static void tcp_stats(const struct ku_net *net, struct ku_net_stats *out)
{
    *out = tcp_of(net)->stats;
}

static void tcp_describe(const struct ku_net *net, char *text, size_t cap)
{
    const char *where = tcp_of(net)->wires.where;
    snprintf(text, cap, "tcp%s%s", where ? " over " : "", where ? where : "");
}

const struct ku_net_ops ku_net_tcp = {.name = "tcp",
                                      .ops_bytes = sizeof(struct ku_net_ops),
                                      .abi = KU_NET_ABI,
                                      .open = ku_tcp_open_job,
                                      .close = tcp_close,
                                      .link = tcp_link,
                                      .unlink = tcp_unlink,
                                      .send = tcp_send,
                                      .recv = tcp_recv,
                                      .progress = tcp_progress,
                                      .poll = tcp_poll,
                                      .stats = tcp_stats,
                                      .describe = tcp_describe};

int ku_tcp_open(const struct ku_tcp_wires *wires, int rank, int n, struct ku_net **net)
{
    KU_ASSERT(wires->dial && wires->take && rank >= 0 && rank < n);
    struct ku_tcp *tcp = ku_calloc(1, sizeof *tcp);
    if (!tcp)
        return KUMI_ENOMEM;
    tcp->base.ops = &ku_net_tcp;
    tcp->wires = *wires;
    tcp->rank = rank;
    tcp->n = n;
    *net = &tcp->base;
    return 0;
}
