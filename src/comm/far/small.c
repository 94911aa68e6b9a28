/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small collectives: the first member of each host speaks for it. The near members' arrivals hold
 * their payloads; it combines or collects them, exchanges the results with the first members of
 * other hosts in the stages of ku_small_plan, and leaves what the near members need:
 *
 *     barrier                 nothing
 *     reductions              the result, as the payload of its own arrival
 *     broadcast, scatter      the root's payload, likewise
 *     gathers, all_to_all     all payloads, by host and local index, in the piece of its stage
 */
#include "comm/far/lane.h"

#include "base/err.h"
#include "base/mem.h"
#include "comm/sum.h"

#include <string.h>

static bool is_reduction(const struct ku_work *w)
{
    return w->coll.kind == KU_COLL_REDUCE || w->coll.kind == KU_COLL_ALL_REDUCE ||
           w->coll.kind == KU_COLL_REDUCE_SCATTER;
}

static bool is_from_root(const struct ku_work *w)
{
    return w->coll.kind == KU_COLL_BROADCAST || w->coll.kind == KU_COLL_SCATTER;
}

static struct ku_entry *entry_of(const struct ku_work *w, int k)
{
    return &w->comm->priv->flags[ku_comm_near(w->comm, k)].ring[w->seq % KU_RING];
}

/* Elements of a reduction: reduce_scatter has a block for each member */
static int64_t sum_count(const struct ku_work *w)
{
    return w->coll.n_parts ? w->total : ku_coll_inline_count(&w->coll, w->comm->n);
}

/* Bytes that each member contributes */
static size_t payload_bytes(const struct ku_work *w)
{
    if (w->path == KU_PATH_FAR_BARRIER)
        return 0;
    return (size_t)sum_count(w) * (is_reduction(w) ? ku_far_wire_each(w) : ku_far_each(w));
}

/* Members on the hosts before `host` */
static int64_t members_before(const struct ku_topology *t, int host)
{
    int64_t n = 0;
    if (t->per_host)
        return (int64_t)host * t->per_host;
    for (int h = 0; h < host; h++)
        n += ku_topology_local_n(t, h);
    return n;
}

/* Place of a node of the first n in small_room; nodes of a stage lie packed */
static unsigned char *room_at(const struct ku_work *w, int index)
{
    return w->comm->priv->far->small_room + (size_t)index * payload_bytes(w);
}

/*
 * Rooms of a node each: what this member holds, from 0 on; what came, from n_rooms on, in the order
 * of the receives; the results of a stage, from 2 n_rooms on.
 */
static int n_rooms(const struct ku_far *far)
{
    return far->small.max_sources + 1;
}

static void sum_nodes(const struct ku_work *w, const void *const *src, int n, const int32_t *first,
                      bool is_wire, void *dst, bool is_node)
{
    struct ku_far *far = w->comm->priv->far;
    for (int i = 0; i < n; i++)
        far->in_wire[i] = is_wire;
    const struct ku_coll *coll = &w->coll;
    const void *addend = NULL;
    if (!is_node && coll->n_parts && coll->part->has_addend)
        addend = ku_move_ref(w->comm->job, &coll->part->addend, w->comm->job->local_rank);
    const struct ku_sum s = {.n_src = n,
                             .n_dst = 1,
                             .src = src,
                             .dst = &dst,
                             .count = sum_count(w),
                             .dtype = coll->dtype,
                             .wire = coll->wire,
                             .reduce = coll->reduce,
                             .addend = addend,
                             .divide = !is_node && coll->reduce == KUMI_AVG ? w->comm->n : 0,
                             .first = first,
                             .in_wire = is_wire ? far->in_wire : NULL,
                             .is_node = is_node};
    ku_sum(w->comm->job->comm->kernels, &s);
}

/* The host's own nodes, from the payloads of its members */
static void begin_sum(struct ku_work *w)
{
    struct ku_far *far = w->comm->priv->far;
    const struct ku_topology *t = &far->topology;
    int k = 0;
    far->n_nodes =
        ku_topology_cover(t, t->host, t->host + 1, far->small_node, far->small.max_nodes);
    for (int j = 0; j < far->n_nodes; j++) {
        for (int i = 0; i < far->small_node[j].count; i++)
            far->src[i] = entry_of(w, k++)->payload;
        sum_nodes(w, far->src, far->small_node[j].count, NULL, false, room_at(w, j), true);
    }
}

/* Nodes of the block that the i-th receive of the stage brings */
static int n_nodes_of(const struct ku_far *far, int i)
{
    struct ku_small_peer peer;
    ku_small_recv(&far->small, far->stage, i, &peer);
    return ku_topology_cover(&far->topology, peer.host_begin, peer.host_end, NULL, 0);
}

/* Combine what this member held with what came. The last stage leaves the result in its arrival. */
static void combine(struct ku_work *w)
{
    struct ku_far *far = w->comm->priv->far;
    const int base = n_rooms(far), n_recvs = ku_small_n_recvs(&far->small, far->stage);
    struct ku_tree_node *result = far->small_node + n_rooms(far);
    const bool is_last = far->stage == far->small.n_stages - 1;
    int n_results, at = 0;
    /* where the nodes of each receive begin */
    int begin[KU_EXCHANGE_RADIX + 1] = {base};
    for (int i = 0; i < n_recvs; i++)
        begin[i + 1] = begin[i] + n_nodes_of(far, i);
    const int n = ku_small_sources(&far->small, far->stage, far->small_source,
                                   far->small.max_sources, result, &n_results);
    for (int r = 0; r < n_results; r++) {
        int m = 0;
        for (; at < n && far->small_source[at].node.first < result[r].first + result[r].count;
             at++, m++) {
            const struct ku_exchange_source *s = &far->small_source[at];
            far->src[m] =
                room_at(w, s->from == KU_FROM_SELF ? s->index : begin[s->from] + s->index);
            far->first[m] = s->node.first;
            far->first[m + 1] = s->node.first + s->node.count;
        }
        sum_nodes(w, far->src, m, far->first, true,
                  is_last ? (void *)entry_of(w, w->comm->near.me)->payload
                          : room_at(w, 2 * base + r),
                  !is_last);
    }
    if (is_last)
        return;
    memcpy(room_at(w, 0), room_at(w, 2 * base), (size_t)n_results * payload_bytes(w));
    memcpy(far->small_node, result, (size_t)n_results * sizeof *result);
    far->n_nodes = n_results;
}

/* Where the payloads of the hosts from `host` on begin in the piece of the stage */
static unsigned char *collected(const struct ku_work *w, int host)
{
    return ku_move_stage(w, 0) +
           (size_t)members_before(&w->comm->priv->far->topology, host) * payload_bytes(w);
}

/* What travels between this member and a peer: false: nothing */
static bool locate(const struct ku_work *w, const struct ku_small_peer *peer, int room, int n_nodes,
                   struct ku_net_req *r)
{
    const struct ku_topology *t = &w->comm->priv->far->topology;
    r->n_pieces = 1;
    if (w->path == KU_PATH_FAR_BARRIER || w->path == KU_PATH_FAR_FREE) {
        r->n_pieces = 0;
    } else if (is_reduction(w)) {
        r->piece[0].at = room_at(w, room);
        r->piece[0].bytes = (size_t)n_nodes * payload_bytes(w);
    } else if (is_from_root(w)) {
        int host, local;
        ku_topology_find(t, w->coll.root, &host, &local);
        if (host < peer->host_begin || host >= peer->host_end)
            return false;
        r->piece[0].at = entry_of(w, w->comm->near.me)->payload;
        r->piece[0].bytes = payload_bytes(w);
    } else {
        r->piece[0].at = collected(w, peer->host_begin);
        r->piece[0].bytes = (size_t)(collected(w, peer->host_end) - collected(w, peer->host_begin));
    }
    return true;
}

static int post(struct ku_work *w, const struct ku_small_peer *peer, bool is_send, int room,
                int n_nodes)
{
    struct ku_far *far = w->comm->priv->far;
    struct ku_net *net = w->comm->job->comm->net;
    struct ku_net_req *r = &far->req[far->n_reqs].r;
    struct ku_net_link *link;
    if (!locate(w, peer, room, n_nodes, r))
        return 0;
    r->head = ku_far_head(w, (uint32_t)far->stage, 0);
    far->req[far->n_reqs++].member = peer->member;
    KU_TRY(ku_far_link_of(far, peer->member, KU_NET_BOTH_WAYS, &link));
    return (is_send ? net->ops->send : net->ops->recv)(link, r);
}

static int post_stage(struct ku_work *w)
{
    struct ku_far *far = w->comm->priv->far;
    const int n_sends = ku_small_n_sends(&far->small, far->stage),
              n_recvs = ku_small_n_recvs(&far->small, far->stage);
    struct ku_small_peer peer;
    int room = n_rooms(far);
    KU_ASSERT(n_recvs <= KU_EXCHANGE_RADIX);
    KU_TRY(ku_far_requests(far, n_sends + n_recvs));
    for (int i = 0; i < n_recvs; i++) {
        const int n_nodes = is_reduction(w) ? n_nodes_of(far, i) : 0;
        ku_small_recv(&far->small, far->stage, i, &peer);
        KU_TRY(post(w, &peer, false, room, n_nodes));
        room += n_nodes;
    }
    for (int i = 0; i < n_sends; i++) {
        ku_small_send(&far->small, far->stage, i, &peer);
        KU_TRY(post(w, &peer, true, 0, far->n_nodes));
    }
    far->step = 0;
    w->comm->job->comm->has_moved = 1;
    return 0;
}

/* What this host contributes, before the first stage */
static int begin(struct ku_work *w)
{
    struct ku_far *far = w->comm->priv->far;
    const struct ku_comm *c = w->comm;
    const size_t bytes = payload_bytes(w);
    if (!far->small_room) {
        far->small_room = ku_calloc(3 * (size_t)n_rooms(far), KU_INLINE_BYTES);
        if (!far->small_room)
            return KUMI_ENOMEM;
    }
    if (w->path == KU_PATH_FAR_BARRIER || bytes == 0)
        return 0;
    if (is_reduction(w)) {
        begin_sum(w);
    } else if (is_from_root(w)) {
        for (int k = 1; k < c->near.n; k++)
            if (ku_comm_member(c, k) == w->coll.root)
                memcpy(entry_of(w, 0)->payload, entry_of(w, k)->payload, bytes);
    } else {
        for (int k = 0; k < c->near.n; k++)
            memcpy(collected(w, far->topology.host) + (size_t)k * bytes, entry_of(w, k)->payload,
                   bytes);
    }
    return 0;
}

int ku_far_small(struct ku_work *w)
{
    struct ku_far *far = w->comm->priv->far;
    if (w->comm->near.me != 0)
        return 0;
    if (!far->is_open) {
        far->stage = 0;
        KU_TRY(begin(w));
        KU_TRY(post_stage(w));
        far->is_open = true;
    }
    for (;;) {
        for (; far->step < far->n_reqs; far->step++) {
            const struct far_request *q = &far->req[far->step];
            const int status = ku_far_request_state(w, &q->r, q->member);
            if (status)
                return status;
        }
        if (is_reduction(w) && payload_bytes(w))
            combine(w);
        if (++far->stage == far->small.n_stages)
            break;
        KU_TRY(post_stage(w));
    }
    far->is_open = false;
    return 0;
}

void ku_far_inline_result(struct ku_work *w)
{
    const struct ku_comm *c = w->comm;
    const struct ku_topology *t = &c->priv->far->topology;
    const int64_t bytes = w->total * (int64_t)ku_far_each(w);
    const unsigned char *from = ku_move_stage(w, 0);
    if (w->coll.kind == KU_COLL_GATHER && c->me != w->coll.root)
        return;
    if (w->coll.kind == KU_COLL_ALL_TO_ALL)
        from += c->me * bytes;
    for (int h = 0; h < t->n_hosts; h++)
        for (int l = 0; l < ku_topology_local_n(t, h); l++, from += payload_bytes(w))
            memcpy((unsigned char *)w->coll.out + ku_topology_member(t, h, l) * bytes, from,
                   (size_t)bytes);
}
