/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_FAR_LANE_H
#define KU_COMM_FAR_LANE_H

#include "comm/exchange.h"
#include "comm/far.h"
#include "comm/private.h"
#include "tensor/dtype.h"

/*
 * A lane is one direction of one peer in a stage of the exchange. Its data is a sequence: the
 * ranges of the peer's destinations, one after the other, of each destination part after part. It
 * travels in chunks, of which two are under way:
 *
 *     sequence    | d 1: part 0 | part 1 | d 3: part 0 | part 1 |
 *     chunks      |      0      |      1      |      2      | 3 |
 *     segments    |      0      |   0    | 1  |      0      |…
 *
 * Both sides cut alike, because the cut depends on the plan and the call alone.
 */
enum {
    FAR_SEGMENTS = KU_NET_PIECES, /* so that a chunk can be sent from where it lies */
    FAR_DEPTH = 2,                /* chunks under way: one travels, one is summed */
    /* Chunk of a gather where the length of a message matters: it needs no memory of its own */
    FAR_WHOLE_BYTES = 32 << 20
};
struct far_segment {
    int dest, part;
    int64_t begin, count; /* elements of the part */
    int64_t range_begin;  /* of the destination in the part */
};
struct far_chunk {
    struct far_segment seg[FAR_SEGMENTS];
    int n;
    int64_t count;
    struct ku_net_req req;
};
struct far_cursor {
    int i, part; /* destination, part of it */
    int64_t at;
};
struct far_lane {
    struct ku_exchange_peer peer;
    struct ku_net_link *link;
    struct far_cursor at;
    bool is_at_end;
    uint32_t n_posted, n_done; /* chunk c is at [c % FAR_DEPTH] */
    struct far_chunk chunk[FAR_DEPTH];
    unsigned char *staging[FAR_DEPTH];
};

struct far_request {
    struct ku_net_req r;
    int member;
};
/* The request of a send or receive. A job that fails leaves some pending. */
struct far_message {
    struct ku_net_req r;
    struct far_message *next; /* of all messages of the comm */
};
struct far_link {
    int member;
    enum ku_net_way way; /* both: of collectives; one: of sends, or of receives */
    int64_t n_messages;  /* one way: that were sent, or received */
    struct ku_net_link *link;
};

struct ku_far {
    struct ku_comm *comm;
    uint64_t stream;
    struct ku_topology topology;
    struct ku_exchange exchange;
    struct ku_small small;
    struct far_link *link; /* sorted */
    int n_links, link_cap;
    struct far_message *messages;
    struct ku_net_req *free_req; /* of messages, linked by next */
    /* The exchange of the work that runs */
    bool is_open; /* the stage is set up */
    enum ku_half half;
    int stage;
    bool is_mutual; /* an all-reduce in the reduce half alone (ku_topology_is_mutual) */
    struct far_lane *send, *recv; /* [exchange.max_peers] each */
    int n_sends, n_recvs;
    struct far_cursor keep_at; /* of the next chunk to combine */
    uint32_t n_combined;
    struct ku_exchange_set keep;
    struct ku_exchange_source *source; /* [max_sources] */
    int32_t *first;                    /* [max_sources + 1]: leaves of the sources */
    bool *in_wire;
    const void **src;
    int n_sources;
    struct ku_tree_node *node; /* [max_nodes]: what this host sends */
    int n_nodes;
    size_t chunk_bytes, gather_bytes;
    unsigned char *staging, *kept; /* kept: a chunk of this member's partial sums */
    /* Requests of broadcasts, small exchanges and pairs */
    struct far_request *req;
    int n_reqs, req_cap;
    unsigned char *copy; /* of what an all_to_all in place sends, or of a sum that is not aligned */
    size_t copy_bytes;
    unsigned char *small_room; /* nodes of small reductions */
    int step;                  /* of a broadcast, pairs, small exchange */
    struct ku_tree_node *small_node;
    struct ku_exchange_source *small_source;
};

/* The stream to a member, made at its first use; both ways: of collectives, one way: of messages */
KU_STATUS ku_far_link_of(struct ku_far *far, int member, enum ku_net_way way,
                         struct ku_net_link **link);
/* A header of this work; `what` differs between steps of it */
struct ku_net_head ku_far_head(const struct ku_work *w, uint32_t stage, uint32_t chunk);
/* 0: done, 1: not yet, < 0: mismatch, raised, or the link's status */
KU_STATUS ku_far_request_state(struct ku_work *w, const struct ku_net_req *req, int member);
/* n requests of the work that runs, zeroed. KUMI_ENOMEM. */
KU_STATUS ku_far_requests(struct ku_far *far, int n);

/* Room for `bytes` in far->copy; its contents are then undefined. Errors: KUMI_ENOMEM. */
KU_STATUS ku_far_copy_room(struct ku_far *far, size_t bytes);

/* Where the elements of the running work lie (view.c) */
int ku_far_n_parts(const struct ku_work *w);
/* Elements of destination d in a part */
void ku_far_range(const struct ku_work *w, int part, int d, int64_t *begin, int64_t *end);
/* KU_PATH_FAR_LONE_SUM: the input to where it is summed, before; the sums to the output, after */
KU_STATUS ku_far_lone_begin(struct ku_work *w);
void ku_far_lone_end(struct ku_work *w);
/* Near member k's copy of element `at` of a part, before the reduction */
unsigned char *ku_far_leaf(const struct ku_work *w, int k, int part, int64_t at);
/*
 * Where this member keeps the partial sums of a destination, in the wire dtype, between stages:
 * from the begin of its range on. Results that are wider overwrite them in ascending order, so the
 * last stage has those of this member's own range at the end of it, where ku_far_move_partials
 * moves them:
 *
 *     before   p0 p1 p2 p3 .. .. .. ..       p: bf16
 *     after    .. .. .. .. p0 p1 p2 p3
 *     result   r0    r1    p0 p1 p2 p3       r: f32, two of them stored
 */
unsigned char *ku_far_partial(const struct ku_work *w, const struct far_segment *s);
void ku_far_move_partials(struct ku_work *w);
/* Where a sum goes: at most near.n + 1 places. Returns their number. */
int ku_far_sum_places(const struct ku_work *w, const struct far_segment *s, void **dst,
                      const void **addend);
/* Where the elements of a destination lie, or arrive, in the gather half */
unsigned char *ku_far_gathered(const struct ku_work *w, const struct far_segment *s);

/* The next chunk of a sequence; false at its end. */
bool ku_far_next_chunk(const struct ku_work *w, const struct ku_exchange_set *set,
                       struct far_cursor *at, int64_t max, struct far_chunk *chunk);
/* Whether a work is an all-reduce that needs no gather half */
bool ku_far_is_mutual(const struct ku_work *w);
/* Set up the lanes of a stage. */
KU_STATUS ku_far_open_stage(struct ku_work *w, enum ku_half half, int stage);
/* Whether nothing of the stage is left to send or receive */
bool ku_far_stage_is_done(const struct ku_far *far);
/* Count what a chunk sends to another host. */
static inline void ku_far_count_bytes(const struct ku_work *w, const struct ku_net_req *req)
{
    for (int i = 0; i < req->n_pieces && ku_dtype_is_float(w->coll.dtype); i++)
        w->comm->job->comm->far_bytes += req->piece[i].bytes;
}
static inline size_t ku_far_each(const struct ku_work *w)
{
    return kumi_dtype_bytes(w->coll.dtype);
}
static inline size_t ku_far_wire_each(const struct ku_work *w)
{
    return kumi_dtype_bytes(w->coll.wire);
}

#endif
