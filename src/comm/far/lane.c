/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/far/lane.h"

#include "base/err.h"
#include "base/mem.h"

#include <string.h>

bool ku_far_next_chunk(const struct ku_work *w, const struct ku_exchange_set *set,
                       struct far_cursor *at, int64_t max, struct far_chunk *chunk)
{
    const struct ku_exchange *x = &w->comm->priv->far->exchange;
    const int n_parts = ku_far_n_parts(w);
    chunk->n = 0;
    chunk->count = 0;
    for (; at->i < set->n; at->i++, at->part = 0) {
        const int d = ku_exchange_dest(x, set, at->i);
        for (; at->part < n_parts; at->part++, at->at = 0) {
            int64_t begin, end;
            ku_far_range(w, at->part, d, &begin, &end);
            const int64_t left = end - begin - at->at, room = max - chunk->count;
            if (left == 0)
                continue;
            if (room == 0 || chunk->n == FAR_SEGMENTS)
                return true;
            const int64_t count = left < room ? left : room;
            chunk->seg[chunk->n++] = (struct far_segment){.dest = d,
                                                          .part = at->part,
                                                          .begin = begin + at->at,
                                                          .count = count,
                                                          .range_begin = begin};
            chunk->count += count;
            at->at += count;
            if (count < left)
                return true;
        }
    }
    return chunk->n > 0;
}

static int open_lane(struct ku_far *far, struct far_lane *lane, unsigned char *staging)
{
    lane->at = (struct far_cursor){0};
    lane->is_at_end = false;
    lane->n_posted = lane->n_done = 0;
    for (int i = 0; i < FAR_DEPTH; i++)
        lane->staging[i] = staging + (size_t)i * far->chunk_bytes;
    return ku_far_link_of(far, lane->peer.member, KU_NET_BOTH_WAYS, &lane->link);
}

/*
 * An engine with large messages has the whole vector in flight at once, and BBR lets no more than
 * twice bandwidth times round trip be unacknowledged. Between namespaces 1 MiB took 632 us over
 * Open MPI and 651 over MPICH in one exchange, 456 and 518 in two. So it keeps the two where they
 * move the same bytes.
 */
bool ku_far_is_mutual(const struct ku_work *w)
{
    const bool has_large_messages = w->comm->job->comm->net->full_rate_bytes > 0;
    return w->coll.kind == KU_COLL_ALL_REDUCE &&
           ku_topology_is_mutual(&w->comm->priv->far->topology) &&
           !(has_large_messages && w->coll.wire == w->coll.dtype);
}

/* Every lane, and this member, has all slices of its local index. */
static void widen_lanes(struct ku_far *far)
{
    ku_exchange_all(&far->exchange, &far->keep);
    for (int i = 0; i < far->n_sends; i++)
        far->send[i].peer.set = far->keep;
    for (int i = 0; i < far->n_recvs; i++)
        far->recv[i].peer.set = far->keep;
}

/* The nodes of both hosts. This one's is taken from the chunk that is sent. */
static int find_mutual_sources(struct ku_far *far)
{
    for (int h = 0; h < 2; h++) {
        far->source[h] =
            (struct ku_exchange_source){.from = h == far->topology.host ? KU_FROM_SELF : 0};
        const int n = ku_topology_cover(&far->topology, h, h + 1, &far->source[h].node, 1);
        KU_ASSERT(n == 1);
    }
    return 2;
}

static void find_sources(struct ku_far *far, int stage)
{
    const struct ku_exchange *x = &far->exchange;
    far->n_sources = far->is_mutual ? find_mutual_sources(far)
                                    : ku_exchange_sources(x, stage, far->source, x->max_sources);
    for (int i = 0; i < far->n_sources; i++) {
        const struct ku_exchange_source *s = &far->source[i];
        far->first[i] = s->node.first;
        far->first[i + 1] = s->node.first + s->node.count;
        far->in_wire[i] = s->from != KU_FROM_SELF || stage > 0 || far->is_mutual;
    }
}

int ku_far_open_stage(struct ku_work *w, enum ku_half half, int stage)
{
    struct ku_far *far = w->comm->priv->far;
    const struct ku_exchange *x = &far->exchange;
    unsigned char *staging = far->staging;
    far->half = half;
    far->stage = stage;
    far->n_sends = ku_exchange_n_sends(x, half, stage);
    far->n_recvs = ku_exchange_n_recvs(x, half, stage);
    KU_ASSERT(far->n_sends <= x->max_peers && far->n_recvs <= x->max_peers);
    for (int i = 0; i < far->n_sends; i++, staging += FAR_DEPTH * far->chunk_bytes) {
        ku_exchange_send(x, half, stage, i, &far->send[i].peer);
        KU_TRY(open_lane(far, &far->send[i], staging));
    }
    for (int i = 0; i < far->n_recvs; i++, staging += FAR_DEPTH * far->chunk_bytes) {
        ku_exchange_recv(x, half, stage, i, &far->recv[i].peer);
        KU_TRY(open_lane(far, &far->recv[i], staging));
    }
    ku_exchange_keep(x, stage, &far->keep);
    far->is_mutual = half == KU_HALF_REDUCE && ku_far_is_mutual(w);
    if (far->is_mutual)
        widen_lanes(far);
    far->keep_at = (struct far_cursor){0};
    far->n_combined = 0;
    if (half == KU_HALF_REDUCE) {
        ku_far_move_partials(w);
        far->n_nodes = ku_exchange_nodes(x, stage, far->topology.host, far->node, x->max_nodes);
        find_sources(far, stage);
    }
    far->is_open = true;
    return 0;
}

bool ku_far_stage_is_done(const struct ku_far *far)
{
    for (int i = 0; i < far->n_sends; i++)
        if (!far->send[i].is_at_end || far->send[i].n_done < far->send[i].n_posted)
            return false;
    for (int i = 0; i < far->n_recvs; i++)
        if (!far->recv[i].is_at_end || far->recv[i].n_done < far->recv[i].n_posted)
            return false;
    return true;
}

static bool is_pending(const struct far_lane *lane)
{
    return lane->n_done < lane->n_posted && !lane->chunk[lane->n_done % FAR_DEPTH].req.is_done;
}

int ku_far_awaited(const struct ku_work *w)
{
    const struct ku_far *far = w->comm->priv->far;
    if (!far->is_open)
        return -1;
    switch ((enum ku_step_op)w->step[w->pc]) {
    case KU_STEP_FAR_REDUCE:
    case KU_STEP_FAR_GATHER:
        for (int i = 0; i < far->n_recvs; i++)
            if (is_pending(&far->recv[i]))
                return far->recv[i].peer.member;
        for (int i = 0; i < far->n_sends; i++)
            if (is_pending(&far->send[i]))
                return far->send[i].peer.member;
        return -1;
    default:
        for (int i = 0; i < far->n_reqs; i++)
            if (!far->req[i].r.is_done)
                return far->req[i].member;
        return -1;
    }
}
