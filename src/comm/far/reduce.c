/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reduce half of an exchange. In a stage, chunk by chunk:
 *
 *     send   sum the near members' copies (in later stages: take this member's partial sums) of the
 *            peer's destinations into tree nodes, and post them
 *     recv   two buffers are posted for each peer
 *     sum    when chunk c of every peer is there: combine it with this member's own sources, in the
 *            order of the tree, into partial sums or, in the last stage, the result
 *
 * A mutual exchange (ku_topology_is_mutual) sends and sums the same elements. The sum takes this
 * host's node from the chunk that is sent, and may overwrite what is sent from where it lies. So
 * chunk c is summed after it was filled, in place after it was sent, and chunk c + FAR_DEPTH is
 * filled after that.
 */
#include "comm/far/lane.h"

#include "base/err.h"
#include "comm/sum.h"

#include <string.h>

/* Near member of a leaf (a member of the comm) on this host; `from` is at or before it. */
static int near_of_leaf(const struct ku_comm *c, int leaf, int from)
{
    int k = from;
    while (ku_comm_member(c, k) != leaf)
        k++;
    return k;
}

static void sum_into(const struct ku_work *w, const struct ku_sum *s)
{
    ku_sum(w->comm->job->comm->kernels, s);
}

/* Whether a chunk goes out from where it lies: there is nothing to sum or to convert. */
static bool is_in_place(const struct ku_work *w)
{
    const struct ku_far *far = w->comm->priv->far;
    return far->stage > 0 || (w->comm->near.n == 1 && w->coll.wire == w->coll.dtype);
}

/* Sum this host's copies of a segment into its nodes, at `offset` in a chunk of `count`. */
static void sum_nodes(const struct ku_work *w, const struct far_segment *s, unsigned char *staging,
                      int64_t count, int64_t offset)
{
    const struct ku_comm *c = w->comm;
    const struct ku_far *far = c->priv->far;
    const void *src[KU_MAX_LOCAL];
    int k = 0;
    for (int j = 0; j < far->n_nodes; j++) {
        const int n = far->node[j].count;
        void *dst = staging + (size_t)(j * count + offset) * ku_far_wire_each(w);
        for (int i = 0; i < n; i++) {
            k = near_of_leaf(c, far->node[j].first + i, k);
            src[i] = ku_far_leaf(w, k, s->part, s->begin);
        }
        const struct ku_sum sum = {.n_src = n,
                                   .n_dst = 1,
                                   .src = src,
                                   .dst = &dst,
                                   .count = s->count,
                                   .dtype = w->coll.dtype,
                                   .wire = w->coll.wire,
                                   .reduce = w->coll.reduce,
                                   .is_node = true};
        sum_into(w, &sum);
    }
}

static void fill_chunk(const struct ku_work *w, struct far_chunk *chunk, unsigned char *staging)
{
    const struct ku_far *far = w->comm->priv->far;
    const size_t each = ku_far_wire_each(w);
    if (is_in_place(w)) {
        chunk->req.n_pieces = chunk->n;
        for (int i = 0; i < chunk->n; i++) {
            const struct far_segment *s = &chunk->seg[i];
            chunk->req.piece[i].at = far->stage > 0
                                         ? ku_far_partial(w, s)
                                         : ku_far_leaf(w, w->comm->near.me, s->part, s->begin);
            chunk->req.piece[i].bytes = (size_t)s->count * each;
        }
        return;
    }
    int64_t offset = 0;
    for (int i = 0; i < chunk->n; i++) {
        sum_nodes(w, &chunk->seg[i], staging, chunk->count, offset);
        offset += chunk->seg[i].count;
    }
    chunk->req.n_pieces = 1;
    chunk->req.piece[0].at = staging;
    chunk->req.piece[0].bytes = (size_t)(chunk->count * far->n_nodes) * each;
}

/* Post what a lane may send. Returns 1 if the budget is used up, or a status. */
static int send_more(struct ku_work *w, struct far_lane *lane)
{
    struct ku_far *far = w->comm->priv->far;
    struct ku_comm_rank *p = w->comm->job->comm;
    const int64_t max = ku_exchange_chunk_count(&far->exchange, KU_HALF_REDUCE, ku_far_wire_each(w),
                                                far->chunk_bytes);
    while (lane->n_done < lane->n_posted && lane->chunk[lane->n_done % FAR_DEPTH].req.is_done)
        KU_TRY(lane->chunk[lane->n_done++ % FAR_DEPTH].req.status);
    while (!lane->is_at_end && lane->n_posted - lane->n_done < FAR_DEPTH &&
           (!far->is_mutual || lane->n_posted - far->n_combined < FAR_DEPTH)) {
        struct far_chunk *chunk = &lane->chunk[lane->n_posted % FAR_DEPTH];
        if (p->budget_bytes == 0)
            return 1;
        if (!ku_far_next_chunk(w, &lane->peer.set, &lane->at, max, chunk)) {
            lane->is_at_end = true;
            break;
        }
        chunk->req =
            (struct ku_net_req){.head = ku_far_head(w, (uint32_t)far->stage, lane->n_posted)};
        fill_chunk(w, chunk, lane->staging[lane->n_posted % FAR_DEPTH]);
        const int64_t bytes = chunk->count * (int64_t)ku_far_each(w);
        if (p->budget_bytes > 0)
            p->budget_bytes = p->budget_bytes > bytes ? p->budget_bytes - bytes : 0;
        ku_far_count_bytes(w, &chunk->req);
        KU_TRY(p->net->ops->send(lane->link, &chunk->req));
        lane->n_posted++;
        p->has_moved = 1;
    }
    return 0;
}

/* Post buffers for a lane's next chunks. */
static int post_receives(struct ku_work *w, struct far_lane *lane)
{
    struct ku_far *far = w->comm->priv->far;
    const int64_t max = ku_exchange_chunk_count(&far->exchange, KU_HALF_REDUCE, ku_far_wire_each(w),
                                                far->chunk_bytes);
    while (!lane->is_at_end && lane->n_posted - lane->n_done < FAR_DEPTH) {
        struct far_chunk *chunk = &lane->chunk[lane->n_posted % FAR_DEPTH];
        if (!ku_far_next_chunk(w, &far->keep, &lane->at, max, chunk)) {
            lane->is_at_end = true;
            break;
        }
        chunk->req = (struct ku_net_req){
            .head = ku_far_head(w, (uint32_t)far->stage, lane->n_posted), .n_pieces = 1};
        chunk->req.piece[0].at = lane->staging[lane->n_posted % FAR_DEPTH];
        chunk->req.piece[0].bytes =
            (size_t)(chunk->count * lane->peer.n_nodes) * ku_far_wire_each(w);
        KU_TRY(w->comm->job->comm->net->ops->recv(lane->link, &chunk->req));
        lane->n_posted++;
    }
    return 0;
}

/* Address of a source's elements of a segment, which is at `offset` in the current chunk */
static const void *source_at(const struct ku_work *w, const struct ku_exchange_source *source,
                             const struct far_segment *s, int64_t offset)
{
    const struct ku_far *far = w->comm->priv->far;
    if (far->is_mutual && source->from == KU_FROM_SELF && !is_in_place(w))
        return far->send[0].staging[far->n_combined % FAR_DEPTH] +
               (size_t)offset * ku_far_wire_each(w);
    if (source->from == KU_FROM_SELF)
        return far->stage > 0 ? ku_far_partial(w, s)
                              : ku_far_leaf(w, source->index, s->part, s->begin);
    const struct far_lane *lane = &far->recv[source->from];
    const struct far_chunk *chunk = &lane->chunk[far->n_combined % FAR_DEPTH];
    return lane->staging[far->n_combined % FAR_DEPTH] +
           (size_t)(source->index * chunk->count + offset) * ku_far_wire_each(w);
}

/*
 * Show the blocks that a segment at `sum` completes. Segments end anywhere, so the first block may
 * have begun in the one before, which lies in front of it.
 */
static void see_blocks(const struct ku_work *w, const struct far_segment *s, unsigned char *sum)
{
    const int64_t block = w->coll.part[s->part].block_count;
    int64_t begin, end;
    ku_far_range(w, s->part, s->dest, &begin, &end);
    const int64_t before = (s->begin - begin) % block;
    int64_t count = before + s->count;
    if (s->begin + s->count < end)
        count -= count % block;
    if (count > 0)
        w->coll.see(w->coll.see_ctx, s->part, sum - (size_t)before * ku_far_each(w), count);
}

static void combine_segment(const struct ku_work *w, const struct far_segment *s, int64_t offset)
{
    const struct ku_far *far = w->comm->priv->far;
    const bool is_last = far->stage == far->exchange.n_stages - 1;
    void *dst[KU_MAX_LOCAL + 1];
    const void *addend = NULL;
    int n_dst = 1;
    for (int i = 0; i < far->n_sources; i++) {
        far->src[i] = source_at(w, &far->source[i], s, offset);
        if (is_last && far->stage > 0 && far->source[i].from == KU_FROM_SELF &&
            w->coll.wire != w->coll.dtype) /* in place the wider result would overwrite it */
            far->src[i] = memcpy(far->kept, far->src[i], (size_t)s->count * ku_far_wire_each(w));
    }
    if (is_last)
        n_dst = ku_far_sum_places(w, s, dst, &addend);
    else
        dst[0] = ku_far_partial(w, s);
    const struct ku_sum sum = {.n_src = far->n_sources,
                               .n_dst = n_dst,
                               .src = far->src,
                               .dst = dst,
                               .count = s->count,
                               .dtype = w->coll.dtype,
                               .wire = w->coll.wire,
                               .reduce = w->coll.reduce,
                               .addend = addend,
                               .divide = is_last && w->coll.reduce == KUMI_AVG ? w->comm->n : 0,
                               .first = far->first,
                               .in_wire = far->in_wire,
                               .is_node = !is_last};
    sum_into(w, &sum);
    if (is_last && w->coll.n_parts)
        ku_move_count_bytes(w, s->count, n_dst);
    if (is_last && w->coll.see && w->coll.kind == KU_COLL_REDUCE_SCATTER)
        see_blocks(w, s, dst[0]);
}

/* Of a mutual exchange: whether chunk n_combined is in its buffer, or sent from where it lies. */
static bool has_sent(const struct ku_work *w)
{
    const struct ku_far *far = w->comm->priv->far;
    const struct far_lane *lane = &far->send[0];
    return lane->n_posted > far->n_combined &&
           (!is_in_place(w) || lane->chunk[far->n_combined % FAR_DEPTH].req.is_done);
}

/* Combine the next chunk if it is there from all peers. Returns 1: not yet. */
static int combine_chunk(struct ku_work *w)
{
    struct ku_far *far = w->comm->priv->far;
    const uint32_t at = far->n_combined;
    int64_t offset = 0;
    if (far->n_recvs == 0 || (far->is_mutual && !has_sent(w)))
        return 1;
    for (int i = 0; i < far->n_recvs; i++) {
        const struct far_lane *lane = &far->recv[i];
        if (lane->n_posted <= at)
            return 1;
        const int status =
            ku_far_request_state(w, &lane->chunk[at % FAR_DEPTH].req, lane->peer.member);
        if (status)
            return status;
    }
    const struct far_chunk *chunk = &far->recv[0].chunk[at % FAR_DEPTH];
    for (int i = 0; i < chunk->n; i++) {
        combine_segment(w, &chunk->seg[i], offset);
        offset += chunk->seg[i].count;
    }
    far->n_combined++;
    for (int i = 0; i < far->n_recvs; i++)
        far->recv[i].n_done++;
    w->comm->job->comm->has_moved = 1;
    return 0;
}

int ku_far_reduce(struct ku_work *w)
{
    struct ku_far *far = w->comm->priv->far;
    for (;;) {
        if (!far->is_open) {
            if (w->path == KU_PATH_FAR_LONE_SUM)
                KU_TRY(ku_far_lone_begin(w));
            KU_TRY(ku_far_open_stage(w, KU_HALF_REDUCE, 0));
        }
        int is_over_budget = 0, status;
        for (int i = 0; i < far->n_recvs; i++)
            KU_TRY(post_receives(w, &far->recv[i]));
        for (int i = 0; i < far->n_sends && !is_over_budget; i++) {
            is_over_budget = send_more(w, &far->send[i]);
            if (is_over_budget < 0)
                return is_over_budget;
        }
        while ((status = combine_chunk(w)) == 0)
            for (int i = 0; i < far->n_recvs; i++)
                KU_TRY(post_receives(w, &far->recv[i]));
        if (status < 0)
            return status;
        if (is_over_budget || !ku_far_stage_is_done(far))
            return 1;
        if (far->stage == far->exchange.n_stages - 1)
            break;
        KU_TRY(ku_far_open_stage(w, KU_HALF_REDUCE, far->stage + 1));
    }
    far->is_open = false;
    return 0;
}
