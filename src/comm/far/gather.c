/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gather half of an exchange: the reduce half backwards, without sums. Everything is sent from
 * where it lies and received where it belongs. Of an all-reduce of programs the receiver also
 * stores what came in the other near members' copies; of a reduce-scatter with n_owners a member
 * receives the rest of its shard from those with its local index. An all-gather into memory that
 * the near members share is complete when each of them has received what it helps with, and stored
 * its own shard, if that is elsewhere (KU_STEP_MOVE). All near members have started by then, so
 * none reads what the memory held before. After a mutual exchange nothing is left to do here.
 */
#include "comm/far/lane.h"

#include "base/err.h"
#include "comm/message_stream.h"

static void locate(const struct ku_work *w, struct far_chunk *chunk)
{
    chunk->req.n_pieces = chunk->n;
    for (int i = 0; i < chunk->n; i++) {
        chunk->req.piece[i].at = ku_far_gathered(w, &chunk->seg[i]);
        chunk->req.piece[i].bytes = (size_t)chunk->seg[i].count * ku_far_each(w);
    }
}

/* What is copied for others of this host is cut as finely as sums are: it is still in cache. */
static size_t chunk_bytes(const struct ku_work *w)
{
    const struct ku_far *far = w->comm->priv->far;
    const bool is_copied = w->path == KU_PATH_FAR_ALL_REDUCE && far->topology.max_local > 1;
    return is_copied ? far->chunk_bytes : far->gather_bytes;
}

static int post_more(struct ku_work *w, struct far_lane *lane, bool is_send)
{
    struct ku_far *far = w->comm->priv->far;
    struct ku_net *net = w->comm->job->comm->net;
    const int64_t max =
        ku_exchange_chunk_count(&far->exchange, KU_HALF_GATHER, ku_far_each(w), chunk_bytes(w));
    while (!lane->is_at_end && lane->n_posted - lane->n_done < FAR_DEPTH) {
        struct far_chunk *chunk = &lane->chunk[lane->n_posted % FAR_DEPTH];
        if (!ku_far_next_chunk(w, is_send ? &far->keep : &lane->peer.set, &lane->at, max, chunk)) {
            lane->is_at_end = true;
            break;
        }
        chunk->req = (struct ku_net_req){
            .head =
                ku_far_head(w, (uint32_t)(far->exchange.n_stages + far->stage), lane->n_posted)};
        locate(w, chunk);
        if (is_send)
            ku_far_count_bytes(w, &chunk->req);
        KU_TRY((is_send ? net->ops->send : net->ops->recv)(lane->link, &chunk->req));
        lane->n_posted++;
        w->comm->job->comm->has_moved = 1;
    }
    return 0;
}

/* Store a received chunk in the other copies of this host. */
static void store_copies(const struct ku_work *w, const struct far_chunk *chunk)
{
    void *dst[KU_MAX_LOCAL + 1];
    const void *addend;
    for (int i = 0; i < chunk->n; i++) {
        const unsigned char *from = chunk->req.piece[i].at;
        const int n = ku_far_sum_places(w, &chunk->seg[i], dst, &addend);
        for (int k = 0; k < n; k++)
            if (dst[k] != from)
                ku_stream_copy(dst[k], from, chunk->req.piece[i].bytes);
        ku_move_count_bytes(w, chunk->seg[i].count, n);
    }
    ku_stream_fence();
}

static int finish_chunks(struct ku_work *w, struct far_lane *lane, bool is_send)
{
    while (lane->n_done < lane->n_posted) {
        const struct far_chunk *chunk = &lane->chunk[lane->n_done % FAR_DEPTH];
        const int status = ku_far_request_state(w, &chunk->req, lane->peer.member);
        if (status)
            return status < 0 ? status : 0;
        if (!is_send && w->path == KU_PATH_FAR_ALL_REDUCE)
            store_copies(w, chunk);
        if (!is_send && (w->path == KU_PATH_FAR_HOST_SCATTER || w->path == KU_PATH_FAR_ALL_GATHER ||
                         w->path == KU_PATH_FAR_HOST_GATHER))
            ku_move_count_bytes(w, chunk->count, 1);
        lane->n_done++;
        w->comm->job->comm->has_moved = 1;
    }
    return 0;
}

static int move_lane(struct ku_work *w, struct far_lane *lane, bool is_send)
{
    KU_TRY(finish_chunks(w, lane, is_send));
    return post_more(w, lane, is_send);
}

/*
 * Set up a stage. Of a reduce only what goes to the root's host is moved: a host receives if it
 * agrees with that host in the digits from this stage's on, because those below are of later
 * stages.
 */
static int open_stage(struct ku_work *w, int stage)
{
    struct ku_far *far = w->comm->priv->far;
    KU_TRY(ku_far_open_stage(w, KU_HALF_GATHER, stage));
    if (w->coll.kind != KU_COLL_REDUCE)
        return 0;
    const int stride = far->exchange.stage[stage].stride;
    int root, local;
    ku_topology_find(&far->topology, w->coll.root, &root, &local);
    for (int i = 0; i < far->n_recvs; i++)
        far->recv[i].is_at_end |= far->topology.host / stride != root / stride;
    for (int i = 0; i < far->n_sends; i++)
        far->send[i].is_at_end |= far->send[i].peer.host / stride != root / stride;
    return 0;
}

int ku_far_gather(struct ku_work *w)
{
    struct ku_far *far = w->comm->priv->far;
    while (!ku_far_is_mutual(w)) {
        if (!far->is_open)
            KU_TRY(open_stage(w, far->exchange.n_stages - 1));
        for (int i = 0; i < far->n_recvs; i++)
            KU_TRY(move_lane(w, &far->recv[i], false));
        for (int i = 0; i < far->n_sends; i++)
            KU_TRY(move_lane(w, &far->send[i], true));
        if (!ku_far_stage_is_done(far))
            return 1;
        if (far->stage == 0)
            break;
        KU_TRY(open_stage(w, far->stage - 1));
    }
    if (w->path == KU_PATH_FAR_LONE_SUM)
        ku_far_lone_end(w);
    far->is_open = false;
    return 0;
}
