/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/*
 * The exchange between hosts, played in memory: every send has its receive, every element comes to
 * its destination once and back to every host once, and the sums are those of the flat tree. Over
 * all divisions of few ranks into hosts, and over even hosts.
 */
#include "base/fault.h"
#include "comm/exchange.h"
#include "comm/far_cost.h"
#include "comm/sum.h"
#include "sample.h"
#include "tensor/blocks.h"
#include "unit/hosts.h"
#include "unit/reductions.h"

#include <stdio.h>

enum {
    DATA_MEMBERS = 96, /* of a communicator whose data is played */
    COUNT = 260,       /* elements, at most */
    CAPACITY = 2       /* chunks that a peer has room for */
};

struct world {
    struct hosts hosts;
    struct ku_exchange x[MAX_MEMBERS];
    int n, n_hosts, n_stages;
};

static void open_plans(struct world *w, int max_radix)
{
    const struct ku_exchange_tuning tuning = {.max_radix = max_radix};
    w->n = w->hosts.n;
    w->n_hosts = w->hosts.all.n_hosts;
    for (int m = 0; m < w->n; m++)
        assert_int_equal(ku_exchange_plan(&w->hosts.as[m], max_radix ? &tuning : NULL, &w->x[m]),
                         0);
    w->n_stages = w->x[0].n_stages;
}

static void close_plans(struct world *w)
{
    for (int m = 0; m < w->n; m++)
        ku_exchange_fini(&w->x[m]);
    hosts_close(&w->hosts);
}

/* ---- Peers and destinations ---- */

static int is_same_set(const struct ku_exchange_set *a, const struct ku_exchange_set *b)
{
    return a->n == b->n && a->host == b->host && a->local == b->local && a->stage == b->stage;
}

/* sent[a][b] is the number of a's send to b plus one, in the stage of this stamp. */
static uint32_t stamp, sent_stamp[MAX_MEMBERS][MAX_MEMBERS];
static int sent_index[MAX_MEMBERS][MAX_MEMBERS];

static void check_peer(const struct world *w, int me, const struct ku_exchange_peer *p)
{
    int host, local;
    ku_topology_find(&w->hosts.all, p->member, &host, &local);
    assert_int_equal(host, p->host);
    assert_int_equal(local, p->local);
    assert_int_not_equal(host, w->hosts.as[me].host);
    assert_in_range(p->set.n, 1, w->n_hosts);
    assert_in_range(p->n_nodes, 1, w->x[me].max_nodes);
}

/* Each send of a stage has one receive, of the same destinations and nodes. */
static void check_pairs(const struct world *w, enum ku_half half, int stage)
{
    struct ku_exchange_peer p, q;
    int n_sent = 0, n_received = 0;
    stamp++;
    for (int a = 0; a < w->n; a++) {
        for (int i = 0; i < ku_exchange_n_sends(&w->x[a], half, stage); i++, n_sent++) {
            ku_exchange_send(&w->x[a], half, stage, i, &p);
            check_peer(w, a, &p);
            assert_int_not_equal(sent_stamp[a][p.member], stamp);
            sent_stamp[a][p.member] = stamp;
            sent_index[a][p.member] = i;
        }
    }
    for (int b = 0; b < w->n; b++) {
        for (int i = 0; i < ku_exchange_n_recvs(&w->x[b], half, stage); i++, n_received++) {
            ku_exchange_recv(&w->x[b], half, stage, i, &q);
            check_peer(w, b, &q);
            assert_int_equal(sent_stamp[q.member][b], stamp);
            ku_exchange_send(&w->x[q.member], half, stage, sent_index[q.member][b], &p);
            assert_true(is_same_set(&p.set, &q.set));
            assert_int_equal(p.n_nodes, q.n_nodes);
        }
    }
    assert_int_equal(n_sent, n_received);
}

/* Sources are nodes of one peer each, and lie in the order of ku_sum without gaps. */
static void check_sources(const struct world *w, int me, int stage)
{
    struct ku_exchange_source source[MAX_MEMBERS];
    const struct ku_exchange *x = &w->x[me];
    struct ku_tree_node node[MAX_MEMBERS];
    struct ku_exchange_peer p;
    int n = ku_exchange_sources(x, stage, source, MAX_MEMBERS);
    int is_last = stage == x->n_stages - 1;
    assert_in_range(n, 2, x->max_sources);
    assert_int_equal(ku_exchange_nodes(x, stage + 1, x->topology->host, node, MAX_MEMBERS), 1);
    assert_int_equal(node[0].first, source[0].node.first);
    if (is_last)
        assert_int_equal(node[0].count, w->n);
    for (int i = 0, at = node[0].first; i < n; i++) {
        uint32_t from = (uint32_t)(at - node[0].first), count = (uint32_t)source[i].node.count;
        assert_int_equal(source[i].node.first, at);
        assert_true((count & (count - 1)) == 0 ? from % count == 0 : i == n - 1);
        at += source[i].node.count;
        int host = x->topology->host;
        if (source[i].from == KU_FROM_SELF && stage == 0) {
            assert_int_equal(source[i].node.first,
                             ku_topology_member(x->topology, host, source[i].index));
            continue;
        }
        if (source[i].from != KU_FROM_SELF) {
            ku_exchange_recv(x, KU_HALF_REDUCE, stage, source[i].from, &p);
            host = p.host;
            assert_true(source[i].index < p.n_nodes);
        }
        struct ku_tree_node part[MAX_MEMBERS];
        assert_true(source[i].index < ku_exchange_nodes(x, stage, host, part, MAX_MEMBERS));
        assert_memory_equal(&part[source[i].index], &source[i].node, sizeof part[0]);
    }
    struct ku_tree_node end = source[n - 1].node;
    assert_int_equal(end.first + end.count, node[0].first + node[0].count);
}

/*
 * What a member holds divides into what it sends and what it keeps, stage by stage. In the first
 * stage the members of a host hold every destination once, and the helper holds it.
 */
enum { NOT_YET = -1, GONE = -2 };
static void check_destinations(const struct world *w, int me, int stage, int *holder)
{
    const struct ku_exchange *x = &w->x[me];
    struct ku_exchange_peer p;
    struct ku_exchange_set keep;
    ku_exchange_keep(x, stage, &keep);
    for (int i = -1; i < ku_exchange_n_sends(x, KU_HALF_REDUCE, stage); i++) {
        if (i >= 0)
            ku_exchange_send(x, KU_HALF_REDUCE, stage, i, &p);
        const struct ku_exchange_set *set = i < 0 ? &keep : &p.set;
        for (int k = 0; k < set->n; k++) {
            int d = ku_exchange_dest(x, set, k), host, local;
            ku_topology_find(x->topology, d, &host, &local);
            assert_int_equal(ku_topology_helper(x->topology, x->topology->host, host, local),
                             x->topology->local);
            assert_int_equal(holder[d], stage ? me : NOT_YET);
            holder[d] = i < 0 ? me : GONE;
        }
    }
}

static void check_plan(const struct world *w)
{
    for (int h = 0; h < w->n_hosts; h++) {
        int holder[MAX_MEMBERS];
        for (int d = 0; d < w->n; d++)
            holder[d] = NOT_YET;
        for (int l = 0; l < ku_topology_local_n(&w->hosts.all, h); l++)
            check_destinations(w, ku_topology_member(&w->hosts.all, h, l), 0, holder);
        for (int d = 0; d < w->n; d++)
            assert_int_not_equal(holder[d], NOT_YET);
        for (int l = 0; l < ku_topology_local_n(&w->hosts.all, h); l++)
            for (int s = 1; s < w->n_stages; s++)
                check_destinations(w, ku_topology_member(&w->hosts.all, h, l), s, holder);
    }
    for (int s = 0; s < w->n_stages; s++) {
        check_pairs(w, KU_HALF_REDUCE, s);
        check_pairs(w, KU_HALF_GATHER, s);
        for (int m = 0; m < w->n; m++) {
            struct ku_exchange_set set;
            check_sources(w, m, s);
            ku_exchange_keep(&w->x[m], s, &set);
            if (s == w->n_stages - 1) {
                assert_int_equal(set.n, 1);
                assert_int_equal(ku_exchange_dest(&w->x[m], &set, 0), m);
            }
        }
    }
}

/* The max number of peers is that of the sends and receives. */
static void check_max_peers(const struct world *w)
{
    for (int m = 0; m < w->n; m++) {
        int max_peers = 0, widest = 0;
        for (int s = 0; s < w->n_stages; s++) {
            unsigned char is_peer[MAX_MEMBERS] = {0};
            struct ku_exchange_peer p;
            int n_sends = ku_exchange_n_sends(&w->x[m], KU_HALF_REDUCE, s), n = 0;
            int n_recvs = ku_exchange_n_recvs(&w->x[m], KU_HALF_REDUCE, s);
            for (int i = 0; i < n_sends + n_recvs; i++) {
                if (i < n_sends)
                    ku_exchange_send(&w->x[m], KU_HALF_REDUCE, s, i, &p);
                else
                    ku_exchange_recv(&w->x[m], KU_HALF_REDUCE, s, i - n_sends, &p);
                n += !is_peer[p.member];
                is_peer[p.member] = 1;
            }
            max_peers = n > max_peers ? n : max_peers;
            widest = n_sends + n_recvs > widest ? n_sends + n_recvs : widest;
        }
        assert_int_equal(w->x[m].max_peers, max_peers);
        assert_int_equal(ku_exchange_staging_bytes(&w->x[m], 1000), 2000 * widest);
    }
}

/* ---- Data ---- */

static const struct ku_sum_kernels *kernels;
static _Alignas(64) unsigned char copies[KUMI_N_DTYPES][DATA_MEMBERS][COUNT * 8];
static _Alignas(64) unsigned char flat[COUNT * 8], out[COUNT * 8];
static unsigned char (*copy)[COUNT * 8]; /* those of the played dtype */
/* Nodes that a member keeps between two stages, in the wire dtype; then what it gathered */
static _Alignas(64) unsigned char held[2][DATA_MEMBERS][COUNT * 8];
static unsigned char n_times[DATA_MEMBERS][COUNT];
static _Alignas(64) unsigned char post[8 << 20]; /* messages of a stage */
static size_t post_bytes;
static unsigned char *message[DATA_MEMBERS][DATA_MEMBERS];

/* The range of destination d in the vector; may be empty. */
typedef void range_fn(const void *ctx, int d, int64_t *begin, int64_t *end);

struct play {
    const struct world *w;
    struct ku_sum kind; /* dtype, wire, reduce, divide and count */
    range_fn *range;
    const void *ctx; /* of member 0's plan: the same for all */
    int64_t chunk;   /* elements */
    int stage;
};

/* Consecutive blocks in member order, as of a reduce-scatter */
struct ranges {
    int64_t count, block_count, first;
    int n;
};
static void block_range(const void *ctx, int d, int64_t *begin, int64_t *end)
{
    const struct ranges *r = ctx;
    ku_blocks_range(r->count, r->block_count, r->first, r->n, d, begin, end);
}

static void slice_range(const void *ctx, int d, int64_t *begin, int64_t *end)
{
    ku_exchange_slice(ctx, d, begin, end);
}

/* Elements of a set */
static int64_t count_of(const struct ku_exchange *x, const struct ku_exchange_set *set,
                        range_fn *range, const void *ctx)
{
    int64_t count = 0, begin, end;
    for (int i = 0; i < set->n; i++, count += end - begin)
        range(ctx, ku_exchange_dest(x, set, i), &begin, &end);
    return count;
}

/* Elements, counted once per node, that a member sends in a half */
static int64_t sent_of(const struct ku_exchange *x, enum ku_half half,
                       const struct ku_exchange_slices *slices)
{
    struct ku_exchange_peer peer;
    int64_t count = 0;
    for (int s = 0; s < x->n_stages; s++)
        for (int i = 0; i < ku_exchange_n_sends(x, half, s); i++) {
            ku_exchange_send(x, half, s, i, &peer);
            count += peer.n_nodes * count_of(x, &peer.set, slice_range, slices);
        }
    return count;
}

/*
 * The data of a set is one sequence of elements, destination after destination. Returns the
 * elements of its next contiguous piece, at most `max`; 0 at the end. Ranges that touch are joined.
 */
struct cursor {
    int i;      /* destination */
    int64_t at; /* element in its range */
};
static int64_t next_range(const struct ku_exchange *x, const struct ku_exchange_set *set,
                          range_fn *range, const void *ctx, int64_t max, struct cursor *at,
                          int64_t *begin)
{
    int64_t count = 0, first, end;
    for (; count < max && at->i < set->n; at->i++, at->at = 0) {
        range(ctx, ku_exchange_dest(x, set, at->i), &first, &end);
        first += at->at;
        if (first == end)
            continue;
        if (count && first != *begin + count)
            break;
        if (!count)
            *begin = first;
        const int64_t more = end - first < max - count ? end - first : max - count;
        count += more;
        at->at += more;
        if (more < end - first)
            break;
    }
    return count;
}

/* One piece of a set: `count` elements from `begin`, number `at` of a chunk of `size` elements */
struct piece {
    int64_t begin, count, at, size;
    int64_t before; /* elements of the chunks before */
};

/* The next piece; *c holds the place in the set. Returns 0 at the end. */
struct walk {
    struct cursor at;
    int64_t left, chunk_at, chunk_size, before;
};
static int next_piece(const struct play *p, const struct ku_exchange *x,
                      const struct ku_exchange_set *set, struct walk *walk, struct piece *piece)
{
    if (walk->chunk_at == walk->chunk_size) {
        if (!walk->chunk_size)
            walk->left = count_of(x, set, p->range, p->ctx);
        walk->before += walk->chunk_size;
        walk->chunk_size = walk->left < p->chunk ? walk->left : p->chunk;
        walk->left -= walk->chunk_size;
        walk->chunk_at = 0;
    }
    int64_t max = walk->chunk_size - walk->chunk_at;
    piece->count = next_range(x, set, p->range, p->ctx, max, &walk->at, &piece->begin);
    piece->at = walk->chunk_at;
    piece->size = walk->chunk_size;
    piece->before = walk->before;
    walk->chunk_at += piece->count;
    assert_true(piece->count <= max);
    assert_int_equal(!piece->count, !max);
    return piece->count > 0;
}

static size_t wire_bytes(const struct play *p)
{
    return kumi_dtype_bytes(p->kind.wire);
}

/* Where element 0 of a piece lies in node `node` of a message */
static unsigned char *in_message(const struct play *p, unsigned char *data, int n_nodes, int node,
                                 const struct piece *piece, size_t each)
{
    (void)p;
    return data + (size_t)(piece->before * n_nodes + node * piece->size + piece->at) * each;
}

static void post_message(int from, int to, size_t bytes)
{
    assert_null(message[from][to]);
    message[from][to] = post + post_bytes;
    post_bytes += (bytes + 63) / 64 * 64;
    assert_true(post_bytes <= sizeof post);
}

/* Sum the nodes that member `me` sends to a peer, or send those that it kept. */
static void send_nodes(const struct play *p, int me, const struct ku_exchange_peer *to)
{
    const struct ku_exchange *x = &p->w->x[me];
    struct ku_tree_node node[DATA_MEMBERS];
    struct walk walk = {0};
    struct piece piece;
    size_t each = kumi_dtype_bytes(p->kind.dtype), wire = wire_bytes(p);
    int n_nodes = ku_exchange_nodes(x, p->stage, x->topology->host, node, DATA_MEMBERS);
    assert_int_equal(n_nodes, to->n_nodes);
    post_message(me, to->member,
                 (size_t)count_of(x, &to->set, p->range, p->ctx) * (size_t)n_nodes * wire);
    while (next_piece(p, x, &to->set, &walk, &piece)) {
        for (int k = 0; k < n_nodes; k++) {
            const void *src[DATA_MEMBERS];
            void *dst = in_message(p, message[me][to->member], n_nodes, k, &piece, wire);
            if (p->stage) {
                memcpy(dst, held[0][me] + (size_t)piece.begin * wire, (size_t)piece.count * wire);
                continue;
            }
            struct ku_sum s = p->kind;
            for (int i = 0; i < node[k].count; i++)
                src[i] = copy[node[k].first + i] + (size_t)piece.begin * each;
            s.n_src = node[k].count;
            s.src = src;
            s.n_dst = 1;
            s.dst = &dst;
            s.count = piece.count;
            s.divide = 0;
            s.is_node = 1;
            ku_sum(kernels, &s);
        }
    }
}

/* Combine what came for the destinations that member `me` keeps. */
static void receive_nodes(const struct play *p, int me)
{
    const struct ku_exchange *x = &p->w->x[me];
    struct ku_exchange_source source[DATA_MEMBERS];
    struct ku_exchange_peer from[DATA_MEMBERS];
    struct ku_exchange_set keep;
    const void *src[DATA_MEMBERS];
    int32_t first[DATA_MEMBERS + 1];
    bool in_wire[DATA_MEMBERS];
    struct walk walk = {0};
    struct piece piece;
    size_t each = kumi_dtype_bytes(p->kind.dtype), wire = wire_bytes(p);
    int n = ku_exchange_sources(x, p->stage, source, DATA_MEMBERS);
    int is_last = p->stage == x->n_stages - 1;
    for (int i = 0; i < ku_exchange_n_recvs(x, KU_HALF_REDUCE, p->stage); i++)
        ku_exchange_recv(x, KU_HALF_REDUCE, p->stage, i, &from[i]);
    ku_exchange_keep(x, p->stage, &keep);
    while (next_piece(p, x, &keep, &walk, &piece)) {
        struct ku_sum s = p->kind;
        void *dst =
            is_last ? out + (size_t)piece.begin * each : held[1][me] + (size_t)piece.begin * wire;
        for (int i = 0; i < n; i++) {
            const struct ku_exchange_source *o = &source[i];
            first[i] = o->node.first;
            in_wire[i] = p->stage || o->from != KU_FROM_SELF;
            if (o->from != KU_FROM_SELF)
                src[i] = in_message(p, message[from[o->from].member][me], from[o->from].n_nodes,
                                    o->index, &piece, wire);
            else if (p->stage)
                src[i] = held[0][me] + (size_t)piece.begin * wire;
            else
                src[i] = copy[o->node.first] + (size_t)piece.begin * each;
        }
        first[n] = first[n - 1] + source[n - 1].node.count;
        s.n_src = n;
        s.src = src;
        s.first = first;
        s.in_wire = in_wire;
        s.n_dst = 1;
        s.dst = &dst;
        s.count = piece.count;
        s.is_node = !is_last;
        s.divide = is_last ? s.divide : 0;
        ku_sum(kernels, &s);
        for (int64_t i = 0; is_last && i < piece.count; i++)
            n_times[0][piece.begin + i]++;
    }
    for (int i = 0; i < ku_exchange_n_recvs(x, KU_HALF_REDUCE, p->stage); i++)
        message[from[i].member][me] = NULL;
}

static void play_reduce(struct play *p)
{
    struct ku_exchange_peer peer;
    memset(n_times, 0, sizeof n_times);
    memset(out, 0xa5, sizeof out);
    for (p->stage = 0; p->stage < p->w->n_stages; p->stage++) {
        post_bytes = 0;
        for (int m = 0; m < p->w->n; m++) {
            for (int i = 0; i < ku_exchange_n_sends(&p->w->x[m], KU_HALF_REDUCE, p->stage); i++) {
                ku_exchange_send(&p->w->x[m], KU_HALF_REDUCE, p->stage, i, &peer);
                send_nodes(p, m, &peer);
            }
        }
        for (int m = 0; m < p->w->n; m++)
            receive_nodes(p, m);
        memcpy(held[0], held[1], (size_t)p->w->n * sizeof held[0][0]);
    }
    for (int64_t i = 0; i < p->kind.count; i++)
        assert_int_equal(n_times[0][i], 1);
    assert_memory_equal(out, flat, (size_t)p->kind.count * kumi_dtype_bytes(p->kind.dtype));
}

/* Move the elements of a set from a message, or into one. */
static void gather_set(const struct play *p, int me, const struct ku_exchange_peer *peer,
                       bool is_send)
{
    const struct ku_exchange *x = &p->w->x[me];
    struct walk walk = {0};
    struct piece piece;
    size_t each = kumi_dtype_bytes(p->kind.dtype);
    if (is_send)
        post_message(me, peer->member, (size_t)count_of(x, &peer->set, p->range, p->ctx) * each);
    unsigned char *data = is_send ? message[me][peer->member] : message[peer->member][me];
    while (next_piece(p, x, &peer->set, &walk, &piece)) {
        unsigned char *at = in_message(p, data, 1, 0, &piece, each);
        unsigned char *mine = held[0][me] + (size_t)piece.begin * each;
        memcpy(is_send ? at : mine, is_send ? mine : at, (size_t)piece.count * each);
        for (int64_t i = 0; i < piece.count; i++) {
            assert_int_equal(n_times[me][piece.begin + i], is_send);
            n_times[me][piece.begin + i] = 1;
        }
    }
    if (!is_send)
        message[peer->member][me] = NULL;
}

/* From each member's sums to every host's copy: each element arrives once at each host. */
static void play_gather(struct play *p)
{
    size_t each = kumi_dtype_bytes(p->kind.dtype);
    struct ku_exchange_peer peer;
    memset(n_times, 0, sizeof n_times);
    memset(held, 0xa5, sizeof held[0]);
    for (int m = 0; m < p->w->n; m++) {
        int64_t begin, end;
        p->range(p->ctx, m, &begin, &end);
        memcpy(held[0][m] + (size_t)begin * each, flat + (size_t)begin * each,
               (size_t)(end - begin) * each);
        memset(&n_times[m][begin], 1, (size_t)(end - begin));
    }
    for (p->stage = p->w->n_stages - 1; p->stage >= 0; p->stage--) {
        post_bytes = 0;
        for (int m = 0; m < p->w->n; m++) {
            for (int i = 0; i < ku_exchange_n_sends(&p->w->x[m], KU_HALF_GATHER, p->stage); i++) {
                ku_exchange_send(&p->w->x[m], KU_HALF_GATHER, p->stage, i, &peer);
                gather_set(p, m, &peer, 1);
            }
        }
        for (int m = 0; m < p->w->n; m++) {
            for (int i = 0; i < ku_exchange_n_recvs(&p->w->x[m], KU_HALF_GATHER, p->stage); i++) {
                ku_exchange_recv(&p->w->x[m], KU_HALF_GATHER, p->stage, i, &peer);
                gather_set(p, m, &peer, 0);
            }
        }
    }
    for (int h = 0; h < p->w->n_hosts; h++) {
        for (int64_t i = 0; i < p->kind.count; i++) {
            int n_here = 0;
            for (int l = 0; l < ku_topology_local_n(&p->w->hosts.all, h); l++) {
                int m = ku_topology_member(&p->w->hosts.all, h, l);
                n_here += n_times[m][i];
                if (n_times[m][i])
                    assert_memory_equal(held[0][m] + (size_t)i * each, flat + (size_t)i * each,
                                        each);
            }
            assert_int_equal(n_here, 1);
        }
    }
}

/* A draw decides the reduction, the length, the ranges and the chunks. */
static void play_data(const struct world *w, uint32_t draw)
{
    static bool is_filled[KUMI_N_DTYPES];
    const void *src[DATA_MEMBERS];
    void *dst = flat;
    struct ku_philox r = ku_philox(41, 0, 0, draw);
    struct play p = {.w = w, .chunk = 1 + r.word[0] % 9};
    int kind = (int)(r.word[1] % N_REDUCTIONS);
    while (!reduction_set(kind, w->n, &p.kind))
        kind = (kind + 1) % N_REDUCTIONS;
    p.kind.count = r.word[2] % 8 ? w->n * 2 + (int64_t)(r.word[2] % 29) : r.word[2] % 5;
    copy = copies[p.kind.dtype];
    for (int m = 0; m < DATA_MEMBERS && !is_filled[p.kind.dtype]; m++)
        reduction_fill(copy[m], p.kind.dtype, COUNT, 43, m);
    is_filled[p.kind.dtype] = 1;
    for (int m = 0; m < w->n; m++)
        src[m] = copy[m];
    struct ku_sum s = p.kind;
    s.n_src = w->n;
    s.src = src;
    s.n_dst = 1;
    s.dst = &dst;
    ku_sum(kernels, &s);
    const struct ku_exchange_slices slices = {.exchange = &w->x[0],
                                              .count = p.kind.count,
                                              .line_count = r.word[3] % 4,
                                              .first = r.word[3] % 7};
    const struct ranges blocks = {p.kind.count, r.word[3] % 5, r.word[3] % 3, w->n};
    p.range = r.word[3] & 1 << 20 ? block_range : slice_range;
    p.ctx = p.range == block_range ? (const void *)&blocks : (const void *)&slices;
    play_reduce(&p);
    play_gather(&p);
}

/* ---- Deadlock ---- */

/* A member that does one thing after the other, and waits where a peer has no room or no data */
struct actor {
    int turn; /* stages of the reduce half, then those of the gather half */
    int64_t chunk;
    int i; /* sends, then receives */
    bool has_moved;
};
static int n_waiting[DATA_MEMBERS][DATA_MEMBERS]; /* chunks from a to b */

/* 1: done, 0: not, -1: waits */
static int act(const struct play *p, int me, struct actor *a, int capacity)
{
    const struct ku_exchange *x = &p->w->x[me];
    if (a->turn == 2 * x->n_stages)
        return 1;
    enum ku_half half = a->turn < x->n_stages ? KU_HALF_REDUCE : KU_HALF_GATHER;
    int stage = half == KU_HALF_REDUCE ? a->turn : 2 * x->n_stages - 1 - a->turn;
    int n_sends = ku_exchange_n_sends(x, half, stage),
        n_recvs = ku_exchange_n_recvs(x, half, stage);
    if (a->i == n_sends + n_recvs) { /* the next chunk, or stage */
        a->turn += !a->has_moved;
        a->chunk = a->has_moved ? a->chunk + 1 : 0;
        a->has_moved = 0;
        a->i = 0;
        return 0;
    }
    struct ku_exchange_peer peer;
    if (a->i < n_sends)
        ku_exchange_send(x, half, stage, a->i, &peer);
    else
        ku_exchange_recv(x, half, stage, a->i - n_sends, &peer);
    int64_t count = count_of(x, &peer.set, p->range, p->ctx);
    if (a->chunk * p->chunk < count) {
        int *n = a->i < n_sends ? &n_waiting[me][peer.member] : &n_waiting[peer.member][me];
        if (a->i < n_sends ? *n == capacity : *n == 0)
            return -1;
        *n += a->i < n_sends ? 1 : -1;
        a->has_moved = 1;
    }
    a->i++;
    return 0;
}

static void play_order(const struct world *w, int capacity, uint32_t draw)
{
    struct actor actor[DATA_MEMBERS] = {{0}};
    const struct ranges ranges = {w->n * 3 + (int64_t)(draw % 11), 1 + draw % 7, draw % 5, w->n};
    const struct play p = {.w = w, .range = block_range, .ctx = &ranges, .chunk = 1 + draw % 3};
    int n_done = 0;
    for (uint32_t round = 0; n_done < w->n; round++) {
        int n_moves = 0;
        n_done = 0;
        for (int m = 0; m < w->n; m++) {
            int left = 1 + (int)(ku_random_u32(47, draw, round, (uint64_t)m) % 99), is_done;
            while ((is_done = act(&p, m, &actor[m], capacity)) == 0 && left-- > 0)
                n_moves++;
            n_done += is_done == 1;
        }
        assert_true(n_moves > 0 || n_done == w->n); /* else every member waits */
    }
    for (int a = 0; a < w->n; a++)
        for (int b = 0; b < w->n; b++)
            assert_int_equal(n_waiting[a][b], 0);
}

/* ---- Tests ---- */

static void test_topology(void **state)
{
    (void)state;
    for (int n = 1; n < 60; n += 1 + n / 8) {
        for (uint32_t seed = 0; seed < 12; seed++) {
            static struct hosts w;
            int n_hosts = 0, per_host[MAX_MEMBERS] = {0};
            hosts_open_mixed(&w, n, 1 + (int)seed, seed);
            for (int m = 0; m < n; m++) {
                assert_in_range(w.as[m].host, 0, n_hosts); /* numbered by first members */
                n_hosts += w.as[m].host == n_hosts;
                assert_int_equal(w.as[m].me, m);
                assert_int_equal(w.as[m].local, per_host[w.as[m].host]++);
                assert_int_equal(ku_topology_member(&w.all, w.as[m].host, w.as[m].local), m);
            }
            assert_int_equal(w.all.n_hosts, n_hosts);
            for (int h = 0; h < n_hosts; h++)
                assert_int_equal(ku_topology_local_n(&w.all, h), per_host[h]);
            hosts_close(&w);
        }
    }
}

/* Memory may end at any allocation; without one even hosts are planned. */
static void test_out_of_memory(void **state)
{
    const struct ku_run uneven[] = {{.count = 1, .host = 0}, {.count = 3, .host = 1}};
    const struct ku_run even[] = {
        {.count = 1, .host = 5}, {.count = 1, .host = 5}, {.count = 2, .host = 3}};
    struct ku_topology t;
    struct ku_exchange x = {0};
    (void)state;
    for (int nth = 1; nth <= 4; nth++) {
        char fault[16];
        snprintf(fault, sizeof fault, "mem:%d", nth);
        ku_fault_set(fault);
        int status = ku_topology_init(&t, uneven, 2, 2);
        assert_int_equal(status, nth <= 2 ? KUMI_ENOMEM : 0);
        if (!status) {
            status = ku_exchange_plan(&t, NULL, &x);
            assert_int_equal(status, nth == 3 ? KUMI_ENOMEM : 0);
            if (!status)
                ku_exchange_fini(&x);
            ku_topology_fini(&t);
        }
    }
    ku_fault_set(NULL);
    assert_int_equal(ku_topology_init(&t, even, 3, 3), 0);
    assert_int_equal(t.per_host, 2);
    assert_int_equal(t.host, 1);
    assert_null(t.memory);
    ku_fault_set("mem:1");
    assert_int_equal(ku_exchange_plan(&t, NULL, &x), 0);
    ku_fault_set(NULL);
    ku_exchange_fini(&x);
}

static void test_stages(void **state)
{
    static const struct {
        int n_hosts, max_radix, radix[5];
    } row[] = {{1, 0, {0}},        {2, 0, {2}},         {3, 0, {3}},
               {16, 0, {16}},      {17, 0, {17}},       {18, 0, {2, 9}},
               {20, 0, {4, 5}},    {24, 0, {4, 6}},     {32, 0, {8, 4}},
               {34, 0, {2, 17}},   {37, 0, {37}},       {48, 0, {8, 6}},
               {64, 0, {8, 8}},    {256, 0, {16, 16}},  {8, 2, {2, 2, 2}},
               {12, 2, {2, 2, 3}}, {512, 0, {8, 8, 8}}, {16, 4, {4, 4}},
               {6, 3, {2, 3}},     {6, 6, {6}},         {16384, 0, {16, 16, 8, 8}}};
    struct ku_topology t;
    struct ku_exchange x;
    (void)state;
    for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
        const struct ku_exchange_tuning tuning = {.max_radix = row[r].max_radix};
        int n = 0, stride = 1;
        ku_topology_init_even(&t, row[r].n_hosts, 4, 0);
        assert_int_equal(ku_exchange_plan(&t, &tuning, &x), 0);
        for (; row[r].radix[n]; stride *= row[r].radix[n++]) {
            assert_int_equal(x.stage[n].radix, row[r].radix[n]);
            assert_int_equal(x.stage[n].stride, stride);
        }
        assert_int_equal(x.n_stages, n);
    }
    for (int h = 2; h < 3000; h++) {
        int odd = h, product = 1;
        for (; odd % 2 == 0; odd /= 2)
            ;
        ku_topology_init_even(&t, h, 8, 8 * h - 1);
        assert_int_equal(ku_exchange_plan(&t, NULL, &x), 0);
        for (int s = 0; s < x.n_stages; s++) {
            int radix = x.stage[s].radix;
            assert_int_equal(x.stage[s].stride, product);
            assert_true(s == x.n_stages - 1 || (radix & (radix - 1)) == 0);
            assert_true(radix <= KU_EXCHANGE_RADIX || radix == odd);
            product *= radix;
        }
        assert_int_equal(product, h);
        assert_true(x.max_peers <= 15 || odd > 16);
        ku_topology_init_even(&t, h, 3, 0); /* one stage: several nodes */
        assert_int_equal(ku_exchange_plan(&t, NULL, &x), 0);
        assert_int_equal(x.n_stages, 1);
        assert_int_equal(x.max_nodes, h == 2 ? 2 : 2);
    }
    ku_topology_init_even(&t, 1 << 14, 1, 0);
    const struct ku_exchange_tuning halving = {.max_radix = 2};
    assert_int_equal(ku_exchange_plan(&t, &halving, &x), 0);
    assert_int_equal(x.n_stages, 14);
    assert_int_equal(x.max_peers, 1);
}

static void play(struct world *w, int max_radix, bool has_data, uint32_t draw)
{
    open_plans(w, max_radix);
    if (w->n_stages)
        check_plan(w);
    if (has_data && w->n_stages) {
        check_max_peers(w);
        play_data(w, draw);
        play_order(w, 1 + (int)(draw % CAPACITY), draw);
    }
    close_plans(w);
}

/* Every division of n ranks into at most max_hosts hosts; the data of one in `one_in` */
static void check_divisions(int n, int max_hosts, uint32_t one_in)
{
    static struct world w;
    int count[MAX_MEMBERS], n_hosts = 0;
    for (uint32_t i = 0; hosts_next(n, max_hosts, count, &n_hosts); i++) {
        uint32_t draw = ku_random_u32(sample_seed(), (uint32_t)n, (uint32_t)max_hosts, i);
        bool is_taken = draw % one_in == 0 || sample_is_all();
        if (sample_is_short() && !is_taken)
            continue;
        hosts_open_sizes(&w.hosts, count, n_hosts);
        play(&w, 0, is_taken, draw / one_in);
    }
}

static void test_divisions(void **state)
{
    (void)state;
    for (int n = 1; n <= 14; n++)
        check_divisions(n, n, n < 9 ? 1 : sample_is_short() ? 199 : 29);
    for (int n = 15; n <= 24; n++)
        check_divisions(n, 5, sample_is_short() ? 997 : 97);
}

/* There are 2^(n - 1) divisions. */
static void test_number_of_divisions(void **state)
{
    (void)state;
    for (int n = 1; n <= 12; n++) {
        int count[MAX_MEMBERS], n_hosts = 0, n_all = 0, n_few = 0;
        while (hosts_next(n, n, count, &n_hosts)) {
            int sum = 0;
            for (int h = 0; h < n_hosts; h++)
                sum += count[h];
            assert_int_equal(sum, n);
            n_all++;
            n_few += n_hosts <= 2;
        }
        assert_int_equal(n_all, 1 << (n - 1));
        assert_int_equal(n_few, n);
        for (n_hosts = 0; hosts_next(n, 2, count, &n_hosts); n_few--)
            assert_in_range(n_hosts, 1, 2);
        assert_int_equal(n_few, 0);
    }
}

static void test_even_hosts(void **state)
{
    static const int per_host[] = {1, 2, 3, 4, 5, 8}, max_radix[] = {0, 2, 4, 64};
    static struct world w;
    uint32_t draw = 0;
    (void)state;
    for (int h = 1; h <= 64; h += h < 24 ? 1 : h < 32 ? 8 : 16)
        for (size_t l = 0; l < sizeof per_host / sizeof *per_host; l++)
            for (size_t r = 0; r < sizeof max_radix / sizeof *max_radix; r++) {
                if (sample_is_short() && ku_random_u32(53, 0, 0, draw++) % 16)
                    continue;
                hosts_open_even(&w.hosts, h, per_host[l]);
                assert_int_equal(w.hosts.all.per_host, per_host[l]);
                play(&w, max_radix[r], h * per_host[l] <= DATA_MEMBERS, draw++);
            }
}

/* Splits with odd keys: the members of a host are no run. */
static void test_interleaved(void **state)
{
    static struct world w;
    (void)state;
    for (uint32_t i = 0; i < (uint32_t)sample_count(400, 20); i++) {
        int n = 2 + (int)(i % 31), n_hosts = 1 + (int)(i / 3 % 9);
        hosts_open_mixed(&w.hosts, n, n_hosts < n ? n_hosts : n, i);
        play(&w, 0, 1, i);
    }
}

/* The planner's figures are those of the plan: bytes between hosts, and the chunk pool. */
static void check_cost(const struct world *w)
{
    const struct ku_members all = {.stride = 1, .n = w->n};
    const struct ku_exchange_slices slices[2] = {
        {.exchange = &w->x[0], .count = 16 * w->n, .line_count = 16},
        {.exchange = &w->x[0], .count = 37 * w->n + 5, .line_count = 16, .first = 3}};
    struct ku_host_ranks host[MAX_MEMBERS];
    struct ku_far_cost *cost;
    const bool is_mutual = ku_topology_is_mutual(&w->hosts.all);
    const int n = w->n_hosts;
    double mean[2], half[2];
    bool is_exact;
    size_t pool, first_chunk = 0;
    for (int h = 0; h < n; h++)
        host[h] = (struct ku_host_ranks){ku_topology_member(&w->hosts.all, h, 0),
                                         ku_topology_local_n(&w->hosts.all, h)};
    assert_int_equal(ku_far_cost_bytes(&all, host, n, false, &half[0], &half[1], &is_exact), 0);
    assert_int_equal(ku_far_cost_bytes(&all, host, n, true, &mean[0], &mean[1], &is_exact), 0);
    assert_true(fabs(half[0] + half[1] - mean[0] - mean[1]) < 1e-12 * w->n);
    assert_true((mean[1] > 0) == (w->n_hosts > 1 && !is_mutual));
    assert_int_equal(ku_far_cost_create(&all, host, w->n_hosts, &cost), 0);
    for (int k = 0; k < 4; k++) {
        const struct ku_exchange_slices *s = &slices[k % 2];
        const struct ku_far_vector v = {s->count, 0, s->first, .each_bytes = 4, .wire_bytes = 4};
        double planned = 0, sent = 0;
        for (int m = 0; m < w->n; m++)
            for (int h = 0; h < 2; h++)
                if (is_mutual ? k / 2 == 0 : k / 2 == h)
                    sent += 4 * (double)sent_of(&w->x[m], h, s);
        if (cost)
            planned = k / 2 ? ku_far_cost_gathered(cost, &v) : ku_far_cost_reduced(cost, &v);
        assert_true(planned == sent && (sent > 0) == (mean[k / 2] > 0));
        assert_true((k % 2 && !is_exact) ||
                    fabs(sent / (4 * (double)s->count) - mean[k / 2]) < 1e-12 * w->n);
    }
    ku_far_cost_destroy(cost);
    for (int m = 0; m < w->n; m++) {
        struct ku_exchange x;
        assert_int_equal(ku_exchange_plan(&w->hosts.as[m], NULL, &x), 0);
        assert_int_equal(ku_far_cost_pool(&all, host, w->n_hosts, m, 0, &pool), 0);
        assert_int_equal(pool, ku_exchange_staging_bytes(&x, KU_EXCHANGE_CHUNK_BYTES) +
                                   KU_EXCHANGE_CHUNK_BYTES);
        /* messages that run at full rate: all members cut alike, the pool stays bounded */
        const size_t chunk = ku_exchange_chunk_bytes(&x, 2 << 20);
        assert_true(m == 0 || chunk == first_chunk);
        first_chunk = chunk;
        assert_true(chunk >= KU_EXCHANGE_CHUNK_BYTES && chunk <= 2 << 20);
        assert_true(w->n_hosts > 2 || !w->hosts.all.per_host || chunk == 2 << 20);
        assert_int_equal(ku_far_cost_pool(&all, host, w->n_hosts, m, 2 << 20, &pool), 0);
        assert_int_equal(pool, ku_exchange_staging_bytes(&x, chunk) + chunk);
        assert_true(chunk == KU_EXCHANGE_CHUNK_BYTES ||
                    pool <= (4 * KU_EXCHANGE_RADIX + 8) * (size_t)KU_EXCHANGE_CHUNK_BYTES);
        ku_exchange_fini(&x);
    }
}

/* Bytes: of each half S (H - 1) / H a host, where its members are one node. */
static void test_bytes(void **state)
{
    static struct world w;
    static const int per_host[] = {1, 2, 3, 4, 8};
    (void)state;
    for (int h = 2; h <= 24; h++) {
        for (int l = 0; l < 5; l++) {
            hosts_open_even(&w.hosts, h, per_host[l]);
            open_plans(&w, l == 1 ? 2 : 0);
            for (int half = 0; half < 2; half++) {
                const struct ku_exchange_slices slices = {
                    .exchange = &w.x[0], .count = 16 * w.n, .line_count = 16};
                int64_t sent = 0;
                for (int m = 0; m < per_host[l]; m++)
                    sent += sent_of(&w.x[m], half, &slices);
                if (half || per_host[l] != 3)
                    assert_int_equal(sent * h, slices.count * (h - 1));
            }
            check_cost(&w);
            close_plans(&w);
        }
    }
    const int count[] = {1, 3, 4, 6};
    hosts_open_sizes(&w.hosts, count, 4);
    open_plans(&w, 0);
    check_cost(&w);
    close_plans(&w);
}

/* Slices cover the vector, and even hosts' sets are one piece of it. */
static void test_slices(void **state)
{
    static struct world w;
    struct ku_exchange_peer peer;
    (void)state;
    for (uint32_t i = 0; i < 120; i++) {
        unsigned char is_taken[MAX_MEMBERS] = {0};
        if (i < 60)
            hosts_open_even(&w.hosts, 1 + (int)i % 20, 1 + (int)(i / 20));
        else
            hosts_open_mixed(&w.hosts, 1 + (int)i % 37, 5, i);
        open_plans(&w, i % 3 == 0 ? 2 : 0);
        for (int d = 0; d < w.n; d++) {
            int place = ku_exchange_place(&w.x[0], d);
            assert_in_range(place, 0, w.n - 1);
            assert_int_equal(is_taken[place]++, 0);
            if (!w.hosts.all.per_host)
                assert_in_range(place, w.hosts.all.lower_n[w.hosts.as[d].local],
                                w.hosts.all.lower_n[w.hosts.as[d].local + 1] - 1);
        }
        const struct ku_exchange_slices s = {.exchange = &w.x[0], .count = 1000, .line_count = 16};
        for (int m = 0; m < w.n && w.hosts.all.per_host; m++) {
            for (int stage = 0; stage < w.n_stages; stage++) {
                for (int k = 0; k < ku_exchange_n_sends(&w.x[m], KU_HALF_REDUCE, stage); k++) {
                    struct cursor at = {0};
                    int64_t begin;
                    ku_exchange_send(&w.x[m], KU_HALF_REDUCE, stage, k, &peer);
                    const int64_t all = count_of(&w.x[m], &peer.set, slice_range, &s);
                    assert_int_equal(
                        next_range(&w.x[m], &peer.set, slice_range, &s, INT64_MAX, &at, &begin),
                        all);
                    assert_int_equal(begin % 16, 0);
                }
            }
        }
        close_plans(&w);
    }
}

static void test_chunks(void **state)
{
    struct ku_topology t;
    struct ku_exchange x;
    (void)state;
    ku_topology_init_even(&t, 3, 9, 0);
    assert_int_equal(ku_exchange_plan(&t, NULL, &x), 0);
    assert_int_equal(x.max_nodes, 4);
    assert_int_equal(ku_exchange_chunk_count(&x, KU_HALF_GATHER, 4, KU_EXCHANGE_CHUNK_BYTES),
                     65536);
    assert_int_equal(ku_exchange_chunk_count(&x, KU_HALF_REDUCE, 4, KU_EXCHANGE_CHUNK_BYTES),
                     16384);
    assert_int_equal(ku_exchange_chunk_count(&x, KU_HALF_REDUCE, 4, 700), 32);
    assert_int_equal(ku_exchange_chunk_count(&x, KU_HALF_REDUCE, 2, 24), 3);
}

int main(void)
{
    kernels = ku_sum_choose();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topology),    cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_stages),      cmocka_unit_test(test_number_of_divisions),
        cmocka_unit_test(test_divisions),   cmocka_unit_test(test_even_hosts),
        cmocka_unit_test(test_interleaved), cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_slices),      cmocka_unit_test(test_chunks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
