/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/far.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "comm/far/lane.h"

#include <stdlib.h>
#include <string.h>

/* A host's number is that of the job. */
static int find_topology(struct ku_far *far)
{
    const struct ku_comm *c = far->comm;
    struct ku_run *run = ku_malloc((size_t)c->n * sizeof *run);
    if (!run)
        return KUMI_ENOMEM;
    for (int i = 0; i < c->n; i++)
        run[i] = (struct ku_run){.count = 1, .host = ku_job_host_of(c->job, ku_comm_rank(c, i))};
    const int status = ku_topology_init(&far->topology, run, c->n, c->me);
    ku_free(run);
    return status;
}

/* Lanes, lists of sources and the chunks */
static int make_room(struct ku_far *far)
{
    const struct ku_exchange *x = &far->exchange;
    const size_t peers = (size_t)x->max_peers, small = (size_t)far->small.max_sources + 1;
    const size_t large = (size_t)x->max_sources + 1;
    const size_t sources = (small > large ? small : large) + KU_MAX_LOCAL;
    far->send = ku_calloc(2 * peers + 1, sizeof *far->send);
    far->recv = far->send ? far->send + peers : NULL;
    far->source = ku_calloc(large, sizeof *far->source);
    far->first = ku_calloc(sources + 1, sizeof *far->first);
    far->in_wire = ku_calloc(sources, sizeof *far->in_wire);
    far->src = ku_calloc(sources, sizeof *far->src);
    far->node = ku_calloc((size_t)x->max_nodes + 1, sizeof *far->node);
    far->small_source = ku_calloc(small, sizeof *far->small_source);
    far->small_node = ku_calloc(2 * small, sizeof *far->small_node);
    return far->send && far->source && far->first && far->in_wire && far->src && far->node &&
                   far->small_source && far->small_node
               ? 0
               : KUMI_ENOMEM;
}

int ku_far_create(struct ku_comm *c, uint64_t stream)
{
    struct ku_far *far = ku_calloc(1, sizeof *far);
    if (!far)
        return KUMI_ENOMEM;
    c->priv->far = far;
    far->comm = c;
    far->stream = stream;
    KU_TRY(find_topology(far));
    KU_TRY(ku_exchange_plan(&far->topology, NULL, &far->exchange));
    const size_t full_rate_bytes = c->job->comm->net->full_rate_bytes;
    far->chunk_bytes = ku_exchange_chunk_bytes(&far->exchange, full_rate_bytes);
    far->gather_bytes = full_rate_bytes ? FAR_WHOLE_BYTES : far->chunk_bytes;
    ku_small_plan(&far->topology, NULL, &far->small);
    return make_room(far);
}

void ku_far_destroy(struct ku_far *far, bool has_failed)
{
    if (!far)
        return;
    struct ku_net *net = far->comm->job->comm->net;
    for (int i = 0; i < far->n_links; i++)
        net->ops->unlink(far->link[i].link, has_failed);
    for (struct far_message *next, *m = far->messages; m; m = next) {
        next = m->next;
        ku_free(m);
    }
    ku_free(far->link);
    ku_free(far->send);
    ku_free(far->source);
    ku_free(far->first);
    ku_free(far->in_wire);
    ku_free(far->src);
    ku_free(far->node);
    ku_free(far->small_source);
    ku_free(far->small_node);
    ku_free(far->small_room);
    ku_free(far->copy);
    ku_free(far->staging);
    ku_free(far->req);
    ku_exchange_fini(&far->exchange);
    ku_topology_fini(&far->topology);
    ku_free(far);
}

int ku_far_reserve(struct ku_far *far)
{
    if (far->staging)
        return 0;
    const size_t bytes = ku_exchange_staging_bytes(&far->exchange, far->chunk_bytes);
    far->staging = ku_malloc(bytes + far->chunk_bytes);
    far->kept = far->staging ? far->staging + bytes : NULL;
    return far->staging ? 0 : KUMI_ENOMEM;
}

/* Place of a link in the sorted list */
static int place_of_link(const struct ku_far *far, int member, enum ku_net_way way)
{
    int low = 0, high = far->n_links;
    while (low < high) {
        const int mid = (low + high) / 2;
        const struct far_link *l = &far->link[mid];
        if (l->member < member || (l->member == member && l->way < way))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* NULL: it is not made yet */
static struct far_link *find_link(const struct ku_far *far, int member, enum ku_net_way way)
{
    const int at = place_of_link(far, member, way);
    const bool is_there =
        at < far->n_links && far->link[at].member == member && far->link[at].way == way;
    return is_there ? &far->link[at] : NULL;
}

int ku_far_link_of(struct ku_far *far, int member, enum ku_net_way way, struct ku_net_link **link)
{
    const struct ku_comm *c = far->comm;
    struct ku_net *net = c->job->comm->net;
    const struct far_link *old = find_link(far, member, way);
    if (old) {
        *link = old->link;
        return 0;
    }
    if (far->n_links == far->link_cap) {
        const int cap = far->link_cap ? 2 * far->link_cap : 8;
        struct far_link *more = ku_realloc(far->link, (size_t)cap, sizeof *more);
        if (!more)
            return KUMI_ENOMEM;
        far->link = more;
        far->link_cap = cap;
    }
    struct ku_net_link *made;
    const uint64_t stream = far->stream << 1 | (way != KU_NET_BOTH_WAYS);
    KU_TRY(net->ops->link(net, c->slot, stream, ku_comm_rank(c, member), way, &made));
    const int at = place_of_link(far, member, way);
    memmove(&far->link[at + 1], &far->link[at], (size_t)(far->n_links - at) * sizeof far->link[at]);
    far->link[at] = (struct far_link){.member = member, .way = way, .link = made};
    far->n_links++;
    *link = made;
    return 0;
}

struct ku_net_head ku_far_head(const struct ku_work *w, uint32_t stage, uint32_t chunk)
{
    return (struct ku_net_head){.seq = w->seq,
                                .what = w->what,
                                .count = (uint64_t)w->total,
                                .extra = w->extra,
                                .stage = stage | (uint32_t)w->piece << 8,
                                .chunk = chunk};
}

int ku_far_request_state(struct ku_work *w, const struct ku_net_req *req, int member)
{
    if (!req->is_done)
        return 1;
    if (req->status == KUMI_EMISMATCH)
        return ku_work_raise_far(w, member, &req->came);
    return req->status;
}

int ku_far_requests(struct ku_far *far, int n)
{
    far->n_reqs = 0;
    if (n > far->req_cap) {
        ku_free(far->req);
        far->req = ku_malloc((size_t)n * sizeof *far->req);
        far->req_cap = far->req ? n : 0;
        if (!far->req)
            return KUMI_ENOMEM;
    }
    memset(far->req, 0, (size_t)n * sizeof *far->req);
    return 0;
}

/* ---- Send and receive ---- */

static struct ku_net_req *take_request(struct ku_far *far)
{
    struct ku_net_req *r = far->free_req;
    if (r) {
        far->free_req = r->next;
        memset(r, 0, sizeof *r);
        return r;
    }
    struct far_message *m = ku_calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->next = far->messages;
    far->messages = m;
    return &m->r;
}

static int64_t n_messages(const struct ku_far *far, int member, enum ku_net_way way)
{
    const struct far_link *link = find_link(far, member, way);
    return link ? link->n_messages : 0;
}

/* There is a message that was sent and not received: its receiver finds it. */
static int find_unreceived(struct ku_comm *c)
{
    const struct ku_far *far = c->priv->far;
    const size_t n = (size_t)c->n;
    int64_t *sent = ku_calloc(n + 1, n * sizeof *sent);
    if (!sent)
        return KUMI_ENOMEM;
    int status = 0;
    int64_t *all = sent + n;
    for (int d = 0; d < c->n; d++)
        sent[d] = n_messages(far, d, KU_NET_OUT);
    const struct ku_coll gather = {
        .kind = KU_COLL_ALL_GATHER, .dtype = KUMI_I64, .in = sent, .out = all, .count = c->n};
    KU_TRY_OUT(ku_comm_run_own(c, &gather));
    for (int d = 0; d < c->n && !status; d++)
        if (all[(size_t)d * n + (size_t)c->me] != n_messages(far, d, KU_NET_IN))
            status = ku_comm_raise_unreceived(c, d);
out:
    ku_free(sent);
    return status;
}

int ku_far_check_messages(struct ku_comm *c)
{
    const struct ku_far *far = c->priv->far;
    int64_t mine = 0, all = 0; /* sent and not received: of a pair of ranks never less than 0 */
    for (int i = 0; i < far->n_links; i++)
        mine += far->link[i].way == KU_NET_OUT ? far->link[i].n_messages : -far->link[i].n_messages;
    const struct ku_coll sum = {
        .kind = KU_COLL_ALL_REDUCE, .dtype = KUMI_I64, .in = &mine, .out = &all, .count = 1};
    KU_TRY(ku_comm_run_own(c, &sum));
    return all == 0 ? 0 : find_unreceived(c);
}

int ku_far_message(struct ku_work *w)
{
    struct ku_far *far = w->comm->priv->far;
    struct ku_net *net = w->comm->job->comm->net;
    const bool is_send = w->coll.kind == KU_COLL_SEND;
    if (!w->p2p.req) {
        struct ku_net_link *link;
        KU_TRY(ku_far_link_of(far, w->coll.root, is_send ? KU_NET_OUT : KU_NET_IN, &link));
        struct ku_net_req *r = take_request(far);
        if (!r)
            return KUMI_ENOMEM;
        /* send and recv differ in kind and in the peer; messages are compared by dtype and count */
        r->head = (struct ku_net_head){
            .seq = w->seq, .what = (uint64_t)w->coll.dtype, .count = (uint64_t)w->total};
        r->n_pieces = w->total > 0;
        /* a send only reads it */
        memcpy(&r->piece[0].at, is_send ? (const void *)&w->coll.in : (const void *)&w->coll.out,
               sizeof r->piece[0].at);
        r->piece[0].bytes = (size_t)w->total * ku_far_each(w);
        w->p2p.req = r;
        KU_TRY((is_send ? net->ops->send : net->ops->recv)(link, r));
        w->comm->job->comm->has_moved = 1;
    }
    if (!w->p2p.req->is_done)
        return 1;
    struct ku_net_req *r = w->p2p.req;
    const int status = r->status;
    if (status == KUMI_EMISMATCH)
        return ku_work_raise_message(w, &r->came);
    if (status == 0)
        find_link(far, w->coll.root, is_send ? KU_NET_OUT : KU_NET_IN)->n_messages++;
    if (is_send && status == 0)
        ku_far_count_bytes(w, r);
    w->p2p.req = NULL;
    r->next = far->free_req;
    far->free_req = r;
    return status;
}

/* ---- Blocks to and from the members of other hosts ---- */

/* This member's block for member d, and d's for it, in elements; < 0: none travels */
static void blocks_of(const struct ku_work *w, int d, int64_t *out, int64_t *in)
{
    const bool am_root = w->comm->me == w->coll.root, is_root = d == w->coll.root;
    *out = *in = -1;
    switch (w->coll.kind) {
    case KU_COLL_GATHER:
        if (is_root)
            *out = ku_move_block_count(w, w->comm->me);
        if (am_root)
            *in = ku_move_block_count(w, d);
        return;
    case KU_COLL_SCATTER:
        if (am_root)
            *out = ku_move_block_count(w, d);
        if (is_root)
            *in = ku_move_block_count(w, w->comm->me);
        return;
    default:
        break;
    }
    KU_ASSERT(w->coll.kind == KU_COLL_ALL_TO_ALL);
    *out = ku_move_block_count(w, d);
    *in = w->coll.recv_counts ? w->coll.recv_counts[d] : w->coll.count;
}

static int post_pair(struct ku_work *w, int d, bool is_send, const void *at, int64_t count)
{
    struct ku_far *far = w->comm->priv->far;
    struct ku_net *net = w->comm->job->comm->net;
    struct ku_net_link *link;
    KU_TRY(ku_far_link_of(far, d, KU_NET_BOTH_WAYS, &link));
    struct far_request *q = &far->req[far->n_reqs++];
    struct ku_net_req *r = &q->r;
    r->head = ku_far_head(w, 0, 0);
    r->head.extra = w->coll.kind == KU_COLL_ALL_TO_ALL ? (uint64_t)count : w->extra;
    r->n_pieces = count > 0;
    memcpy(&r->piece[0].at, &at, sizeof at);
    r->piece[0].bytes = (size_t)count * ku_far_each(w);
    q->member = d;
    return (is_send ? net->ops->send : net->ops->recv)(link, r);
}

int ku_far_copy_room(struct ku_far *far, size_t bytes)
{
    if (bytes <= far->copy_bytes)
        return 0;
    ku_free(far->copy);
    far->copy = ku_malloc(bytes);
    far->copy_bytes = far->copy ? bytes : 0;
    return far->copy ? 0 : KUMI_ENOMEM;
}

/* In place, what is received would overwrite what is not sent yet. */
static int copy_input(struct ku_work *w, const unsigned char **in)
{
    struct ku_far *far = w->comm->priv->far;
    const size_t bytes = (size_t)(w->coll.count * w->comm->n) * ku_far_each(w);
    KU_TRY(ku_far_copy_room(far, bytes));
    if (bytes)
        memcpy(far->copy, *in, bytes);
    *in = far->copy;
    return 0;
}

static int post_pairs(struct ku_work *w)
{
    const struct ku_comm *c = w->comm;
    const size_t each = ku_far_each(w);
    const unsigned char *in = w->coll.in;
    unsigned char *out = w->coll.out;
    int64_t sent = 0, received = 0; /* elements of blocks before d's */
    if (w->coll.kind == KU_COLL_ALL_TO_ALL && in == out)
        KU_TRY(copy_input(w, &in));
    KU_TRY(ku_far_requests(c->priv->far, 2 * (c->n - c->near.n)));
    for (int d = 0; d < c->n; d++) {
        int64_t to, from;
        blocks_of(w, d, &to, &from);
        if (!ku_comm_is_near(c, d)) {
            if (to >= 0)
                KU_TRY(post_pair(w, d, true,
                                 in + (w->coll.kind == KU_COLL_GATHER ? 0 : (size_t)sent * each),
                                 to));
            if (from >= 0)
                KU_TRY(post_pair(
                    w, d, false,
                    out + (w->coll.kind == KU_COLL_SCATTER ? 0 : (size_t)received * each), from));
        }
        sent += to > 0 ? to : 0;
        received += from > 0 ? from : 0;
    }
    return 0;
}

int ku_far_pairs(struct ku_work *w)
{
    struct ku_far *far = w->comm->priv->far;
    if (!far->is_open) {
        KU_TRY(post_pairs(w));
        far->is_open = true;
        far->step = 0;
        w->comm->job->comm->has_moved = 1;
    }
    for (; far->step < far->n_reqs; far->step++) {
        const int status =
            ku_far_request_state(w, &far->req[far->step].r, far->req[far->step].member);
        if (status)
            return status;
    }
    far->is_open = false;
    return 0;
}

/* ---- Broadcast ---- */

/*
 * The hosts form a binary tree that begins at the root's. On each host one member takes part: the
 * root, or the helper of the root. It receives the piece into its stage and passes it on.
 */
static int host_at(const struct ku_far *far, int root_host, int place)
{
    return (place + root_host) % far->topology.n_hosts;
}

int ku_far_broadcaster(const struct ku_work *w)
{
    const struct ku_topology *t = &w->comm->priv->far->topology;
    int host, local;
    ku_topology_find(t, w->coll.root, &host, &local);
    return ku_topology_helper(t, t->host, host, local);
}

static int post_broadcast(struct ku_work *w, int place, bool is_send, int index)
{
    struct ku_far *far = w->comm->priv->far;
    const struct ku_topology *t = &far->topology;
    struct ku_net *net = w->comm->job->comm->net;
    struct ku_net_link *link;
    int root_host, root_local;
    ku_topology_find(t, w->coll.root, &root_host, &root_local);
    const int host = host_at(far, root_host, place);
    const int member =
        ku_topology_member(t, host, ku_topology_helper(t, host, root_host, root_local));
    KU_TRY(ku_far_link_of(far, member, KU_NET_BOTH_WAYS, &link));
    struct ku_net_req *r = &far->req[index].r;
    r->head = ku_far_head(w, 0, 0);
    r->n_pieces = 1;
    r->piece[0].at = ku_move_stage(w, w->comm->near.me);
    r->piece[0].bytes = (size_t)ku_far_piece_bytes(w);
    far->req[index].member = member;
    return (is_send ? net->ops->send : net->ops->recv)(link, r);
}

/* A receive and two sends. Those that a host has no use for are done, so none awaits them. */
static int open_broadcast(struct ku_far *far)
{
    enum { REQUESTS = 3 };
    KU_TRY(ku_far_requests(far, REQUESTS));
    far->n_reqs = REQUESTS;
    for (int i = 0; i < far->n_reqs; i++)
        far->req[i].r.is_done = true;
    return 0;
}

int ku_far_broadcast(struct ku_work *w)
{
    enum { BEGIN, SENDING };
    struct ku_far *far = w->comm->priv->far;
    int root_host, root_local;
    if (w->comm->near.me != ku_far_broadcaster(w))
        return 0;
    ku_topology_find(&far->topology, w->coll.root, &root_host, &root_local);
    const int n = far->topology.n_hosts, place = (far->topology.host - root_host + n) % n;
    if (!far->is_open) {
        KU_TRY(open_broadcast(far));
        far->is_open = true;
        far->step = BEGIN;
        if (place > 0)
            KU_TRY(post_broadcast(w, (place - 1) / 2, false, 0));
    }
    if (far->step == BEGIN) {
        const int status =
            place > 0 ? ku_far_request_state(w, &far->req[0].r, far->req[0].member) : 0;
        if (status)
            return status;
        for (int i = 1; i <= 2 && 2 * place + i < n; i++)
            KU_TRY(post_broadcast(w, 2 * place + i, true, i));
        far->step = SENDING;
        w->comm->job->comm->has_moved = 1;
    }
    for (int i = 1; i <= 2 && 2 * place + i < n; i++)
        if (!far->req[i].r.is_done)
            return 1;
    far->is_open = false;
    return 0;
}
