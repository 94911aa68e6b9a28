/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chaos between hosts: a network that wraps another one and injects faults.
 *
 *     caller's request ──> twin request with one more piece ──> inner engine
 *       head, payload        head, payload, time of arrival
 *
 * Delay and jitter: the sender adds the time at which the message arrives, the post plus `delay`
 * and up to `jitter`, and the receiver ends its request only then. So the sender need not make
 * progress meanwhile. The clocks of two hosts differ; a receiver therefore waits at most
 * delay + jitter after it has the message.
 *
 * Short transfers: the inner engine is asked for at most `short` bytes at a time.
 *
 * Faults: from the n-th message of a rank on, its messages are dropped (they are sent as far as the
 * rank knows, and its streams stall) or their headers are wrong (a mismatch); or the rank is killed
 * in place of that message.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/math/random.h"
#include "comm/net.h"
#include "comm/private.h"

#include <signal.h>
#include <stdio.h>

struct twin {
    struct ku_net_req req; /* the inner engine's */
    struct ku_net_req *of; /* the caller's */
    uint64_t at_ns;        /* time of arrival: the last piece */
    bool is_dropped, is_held;
    struct twin *next;
};
enum { STAMP_BYTES = sizeof(uint64_t) };

struct fifo {
    struct twin *head, *tail;
};

struct chaos_link {
    struct ku_net_link base;
    struct ku_net_link *inner;
    struct fifo out, in;
    struct chaos_link *next;
};

struct chaos_net {
    struct ku_net base;
    struct ku_net *inner;
    struct ku_chaos options;
    int rank;
    int64_t n_messages;
    int n_held;
    struct chaos_link *links;
    struct twin *unused;
};

static struct chaos_net *chaos_of(const struct ku_net *net)
{
    return (struct chaos_net *)(uintptr_t)net;
}
static struct chaos_link *link_of(const struct ku_net_link *link)
{
    return (struct chaos_link *)(uintptr_t)link;
}

static bool is_due(const struct chaos_net *chaos, int rank, int64_t at)
{
    return rank == chaos->rank && at > 0 && chaos->n_messages >= at;
}

static uint64_t arrival_ns(const struct chaos_net *chaos)
{
    const struct ku_chaos *o = &chaos->options;
    uint64_t at = (uint64_t)(ku_clock_ns() + o->delay_ns);
    if (o->jitter_ns)
        at += ku_random_u32(o->seed, (uint32_t)chaos->rank, 1, (uint64_t)chaos->n_messages) %
              (uint64_t)o->jitter_ns;
    return at;
}

static struct twin *make_twin(struct chaos_net *chaos, struct ku_net_req *of)
{
    struct twin *t = chaos->unused;
    KU_ASSERT(of->n_pieces >= 0 && of->n_pieces <= KU_NET_PIECES);
    if (t)
        chaos->unused = t->next;
    else if (!(t = ku_malloc(sizeof *t)))
        return NULL;
    *t = (struct twin){.req = *of, .of = of};
    t->req.piece[t->req.n_pieces].at = &t->at_ns;
    t->req.piece[t->req.n_pieces].bytes = STAMP_BYTES;
    t->req.n_pieces++;
    of->head.bytes = 0;
    for (int i = 0; i < of->n_pieces; i++)
        of->head.bytes += of->piece[i].bytes;
    of->is_done = false;
    of->status = 0;
    return t;
}

static void free_twin(struct chaos_net *chaos, struct twin *t)
{
    t->next = chaos->unused;
    chaos->unused = t;
}

static void append(struct fifo *f, struct twin *t)
{
    t->next = NULL;
    if (f->head)
        f->tail->next = t;
    else
        f->head = t;
    f->tail = t;
}

static int chaos_link(struct ku_net *net, uint32_t slot, uint64_t stream, int rank,
                      enum ku_net_way way, struct ku_net_link **out)
{
    struct chaos_net *chaos = chaos_of(net);
    struct chaos_link *link = ku_calloc(1, sizeof *link);
    if (!link)
        return KUMI_ENOMEM;
    int status = chaos->inner->ops->link(chaos->inner, slot, stream, rank, way, &link->inner);
    if (status < 0) {
        ku_free(link);
        return status;
    }
    link->base =
        (struct ku_net_link){.net = net, .stream = stream, .slot = slot, .rank = rank, .way = way};
    link->next = chaos->links;
    chaos->links = link;
    *out = &link->base;
    return 0;
}

static void drop_all(struct chaos_net *chaos, struct fifo *f)
{
    while (f->head) {
        struct twin *t = f->head;
        f->head = t->next;
        chaos->n_held -= t->is_held;
        free_twin(chaos, t);
    }
}

static void chaos_unlink(struct ku_net_link *net_link, bool has_failed)
{
    if (!net_link)
        return;
    struct chaos_link *link = link_of(net_link), **at;
    struct chaos_net *chaos = chaos_of(net_link->net);
    KU_ASSERT(has_failed || (!link->out.head && !link->in.head));
    if (net_link->net->broken == net_link)
        net_link->net->broken = NULL;
    chaos->inner->ops->unlink(link->inner, has_failed);
    drop_all(chaos, &link->out);
    drop_all(chaos, &link->in);
    for (at = &chaos->links; *at != link; at = &(*at)->next)
        KU_ASSERT(*at);
    *at = link->next;
    ku_free(link);
}

static void chaos_close(struct ku_net *net, bool has_failed)
{
    struct chaos_net *chaos = chaos_of(net);
    if (!chaos)
        return;
    while (chaos->links)
        chaos_unlink(&chaos->links->base, has_failed);
    KU_ASSERT(chaos->n_held == 0);
    chaos->inner->ops->close(chaos->inner, has_failed);
    while (chaos->unused) {
        struct twin *t = chaos->unused;
        chaos->unused = t->next;
        ku_free(t);
    }
    ku_free(chaos);
}

static int chaos_send(struct ku_net_link *net_link, struct ku_net_req *req)
{
    struct chaos_link *link = link_of(net_link);
    struct chaos_net *chaos = chaos_of(net_link->net);
    const struct ku_chaos *o = &chaos->options;
    struct twin *t = make_twin(chaos, req);
    if (!t)
        return KUMI_ENOMEM;
    chaos->n_messages++;
    if (o->kill_rank == chaos->rank && o->kill_at == chaos->n_messages)
        raise(SIGKILL);
    t->at_ns = arrival_ns(chaos);
    t->is_dropped = is_due(chaos, o->drop_rank, o->drop_at);
    if (is_due(chaos, o->corrupt_rank, o->corrupt_at))
        t->req.head.count ^= 1u << 20;
    int status = t->is_dropped ? 0 : chaos->inner->ops->send(link->inner, &t->req);
    if (status < 0)
        free_twin(chaos, t);
    else
        append(&link->out, t);
    return status;
}

static int chaos_recv(struct ku_net_link *net_link, struct ku_net_req *req)
{
    struct chaos_link *link = link_of(net_link);
    struct chaos_net *chaos = chaos_of(net_link->net);
    struct twin *t = make_twin(chaos, req);
    if (!t)
        return KUMI_ENOMEM;
    int status = chaos->inner->ops->recv(link->inner, &t->req);
    if (status < 0)
        free_twin(chaos, t);
    else
        append(&link->in, t);
    return status;
}

/* A message that was received arrives later. */
static bool is_early(struct chaos_net *chaos, struct twin *t)
{
    uint64_t now = (uint64_t)ku_clock_ns();
    if (t->req.status)
        return false;
    if (!t->is_held) {
        uint64_t last = now + (uint64_t)(chaos->options.delay_ns + chaos->options.jitter_ns);
        if (t->at_ns > last)
            t->at_ns = last;
    }
    bool holds = t->at_ns > now;
    chaos->n_held += holds - t->is_held;
    t->is_held = holds;
    return holds;
}

static void end_twin(struct chaos_net *chaos, struct twin *t)
{
    struct ku_net_req *of = t->of;
    of->came = t->req.came;
    of->came.bytes -= STAMP_BYTES;
    of->status = t->req.status;
    of->is_done = true;
    free_twin(chaos, t);
}

/* End the requests of a direction whose twins have ended, in order. */
static void sweep(struct chaos_net *chaos, struct fifo *f, bool is_in, bool *has_moved)
{
    while (f->head) {
        struct twin *t = f->head;
        if (!t->is_dropped && (!t->req.is_done || (is_in && is_early(chaos, t))))
            return;
        f->head = t->next;
        end_twin(chaos, t);
        *has_moved = true;
    }
}

static int chaos_progress(struct ku_net *net, int64_t budget_bytes, bool *has_moved)
{
    struct chaos_net *chaos = chaos_of(net);
    int64_t limit = chaos->options.short_bytes;
    if (limit && (budget_bytes < 0 || budget_bytes > limit))
        budget_bytes = limit;
    int status = chaos->inner->ops->progress(chaos->inner, budget_bytes, has_moved);
    for (struct chaos_link *link = chaos->links; link; link = link->next) {
        if (status < 0 && link->inner == chaos->inner->broken)
            net->broken = &link->base;
        sweep(chaos, &link->out, false, has_moved);
        sweep(chaos, &link->in, true, has_moved);
    }
    return status;
}

static int chaos_poll(struct ku_net *net, struct pollfd *fds, int cap)
{
    struct chaos_net *chaos = chaos_of(net);
    int n = chaos->inner->ops->poll(chaos->inner, fds, cap);
    return chaos->n_held ? -1 : n;
}

static void chaos_stats(const struct ku_net *net, struct ku_net_stats *out)
{
    const struct chaos_net *chaos = chaos_of(net);
    chaos->inner->ops->stats(chaos->inner, out);
    out->sent_bytes -= STAMP_BYTES * out->n_sent;
    out->received_bytes -= STAMP_BYTES * out->n_received;
}

static void chaos_describe(const struct ku_net *net, char *text, size_t cap)
{
    const struct chaos_net *chaos = chaos_of(net);
    int n = snprintf(text, cap, "chaos around ");
    if (n >= 0 && (size_t)n < cap)
        chaos->inner->ops->describe(chaos->inner, text + n, cap - (size_t)n);
}

static const struct ku_net_ops chaos_ops = {.name = "chaos",
                                            .ops_bytes = sizeof(struct ku_net_ops),
                                            .abi = KU_NET_ABI,
                                            .close = chaos_close,
                                            .link = chaos_link,
                                            .unlink = chaos_unlink,
                                            .send = chaos_send,
                                            .recv = chaos_recv,
                                            .progress = chaos_progress,
                                            .poll = chaos_poll,
                                            .stats = chaos_stats,
                                            .describe = chaos_describe};

int ku_net_chaos(struct ku_net *inner, const struct ku_chaos *options, int rank,
                 struct ku_net **net)
{
    struct chaos_net *chaos = ku_calloc(1, sizeof *chaos);
    if (!chaos)
        return KUMI_ENOMEM;
    chaos->base.ops = &chaos_ops;
    chaos->base.full_rate_bytes = inner->full_rate_bytes;
    chaos->inner = inner;
    chaos->options = *options;
    chaos->rank = rank;
    *net = &chaos->base;
    return 0;
}
