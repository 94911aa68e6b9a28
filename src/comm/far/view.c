/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the elements of a work lie that exchanges with other hosts. Programs: at the parts' offsets
 * of the near members' arenas. A public all_reduce of one member on each host: in its output, or in
 * an aligned copy of it. Other public calls: in the current piece of the near members' stages; a
 * piece of reduce_scatter has a section for each member, one of all_gather for each block that a
 * member brings in (ku_far_n_sections).
 */
#include "comm/far/lane.h"

#include "base/err.h"
#include "tensor/blocks.h"

#include <string.h>

enum { LINE_BYTES = 64 };

static bool is_program(const struct ku_work *w)
{
    return w->path == KU_PATH_FAR_ALL_REDUCE || w->path == KU_PATH_FAR_REDUCE_SCATTER ||
           w->path == KU_PATH_FAR_HOST_SCATTER || w->path == KU_PATH_FAR_ALL_GATHER ||
           w->path == KU_PATH_FAR_HOST_GATHER;
}

int ku_far_n_parts(const struct ku_work *w)
{
    return is_program(w) ? w->coll.n_parts : 1;
}

/* Elements of the current piece of a block of `count` */
static int64_t piece_of(const struct ku_work *w, int64_t count)
{
    const int64_t left = count - w->piece * w->piece_count;
    return left < 0 ? 0 : left < w->piece_count ? left : w->piece_count;
}

/* Member d's elements of a program's part that is gathered, or broadcast by d */
static void shard_of(const struct ku_work *w, int part, int d, int64_t *begin, int64_t *end)
{
    const struct ku_coll_part *p = &w->coll.part[part];
    *begin = 0;
    *end = p->count;
    if (w->coll.kind != KU_COLL_BROADCAST)
        ku_blocks_range(p->count, p->block_count, p->first_block, w->comm->n, d, begin, end);
}

/* Elements of member d's block of a staged call: of a program the shards of all parts in turn */
static int64_t block_count(const struct ku_work *w, int d)
{
    int64_t sum = 0, begin, end;
    if (!w->coll.n_parts)
        return ku_move_block_count(w, d);
    for (int i = 0; i < w->coll.n_parts; i++) {
        shard_of(w, i, d, &begin, &end);
        sum += end - begin;
    }
    return sum;
}

int64_t ku_far_max_block(const struct ku_work *w)
{
    int64_t max = 0;
    if (w->coll.kind == KU_COLL_BROADCAST)
        return block_count(w, w->coll.root);
    for (int d = 0; d < w->comm->n; d++) {
        const int64_t count = block_count(w, d);
        max = count > max ? count : max;
    }
    return max;
}

/*
 * The section of member d's block on the member of this host that brings it in. Hosts differ in
 * size: member (h, l) brings in those of local index l, l + L_h, … of each other host.
 */
static int64_t section_of(const struct ku_work *w, int d)
{
    const struct ku_topology *t = &w->comm->priv->far->topology;
    int host, local;
    ku_topology_find(t, d, &host, &local);
    const int near_n = w->comm->near.n;
    return (int64_t)host * ((t->max_local + near_n - 1) / near_n) + local / near_n;
}

int ku_far_max_near(const struct ku_comm *c)
{
    return c->priv->far->topology.max_local;
}

int ku_far_host_members(const struct ku_comm *c)
{
    return c->priv->far->topology.per_host;
}

int ku_far_n_sections(const struct ku_comm *c)
{
    const struct ku_topology *t = &c->priv->far->topology;
    int min = t->max_local;
    if (t->per_host)
        return t->n_hosts;
    for (int h = 0; h < t->n_hosts; h++) {
        const int n = ku_topology_local_n(t, h);
        min = n < min ? n : min;
    }
    return t->n_hosts * ((t->max_local + min - 1) / min);
}

static void slice(const struct ku_work *w, int64_t count, int first, int d, int64_t *begin,
                  int64_t *end)
{
    const struct ku_far *far = w->comm->priv->far;
    const struct ku_exchange_slices s = {.exchange = &far->exchange,
                                         .count = count,
                                         .line_count = LINE_BYTES / (int64_t)ku_far_each(w),
                                         .first = first};
    ku_exchange_slice(&s, d, begin, end);
}

/* n_owners: the shard of all members with d's local index */
static void owned_range(const struct ku_work *w, int part, int d, int64_t *begin, int64_t *end)
{
    const struct ku_coll_part *p = &w->coll.part[part];
    const int local =
        ku_exchange_place(&w->comm->priv->far->exchange, d) / w->comm->priv->far->topology.n_hosts;
    KU_ASSERT(local < w->coll.n_owners);
    ku_blocks_range(p->count, p->block_count, p->first_block, w->coll.n_owners, local, begin, end);
}

/* n_owners: d's slice of its shard. Slices of a shard are contiguous, in the order of places. */
static void host_slice(const struct ku_work *w, int part, int d, int64_t *begin, int64_t *end)
{
    const struct ku_far *far = w->comm->priv->far;
    const int n = far->topology.n_hosts, host = ku_exchange_place(&far->exchange, d) % n;
    int64_t shard, shard_end;
    owned_range(w, part, d, &shard, &shard_end);
    ku_blocks_range(shard_end - shard, LINE_BYTES / (int64_t)ku_far_each(w), part, n, host, begin,
                    end);
    *begin += shard;
    *end += shard;
}

void ku_far_range(const struct ku_work *w, int part, int d, int64_t *begin, int64_t *end)
{
    if (is_program(w)) {
        const struct ku_coll_part *p = &w->coll.part[part];
        if (w->coll.kind == KU_COLL_ALL_REDUCE)
            slice(w, p->count, part, d, begin, end);
        else if (w->coll.n_owners)
            host_slice(w, part, d, begin, end);
        else
            ku_blocks_range(p->count, p->block_count, p->first_block, w->comm->n, d, begin, end);
        return;
    }
    switch (w->path) {
    case KU_PATH_FAR_LONE_SUM:
        slice(w, w->coll.count, 0, d, begin, end);
        return;
    case KU_PATH_FAR_STAGED_SUM:
        slice(w, piece_of(w, w->coll.count), 0, d, begin, end);
        return;
    case KU_PATH_FAR_STAGED_SCATTER:
        *begin = d * w->piece_count;
        *end = *begin + piece_of(w, ku_move_block_count(w, d));
        return;
    default:
        break;
    }
    KU_ASSERT(w->path == KU_PATH_FAR_STAGED_GATHER);
    *begin = section_of(w, d) * w->piece_count;
    *end = *begin + piece_of(w, block_count(w, d));
}

/* Sums need elements at multiples of their size. */
static bool is_aligned(const struct ku_work *w)
{
    return (uintptr_t)w->coll.out % ku_far_each(w) == 0;
}

static unsigned char *lone_sum(const struct ku_work *w)
{
    return is_aligned(w) ? w->coll.out : w->comm->priv->far->copy;
}

int ku_far_lone_begin(struct ku_work *w)
{
    const size_t bytes = (size_t)w->coll.count * ku_far_each(w);
    if (!is_aligned(w))
        KU_TRY(ku_far_copy_room(w->comm->priv->far, bytes));
    unsigned char *to = lone_sum(w);
    if (w->coll.reduce == KUMI_PREMUL_SUM)
        ku_sum_scale(to, w->coll.in, w->coll.count, w->coll.dtype, w->coll.scale);
    else if (to != w->coll.in)
        memcpy(to, w->coll.in, bytes);
    return 0;
}

void ku_far_lone_end(struct ku_work *w)
{
    if (!is_aligned(w))
        memcpy(w->coll.out, lone_sum(w), (size_t)w->coll.count * ku_far_each(w));
}

unsigned char *ku_far_leaf(const struct ku_work *w, int k, int part, int64_t at)
{
    const struct ku_comm *c = w->comm;
    if (is_program(w))
        return ku_move_ref(c->job, &w->coll.part[part].in, ku_comm_near(c, k)) +
               (size_t)at * ku_far_each(w);
    if (w->path == KU_PATH_FAR_LONE_SUM)
        return lone_sum(w) + (size_t)at * ku_far_each(w);
    return ku_move_stage(w, k) + (size_t)at * ku_far_each(w);
}

/* Whether the last stage writes results where this member's partial sums lie, and wider ones */
static bool is_widened(const struct ku_work *w)
{
    const struct ku_far *far = w->comm->priv->far;
    return far->stage > 0 && far->stage == far->exchange.n_stages - 1 &&
           ku_far_wire_each(w) < ku_far_each(w);
}

/* Bytes from the begin of a destination's range to its partial sums, which end where it ends */
static size_t room_before(const struct ku_work *w, int part, int d)
{
    int64_t begin, end;
    ku_far_range(w, part, d, &begin, &end);
    return (size_t)(end - begin) * (ku_far_each(w) - ku_far_wire_each(w));
}

unsigned char *ku_far_partial(const struct ku_work *w, const struct far_segment *s)
{
    const size_t before =
        is_widened(w) && s->dest == w->comm->me ? room_before(w, s->part, s->dest) : 0;
    return ku_far_leaf(w, w->comm->near.me, s->part, s->range_begin) + before +
           (size_t)(s->begin - s->range_begin) * ku_far_wire_each(w);
}

void ku_far_move_partials(struct ku_work *w)
{
    const int d = w->comm->me;
    for (int part = 0; is_widened(w) && part < ku_far_n_parts(w); part++) {
        int64_t begin, end;
        ku_far_range(w, part, d, &begin, &end);
        unsigned char *at = ku_far_leaf(w, w->comm->near.me, part, begin);
        memmove(at + room_before(w, part, d), at, (size_t)(end - begin) * ku_far_wire_each(w));
    }
}

/* Offset in a buffer that holds the whole vector, or with is_kept this member's shard alone */
static size_t offset_of(const struct ku_work *w, const struct far_segment *s, int is_kept)
{
    int64_t first = is_kept ? s->range_begin : 0, end;
    if (is_kept && w->coll.n_owners)
        owned_range(w, s->part, s->dest, &first, &end);
    return (size_t)(s->begin - first) * ku_far_each(w);
}

static int program_places(const struct ku_work *w, const struct far_segment *s, void **dst,
                          const void **addend)
{
    const struct ku_comm *c = w->comm;
    const struct ku_coll_part *p = &w->coll.part[s->part];
    const int to_all = w->coll.kind == KU_COLL_ALL_REDUCE && !(p->out.flags & KU_ARENA_COMMON),
              me = c->near.me;
    if (p->has_addend)
        *addend = ku_move_ref(c->job, &p->addend, ku_comm_near(c, me)) +
                  offset_of(w, s, p->kept & KU_KEPT_ADDEND);
    for (int k = 0; to_all && k < c->near.n; k++)
        dst[k] = ku_move_ref(c->job, &p->out, ku_comm_near(c, k)) + offset_of(w, s, 0);
    if (!to_all)
        dst[0] = ku_move_ref(c->job, &p->out, ku_comm_near(c, me)) +
                 offset_of(w, s, p->kept & KU_KEPT_OUT);
    return to_all ? c->near.n : 1;
}

int ku_far_sum_places(const struct ku_work *w, const struct far_segment *s, void **dst,
                      const void **addend)
{
    *addend = NULL;
    if (is_program(w))
        return program_places(w, s, dst, addend);
    if (w->path == KU_PATH_FAR_STAGED_SCATTER) {
        dst[0] = (unsigned char *)w->coll.out +
                 (size_t)(w->piece * w->piece_count + s->begin - s->range_begin) * ku_far_each(w);
        return 1;
    }
    dst[0] = ku_far_gathered(w, s);
    return 1;
}

unsigned char *ku_far_gathered(const struct ku_work *w, const struct far_segment *s)
{
    const struct ku_comm *c = w->comm;
    const int me = c->near.me;
    if (is_program(w)) {
        const struct ku_coll_part *p = &w->coll.part[s->part];
        /* an all-gather sends this member's part from its input */
        if (w->coll.kind == KU_COLL_ALL_GATHER && s->dest == c->me)
            return ku_move_ref(c->job, &p->in, ku_comm_near(c, me)) +
                   offset_of(w, s, p->kept & KU_KEPT_IN);
        return ku_move_ref(c->job, &p->out, ku_comm_near(c, me)) +
               offset_of(w, s, w->coll.n_owners ? p->kept & KU_KEPT_OUT : 0);
    }
    if (w->path == KU_PATH_FAR_LONE_SUM)
        return lone_sum(w) + (size_t)s->begin * ku_far_each(w);
    /* sums of a staged call lie in the piece after the one that holds its input */
    return ku_move_stage_piece(w, me, w->stage + (w->path == KU_PATH_FAR_STAGED_SUM)) +
           (size_t)s->begin * ku_far_each(w);
}

/*
 * Copy the current piece of member d's block between its section and the buffers: to the section
 * from this member's input, or from it to this member's output.
 */
static void copy_block(struct ku_work *w, int d, unsigned char *section, bool is_out)
{
    const struct ku_comm *c = w->comm;
    const size_t each = ku_far_each(w);
    const int64_t from = w->piece * w->piece_count, to = from + piece_of(w, block_count(w, d));
    const int me = ku_comm_near(c, c->near.me);
    int64_t at = 0;
    for (int i = 0; i < w->coll.n_parts && at < to; i++) {
        const struct ku_coll_part *p = &w->coll.part[i];
        int64_t begin, end;
        shard_of(w, i, d, &begin, &end);
        const int64_t lo = from > at ? from : at,
                      hi = to < at + end - begin ? to : at + end - begin;
        if (lo < hi) {
            const int64_t first = p->kept & KU_KEPT_IN ? 0 : begin;
            unsigned char *in = ku_move_ref(c->job, &p->in, me) + (size_t)(first + lo - at) * each,
                          *out =
                              ku_move_ref(c->job, &p->out, me) + (size_t)(begin + lo - at) * each,
                          *staged = section + (size_t)(lo - from) * each;
            const size_t bytes = (size_t)(hi - lo) * each;
            if (!is_out) {
                memcpy(staged, in, bytes);
            } else if (d != c->me || in != out) { /* this member's own block may be there */
                ku_move_deliver(w, out, staged, (int64_t)bytes);
                ku_move_count_bytes(w, hi - lo, 1);
            }
        }
        at += end - begin;
    }
}

void ku_far_broadcast_parts(struct ku_work *w)
{
    copy_block(w, w->coll.root, ku_move_stage(w, ku_far_broadcaster(w)), true);
}

int64_t ku_far_piece_bytes(const struct ku_work *w)
{
    return piece_of(w, block_count(w, w->coll.root)) * (int64_t)ku_far_each(w);
}

void ku_far_fill(struct ku_work *w)
{
    const struct ku_comm *c = w->comm;
    if (w->coll.kind == KU_COLL_BROADCAST) {
        if (c->me == w->coll.root)
            copy_block(w, c->me, ku_move_stage(w, c->near.me), false);
        return;
    }
    unsigned char *section = ku_move_stage(w, c->near.me) +
                             (size_t)(section_of(w, c->me) * w->piece_count) * ku_far_each(w);
    if (w->coll.n_parts) {
        copy_block(w, c->me, section, false);
        return;
    }
    const int64_t count = piece_of(w, block_count(w, c->me));
    if (count)
        memcpy(section,
               (const unsigned char *)w->coll.in +
                   (size_t)(w->piece * w->piece_count) * ku_far_each(w),
               (size_t)count * ku_far_each(w));
}

void ku_far_collect(struct ku_work *w)
{
    const struct ku_comm *c = w->comm;
    const struct ku_topology *t = &c->priv->far->topology;
    const size_t each = ku_far_each(w);
    int64_t before = 0; /* elements of blocks before d's, in a public call */
    for (int d = 0; d < c->n; d++) {
        int host, local;
        ku_topology_find(t, d, &host, &local);
        const int k = ku_topology_helper(t, t->host, host, local);
        unsigned char *section =
            ku_move_stage(w, k) + (size_t)(section_of(w, d) * w->piece_count) * each;
        if (w->coll.n_parts) {
            copy_block(w, d, section, true);
            continue;
        }
        const int64_t count = block_count(w, d);
        ku_move_deliver(
            w, (unsigned char *)w->coll.out + (size_t)(before + w->piece * w->piece_count) * each,
            section, piece_of(w, count) * (int64_t)each);
        before += count;
    }
}

void ku_far_drain(struct ku_work *w)
{
    const struct ku_comm *c = w->comm;
    const struct ku_topology *t = &c->priv->far->topology;
    const size_t each = ku_far_each(w);
    unsigned char *out = (unsigned char *)w->coll.out + (size_t)(w->piece * w->piece_count) * each;
    for (int d = 0; d < c->n; d++) {
        int64_t begin, end;
        int host, local;
        ku_far_range(w, 0, d, &begin, &end);
        ku_topology_find(t, d, &host, &local);
        const unsigned char *from = ku_move_stage(w, ku_topology_helper(t, t->host, host, local));
        ku_move_deliver(w, out + (size_t)begin * each, from + (size_t)begin * each,
                        (end - begin) * (int64_t)each);
    }
}
