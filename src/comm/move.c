/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of a work that moves data. Three forms, by the memory of the buffers:
 *
 *     program   parts at equal offsets of every rank's owned memory
 *     direct    one buffer per rank in owned memory; its location came with the arrival
 *     staged    private memory, in pieces of 256 KiB through the ranks' stages. A stage holds two
 *               pieces: one is filled while the other ranks read the previous one
 *
 * A piece is one section; where each rank gets different data, it is n sections of piece_count
 * elements, one per destination rank. A rank does not stage data that only it reads.
 *
 * All-reduce: rank r reduces slice r of all copies and stores it to all copies. That is 2 S bytes
 * of traffic, each byte read once. For n = 3:
 *
 *                  rank 0's copy    rank 1's copy    rank 2's copy
 *     sums by      [ 0 | 1 | 2 ]    [ 0 | 1 | 2 ]    [ 0 | 1 | 2 ]     slice r: read 3, write 3
 *
 * Staged, rank r reads slice r from the other ranks' stages and from its own input. It stores the
 * sums in its output and in its stage, from which the other ranks copy them.
 */
#include "base/err.h"
#include "comm/private.h"
#include "comm/message_stream.h"
#include "tensor/blocks.h"
#include "tensor/dtype.h"

#include <string.h>

enum {
    LINE_BYTES = 64,
    STEP_BYTES = 128 * 1024, /* per copy, between two checks of the budget */
    LARGE_BYTES = 4 << 20    /* in and out together then exceed the last cache level */
};

/* Sources and destinations of one reduction; on the stack: 8 KiB. */
struct operands {
    const void *src[KU_MAX_LOCAL];
    void *dst[KU_MAX_LOCAL];
    int n_dst, n_streamed; /* the last n_streamed dst are stages that other ranks read next */
};

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static size_t each_bytes(const struct ku_work *w)
{
    return kumi_dtype_bytes(w->coll.dtype);
}

static bool is_large(const struct ku_work *w)
{
    return w->total >= LARGE_BYTES / (int64_t)each_bytes(w);
}

/*
 * Copy within a work. The ranges are equal or do not overlap.
 */
static void copy(void *to, const void *from, int64_t bytes)
{
    if (bytes > 0 && to != from)
        memcpy(to, from, (size_t)bytes);
}

/* Copy into the result of a work; past the caches if it is large. */
void ku_move_deliver(const struct ku_work *w, void *to, const void *from, int64_t bytes)
{
    if (!is_large(w) || bytes < LINE_BYTES || to == from) {
        copy(to, from, bytes);
        return;
    }
    ku_stream_copy(to, from, (size_t)bytes);
    ku_stream_fence();
}

unsigned char *ku_move_ref(const struct ku_job *job, const struct ku_ref *ref, int local)
{
    if (ref->flags & KU_ARENA_PRIVATE)
        return ref->ptr;
    KU_ASSERT(ref->arena < KU_MAX_ARENAS);
    const struct ku_arena *a = &job->comm->arenas->arena[ref->arena];
    KU_ASSERT(ref->off <= (ref->flags & KU_ARENA_COMMON ? a->common_bytes : a->part_bytes));
    return (ref->flags & KU_ARENA_COMMON ? a->base : ku_arena_part(a, local)) + ref->off;
}

/*
 * Entries and stages are those of near members. In a comm of one host, the only one that moves data
 * by them without comm/far.h, near member k is member k.
 */
static struct ku_entry *entry_of(const struct ku_work *w, int k)
{
    return &w->comm->priv->flags[ku_comm_near(w->comm, k)].ring[w->seq % KU_RING];
}

unsigned char *ku_move_stage_piece(const struct ku_work *w, int k, uint64_t stage)
{
    return ku_area_stage(w->comm->job->seg, w->comm->slot, ku_comm_near(w->comm, k))
        ->piece[stage % 2];
}

unsigned char *ku_move_stage(const struct ku_work *w, int k)
{
    return ku_move_stage_piece(w, k, w->stage);
}

uint64_t ku_move_place(const struct ku_work *w, const void *at)
{
    const struct ku_job *job = w->comm->job;
    const size_t each = kumi_dtype_bytes(w->coll.dtype);
    for (uint64_t id = 0; id < (uint64_t)job->comm->arenas->n; id++) {
        const struct ku_arena *a = &job->comm->arenas->arena[id];
        if (!a->base || !a->part_bytes)
            continue;
        const unsigned char *part = ku_arena_part(a, job->local_rank), *p = at;
        if (p >= part && p < part + a->part_bytes)
            return (uint64_t)(p - part) % each ? KU_PRIVATE : id << 48 | (uint64_t)(p - part);
    }
    return KU_PRIVATE;
}

unsigned char *ku_move_place_at(const struct ku_job *job, uint64_t place, int local)
{
    KU_ASSERT(place != KU_PRIVATE && place >> 48 < KU_MAX_ARENAS);
    const struct ku_arena *a = &job->comm->arenas->arena[place >> 48];
    return ku_arena_part(a, local) + (place & ((UINT64_C(1) << 48) - 1));
}
static unsigned char *in_of(const struct ku_work *w, int member)
{
    return ku_move_place_at(w->comm->job, entry_of(w, member)->place.in,
                            ku_comm_near(w->comm, member));
}
static unsigned char *out_of(const struct ku_work *w, int member)
{
    return ku_move_place_at(w->comm->job, entry_of(w, member)->place.out,
                            ku_comm_near(w->comm, member));
}

static bool is_in_place(const struct ku_work *w, const struct operands *o)
{
    for (int d = 0; d < o->n_dst; d++)
        for (int i = 0; i < w->comm->n; i++)
            if (o->dst[d] == o->src[i])
                return 1;
    return 0;
}

static void reduce(const struct ku_work *w, const struct operands *o, const void *addend,
                   int64_t count)
{
    int n_streamed = is_large(w) && !is_in_place(w, o) ? o->n_dst : o->n_streamed;
    struct ku_sum s = {.n_src = w->comm->n,
                       .n_dst = o->n_dst,
                       .src = o->src,
                       .dst = o->dst,
                       .count = count,
                       .dtype = w->coll.dtype,
                       .wire = w->coll.wire,
                       .reduce = w->coll.reduce,
                       .addend = addend,
                       .divide = w->coll.reduce == KUMI_AVG ? w->comm->n : 0,
                       .n_streamed = n_streamed};
    ku_sum(w->comm->job->comm->kernels, &s);
}

/* Elements to move next out of `left` > 0; 0: the budget is used up */
static int64_t bite(struct ku_work *w, int64_t left)
{
    struct ku_comm_rank *p = w->comm->job->comm;
    KU_ASSERT(left > 0);
    if (p->budget_bytes == 0)
        return 0;
    int64_t count = min64(left, STEP_BYTES / (int64_t)each_bytes(w));
    int64_t bytes = count * (int64_t)each_bytes(w);
    if (p->budget_bytes > 0)
        p->budget_bytes = p->budget_bytes > bytes ? p->budget_bytes - bytes : 0;
    p->has_moved = 1;
    return count;
}

/*
 * This rank's slice of an all-reduce. Slices are whole cache lines, so no line has two writers.
 * `first` rotates the ranks that get an extra line.
 */
static void slice(const struct ku_work *w, int64_t count, int64_t first, int64_t *begin,
                  int64_t *end)
{
    ku_blocks_range(count, LINE_BYTES / (int64_t)each_bytes(w), first, w->comm->n, w->comm->me,
                    begin, end);
}

void ku_move_count_bytes(const struct ku_work *w, int64_t count, int n_dst)
{
    if (ku_dtype_is_float(w->coll.dtype))
        w->comm->job->comm->moved_bytes += (uint64_t)count * (uint64_t)n_dst * each_bytes(w);
}

/*
 * Elements [at, at + count) of a part. This rank's shard is [begin, end).
 */
static int64_t program_reduce(struct ku_work *w, const struct ku_coll_part *part, int64_t begin,
                              int64_t end, int64_t at, int64_t count)
{
    struct ku_comm *c = w->comm;
    struct operands o;
    size_t offset = (size_t)at * each_bytes(w);
    size_t kept = (size_t)(at - begin + part->row * (end - begin)) * each_bytes(w);
    int to_all = w->coll.kind == KU_COLL_ALL_REDUCE && !(part->out.flags & KU_ARENA_COMMON);
    KU_ASSERT(begin <= at && at + count <= part->count);
    o.n_dst = to_all ? c->n : 1;
    o.n_streamed = 0;
    for (int i = 0; i < c->n; i++) {
        int local = ku_comm_near(c, i);
        o.src[i] = ku_move_ref(c->job, &part->in, local) + offset;
        if (to_all)
            o.dst[i] = ku_move_ref(c->job, &part->out, local) + offset;
    }
    const void *addend = NULL;
    if (!to_all)
        o.dst[0] = ku_move_ref(c->job, &part->out, c->job->local_rank) +
                   (part->kept & KU_KEPT_OUT ? kept : offset);
    if (part->has_addend)
        addend = ku_move_ref(c->job, &part->addend, c->job->local_rank) +
                 (part->kept & KU_KEPT_ADDEND ? kept : offset);
    reduce(w, &o, addend, count);
    ku_move_count_bytes(w, count, o.n_dst);
    if (w->coll.see && w->coll.kind == KU_COLL_REDUCE_SCATTER)
        w->coll.see(w->coll.see_ctx, w->part, o.dst[0], count);
    return count;
}

/* Sum the range [begin, end) that this rank writes of each part. */
static int program_sums(struct ku_work *w)
{
    for (; w->part < w->coll.n_parts; w->part++, w->at = 0) {
        const struct ku_coll_part *part = &w->coll.part[w->part];
        int64_t begin, end;
        if (w->coll.kind == KU_COLL_ALL_REDUCE)
            slice(w, part->count, w->part, &begin, &end);
        else
            ku_blocks_range(part->count, part->block_count, part->first_block, w->comm->n,
                            w->comm->me, &begin, &end);
        while (begin + w->at < end) {
            int64_t count = bite(w, end - begin - w->at);
            if (!count)
                return 1;
            w->at += program_reduce(w, part, begin, end, begin + w->at, count);
        }
    }
    return 0;
}

static int program_copies(struct ku_work *w)
{
    struct ku_comm *c = w->comm;
    int64_t each = (int64_t)each_bytes(w);
    for (; w->part < w->coll.n_parts; w->part++) {
        const struct ku_coll_part *part = &w->coll.part[w->part];
        unsigned char *out = ku_move_ref(c->job, &part->out, c->job->local_rank);
        if (!bite(w, 1))
            return 1;
        for (int k = 0; k < c->near.n; k++) {
            const int i = ku_comm_member(c, k);
            int64_t begin = 0, end = part->count;
            if (w->coll.kind == KU_COLL_BROADCAST && i != w->coll.root)
                continue;
            if (w->path == KU_PATH_FAR_HOST_GATHER && k != c->near.me)
                continue; /* each member stores its own shard in the vector that they share */
            if (w->coll.kind == KU_COLL_ALL_GATHER)
                ku_blocks_range(part->count, part->block_count, part->first_block, c->n, i, &begin,
                                &end);
            const int64_t at = part->kept & KU_KEPT_IN ? part->row * (end - begin) : begin;
            const unsigned char *in =
                ku_move_ref(c->job, &part->in, ku_comm_near(c, k)) + at * each;
            ku_move_deliver(w, out + begin * each, in, (end - begin) * each);
            ku_move_count_bytes(w, end - begin, in != out + begin * each);
        }
    }
    return 0;
}

int64_t ku_move_block_count(const struct ku_work *w, int rank)
{
    return w->coll.counts ? w->coll.counts[rank] : w->coll.count;
}

/* First element of a rank's block in the packed buffer */
static int64_t block_begin(const struct ku_work *w, const int64_t *counts, int rank)
{
    int64_t begin = 0;
    if (!counts)
        return rank * w->coll.count;
    for (int i = 0; i < rank; i++)
        begin += counts[i];
    return begin;
}

/*
 * Reduce elements [begin, end) of all inputs. all_reduce stores to all outputs, the others to one.
 */
static int direct_reduce(struct ku_work *w, int64_t begin, int64_t end)
{
    struct ku_comm *c = w->comm;
    size_t each = each_bytes(w);
    while (begin + w->at < end) {
        struct operands o;
        int64_t at = begin + w->at, count = bite(w, end - at);
        if (!count)
            return 1;
        o.n_dst = w->coll.kind == KU_COLL_ALL_REDUCE ? c->n : 1;
        o.n_streamed = 0;
        for (int i = 0; i < c->n; i++) {
            o.src[i] = in_of(w, i) + (size_t)at * each;
            if (o.n_dst > 1 || c->n == 1)
                o.dst[i] = out_of(w, i) + (size_t)at * each;
        }
        if (w->coll.kind == KU_COLL_REDUCE)
            o.dst[0] = out_of(w, w->coll.root) + (size_t)at * each;
        if (w->coll.kind == KU_COLL_REDUCE_SCATTER)
            o.dst[0] = out_of(w, c->me) + (size_t)w->at * each;
        reduce(w, &o, NULL, count);
        w->at += count;
    }
    return 0;
}

static int direct_step(struct ku_work *w)
{
    struct ku_comm *c = w->comm;
    int64_t each = (int64_t)each_bytes(w), begin, end;
    switch (w->coll.kind) {
    case KU_COLL_ALL_REDUCE:
    case KU_COLL_REDUCE:
        slice(w, w->coll.count, 0, &begin, &end);
        return direct_reduce(w, begin, end);
    case KU_COLL_REDUCE_SCATTER:
        begin = block_begin(w, w->coll.counts, c->me);
        return direct_reduce(w, begin, begin + ku_move_block_count(w, c->me));
    case KU_COLL_BROADCAST:
        ku_move_deliver(w, out_of(w, c->me), out_of(w, w->coll.root), w->coll.count * each);
        return 0;
    case KU_COLL_GATHER: /* each rank stores its block at the root */
        ku_move_deliver(w, out_of(w, w->coll.root) + block_begin(w, w->coll.counts, c->me) * each,
                        in_of(w, c->me), ku_move_block_count(w, c->me) * each);
        return 0;
    case KU_COLL_SCATTER:
        ku_move_deliver(w, out_of(w, c->me),
                        in_of(w, w->coll.root) + block_begin(w, w->coll.counts, c->me) * each,
                        ku_move_block_count(w, c->me) * each);
        return 0;
    case KU_COLL_ALL_GATHER:
        for (int i = 0; i < c->n; i++)
            ku_move_deliver(w, out_of(w, c->me) + block_begin(w, w->coll.counts, i) * each,
                            in_of(w, i), ku_move_block_count(w, i) * each);
        return 0;
    case KU_COLL_ALL_TO_ALL:
        for (int i = 0; i < c->n; i++)
            ku_move_deliver(w, out_of(w, c->me) + i * w->coll.count * each,
                            in_of(w, i) + c->me * w->coll.count * each, w->coll.count * each);
        return 0;
    case KU_COLL_BARRIER:
    case KU_COLL_SEND:
    case KU_COLL_RECV:
    case KU_COLL_INTERNAL:
        break;
    }
    return 0;
}

/* Elements of the current piece, for a block of `count` */
static int64_t piece_of(const struct ku_work *w, int64_t count)
{
    int64_t left = count - w->piece * w->piece_count;
    return left < 0 ? 0 : min64(left, w->piece_count);
}

/* Whether this rank must stage its own input: to scale it, or to align it */
static bool stages_own(const struct ku_work *w)
{
    return w->coll.reduce == KUMI_PREMUL_SUM || (uintptr_t)w->coll.in % each_bytes(w) != 0;
}

/*
 * Sum `count` elements at `window` of the stages' piece. This rank's own input begins at element
 * `own`.
 */
static void staged_sum(struct ku_work *w, struct operands *o, int64_t window, int64_t own,
                       int64_t count)
{
    size_t each = each_bytes(w);
    KU_ASSERT(window >= 0 && (window + count) * (int64_t)each <= KU_STAGE_BYTES);
    for (int i = 0; i < w->comm->n; i++)
        o->src[i] = ku_move_stage(w, i) + (size_t)window * each;
    if (!stages_own(w))
        o->src[w->comm->me] = (const unsigned char *)w->coll.in + (size_t)own * each;
    reduce(w, o, NULL, count);
}

/*
 * all_reduce and reduce: sum this rank's slice of the piece into its output and into the next piece
 * of its stage.
 */
static void staged_slice(struct ku_work *w)
{
    struct operands o;
    int64_t each = (int64_t)each_bytes(w), first = w->piece * w->piece_count, begin, end;
    slice(w, piece_of(w, w->coll.count), 0, &begin, &end);
    if (begin == end)
        return;
    o.n_dst = o.n_streamed = 0;
    if (w->coll.kind == KU_COLL_ALL_REDUCE || w->comm->me == w->coll.root)
        o.dst[o.n_dst++] = (unsigned char *)w->coll.out + (first + begin) * each;
    w->stage++;
    if (w->coll.kind == KU_COLL_ALL_REDUCE || w->comm->me != w->coll.root) {
        o.dst[o.n_dst++] = ku_move_stage(w, w->comm->me) + begin * each;
        o.n_streamed = (end - begin) * each >= KU_STREAM_BYTES;
    }
    w->stage--;
    staged_sum(w, &o, begin, first + begin, end - begin);
}

/* The near member that the data of a broadcast or scatter comes from */
static int near_root(const struct ku_work *w)
{
    if (w->path == KU_PATH_FAR_STAGED_BROADCAST)
        return ku_far_broadcaster(w);
    return ku_comm_near_of(w->comm, w->coll.root);
}

static void staged_copies(struct ku_work *w)
{
    struct ku_comm *c = w->comm;
    int64_t each = (int64_t)each_bytes(w), first = w->piece * w->piece_count;
    const unsigned char *in = w->coll.in;
    unsigned char *out = w->coll.out;
    int to_all = w->coll.kind == KU_COLL_ALL_TO_ALL;
    const int64_t *counts = to_all ? w->coll.recv_counts : w->coll.counts;
    for (int k = 0; k < c->near.n; k++) {
        const int i = ku_comm_member(c, k);
        int64_t count = counts ? counts[i] : w->coll.count;
        if (piece_of(w, count) == 0) /* a buffer of no elements may be NULL */
            continue;
        const unsigned char *from =
            ku_move_stage(w, k) + (to_all ? c->near.me * w->piece_count : 0) * each;
        if (i == c->me)
            from = in + ((to_all ? block_begin(w, w->coll.counts, i) : 0) + first) * each;
        ku_move_deliver(w, out + (block_begin(w, counts, i) + first) * each, from,
                        piece_of(w, count) * each);
    }
}

static void staged_step(struct ku_work *w)
{
    struct ku_comm *c = w->comm;
    int64_t each = (int64_t)each_bytes(w), first = w->piece * w->piece_count;
    int64_t mine = piece_of(w, ku_move_block_count(w, c->me));
    unsigned char *out = w->coll.out ? (unsigned char *)w->coll.out + first * each : NULL;
    int am_root = c->me == w->coll.root;
    switch (w->coll.kind) {
    case KU_COLL_ALL_REDUCE:
    case KU_COLL_REDUCE:
        staged_slice(w);
        return;
    case KU_COLL_REDUCE_SCATTER:
        if (mine) {
            struct operands o;
            o.n_dst = 1;
            o.n_streamed = 0;
            o.dst[0] = out;
            staged_sum(w, &o, c->me * w->piece_count, block_begin(w, w->coll.counts, c->me) + first,
                       mine);
        }
        return;
    case KU_COLL_BROADCAST:
        if (!am_root)
            ku_move_deliver(w, out, ku_move_stage(w, near_root(w)),
                            piece_of(w, w->coll.count) * each);
        return;
    case KU_COLL_SCATTER:
        if (am_root)
            ku_move_deliver(w, out,
                            (const unsigned char *)w->coll.in +
                                (block_begin(w, w->coll.counts, c->me) + first) * each,
                            mine * each);
        else
            ku_move_deliver(w, out,
                            ku_move_stage(w, near_root(w)) + c->near.me * w->piece_count * each,
                            mine * each);
        return;
    case KU_COLL_GATHER:
        if (am_root)
            staged_copies(w);
        return;
    case KU_COLL_ALL_GATHER:
    case KU_COLL_ALL_TO_ALL:
        staged_copies(w);
        return;
    case KU_COLL_BARRIER:
    case KU_COLL_SEND:
    case KU_COLL_RECV:
    case KU_COLL_INTERNAL:
        return;
    }
}

int ku_move_step(struct ku_work *w)
{
    if (w->path == KU_PATH_DIRECT)
        return direct_step(w);
    if (w->path == KU_PATH_FAR_STAGED_GATHER) {
        ku_far_collect(w);
        return 0;
    }
    if (w->path == KU_PATH_FAR_STAGED_BROADCAST && w->coll.n_parts) {
        ku_far_broadcast_parts(w);
        return 0;
    }
    if (w->path != KU_PATH_PROGRAM && w->path != KU_PATH_FAR_ALL_GATHER &&
        w->path != KU_PATH_FAR_HOST_GATHER) {
        staged_step(w);
        return 0;
    }
    return w->coll.kind == KU_COLL_ALL_REDUCE || w->coll.kind == KU_COLL_REDUCE_SCATTER
               ? program_sums(w)
               : program_copies(w);
}

/* Fill one section of this rank's stage from its input; scales it for premul_sum. */
static void fill_window(struct ku_work *w, int64_t window, int64_t from, int64_t count)
{
    int64_t each = (int64_t)each_bytes(w);
    KU_ASSERT(window >= 0 && (window + count) * each <= KU_STAGE_BYTES);
    unsigned char *to = ku_move_stage(w, w->comm->near.me) + window * each;
    const unsigned char *in = w->coll.kind == KU_COLL_BROADCAST ? w->coll.out : w->coll.in;
    if (w->coll.reduce == KUMI_PREMUL_SUM)
        ku_sum_scale(to, in + from * each, count, w->coll.dtype, w->coll.scale);
    else
        ku_stream_hand_over(to, in + from * each, (size_t)(count * each));
    w->comm->job->comm->staged_bytes += (uint64_t)(count * each);
}

/* With members on other hosts all inputs of a sum lie in stages, this member's too. */
static void fill_whole(struct ku_work *w)
{
    const int64_t first = w->piece * w->piece_count;
    if (w->path == KU_PATH_FAR_STAGED_SUM) {
        fill_window(w, 0, first, piece_of(w, w->coll.count));
        return;
    }
    int64_t before = 0;
    for (int i = 0; i < w->comm->n; i++) {
        const int64_t block = ku_move_block_count(w, i), count = piece_of(w, block);
        if (count)
            fill_window(w, i * w->piece_count, before + first, count);
        before += block;
    }
}

void ku_move_fill(struct ku_work *w)
{
    struct ku_comm *c = w->comm;
    if (w->path == KU_PATH_FAR_STAGED_GATHER ||
        (w->path == KU_PATH_FAR_STAGED_BROADCAST && w->coll.n_parts)) {
        ku_far_fill(w);
        return;
    }
    if (w->path == KU_PATH_FAR_STAGED_SUM || w->path == KU_PATH_FAR_STAGED_SCATTER) {
        fill_whole(w);
        return;
    }
    int64_t first = w->piece * w->piece_count;
    int by_slices = w->coll.kind == KU_COLL_ALL_REDUCE || w->coll.kind == KU_COLL_REDUCE;
    int by_windows = w->coll.kind == KU_COLL_REDUCE_SCATTER || w->coll.kind == KU_COLL_SCATTER ||
                     w->coll.kind == KU_COLL_ALL_TO_ALL;
    int sums = by_slices || w->coll.kind == KU_COLL_REDUCE_SCATTER;
    if (!by_slices && !by_windows) {
        int64_t count = piece_of(w, ku_move_block_count(w, c->me));
        /* of a broadcast between hosts the other broadcasters receive the piece into their stage */
        const bool is_needed =
            w->path == KU_PATH_FAR_STAGED_BROADCAST ? c->me == w->coll.root : c->near.n > 1;
        if (count && is_needed)
            fill_window(w, 0, first, count);
        return;
    }
    for (int k = 0; k < c->near.n; k++) {
        const int i = ku_comm_member(c, k);
        int64_t begin = k * w->piece_count, from = block_begin(w, w->coll.counts, i) + first;
        int64_t end = begin + piece_of(w, ku_move_block_count(w, i));
        if (i == c->me && !(sums && stages_own(w)))
            continue;
        if (by_slices) {
            ku_blocks_range(piece_of(w, w->coll.count), LINE_BYTES / (int64_t)each_bytes(w), 0,
                            c->n, i, &begin, &end);
            from = first + begin;
        }
        if (end > begin)
            fill_window(w, begin, from, end - begin);
    }
}

void ku_move_drain(struct ku_work *w)
{
    int64_t each = (int64_t)each_bytes(w), count = piece_of(w, w->coll.count), begin, end;
    const struct ku_comm *c = w->comm;
    unsigned char *out = (unsigned char *)w->coll.out + w->piece * w->piece_count * each;
    if (w->coll.kind == KU_COLL_REDUCE && w->comm->me != w->coll.root)
        return;
    if (w->path == KU_PATH_FAR_STAGED_SUM) {
        ku_far_drain(w);
        return;
    }
    for (int i = 0; i < c->n; i++) {
        ku_blocks_range(count, LINE_BYTES / each, 0, c->n, i, &begin, &end);
        if (i == c->me || begin == end)
            continue;
        if (w->coll.in == w->coll.out) /* still in cache from staging */
            copy(out + begin * each, ku_move_stage(w, i) + begin * each, (end - begin) * each);
        else
            ku_move_deliver(w, out + begin * each, ku_move_stage(w, i) + begin * each,
                            (end - begin) * each);
        w->comm->job->comm->staged_bytes += (uint64_t)((end - begin) * each);
    }
}

/* Write this rank's payload, for works on the inline path. */
void ku_move_payload(struct ku_work *w, struct ku_entry *entry)
{
    const struct ku_coll *coll = &w->coll;
    const void *in = coll->n_parts
                         ? ku_move_ref(w->comm->job, &coll->part->in, w->comm->job->local_rank)
                         : coll->in;
    if (coll->kind == KU_COLL_BROADCAST)
        in = coll->out;
    int64_t count = coll->n_parts ? w->total : ku_coll_inline_count(coll, w->comm->n);
    if (coll->kind == KU_COLL_SCATTER && w->comm->me != coll->root)
        return;
    KU_ASSERT(count >= 0 && count * (int64_t)each_bytes(w) <= KU_INLINE_BYTES);
    copy(entry->payload, in, count * (int64_t)each_bytes(w));
    if (coll->reduce == KUMI_PREMUL_SUM && count)
        ku_sum_scale(entry->payload, entry->payload, count, coll->dtype, coll->scale);
}

/* Reduce the payloads of all members, from `mine` on in each. */
static void inline_reduce(struct ku_work *w, int64_t mine, unsigned char *out)
{
    const struct ku_coll *coll = &w->coll;
    struct operands o;
    for (int i = 0; i < w->comm->n; i++)
        o.src[i] = entry_of(w, i)->payload + mine;
    o.dst[0] = out;
    o.n_dst = 1;
    o.n_streamed = 0;
    reduce(w, &o,
           coll->n_parts && coll->part->has_addend
               ? ku_move_ref(w->comm->job, &coll->part->addend, w->comm->job->local_rank)
               : NULL,
           w->total);
}

void ku_move_inline(struct ku_work *w)
{
    struct ku_comm *c = w->comm;
    const struct ku_coll *coll = &w->coll;
    int64_t bytes = w->total * (int64_t)each_bytes(w);
    unsigned char *out =
        coll->n_parts ? ku_move_ref(c->job, &coll->part->out, c->job->local_rank) : coll->out;
    KU_ASSERT(bytes <= KU_INLINE_BYTES);
    if (!bytes)
        return;
    if (w->path == KU_PATH_FAR_INLINE_GATHER) {
        ku_far_inline_result(w);
        return;
    }
    int64_t mine = 0;                    /* offset of this rank's block in a payload */
    if (w->path == KU_PATH_FAR_INLINE) { /* the first near member has the result of all */
        if (coll->kind == KU_COLL_REDUCE_SCATTER || coll->kind == KU_COLL_SCATTER)
            mine = c->me * bytes;
        if (coll->kind != KU_COLL_REDUCE || c->me == coll->root)
            copy(out, entry_of(w, 0)->payload + mine, bytes);
        return;
    }
    switch (coll->kind) {
    case KU_COLL_REDUCE_SCATTER:
        mine = c->me * bytes;
        __attribute__((fallthrough));
    case KU_COLL_REDUCE:
    case KU_COLL_ALL_REDUCE:
        if (coll->kind != KU_COLL_REDUCE || c->me == coll->root)
            inline_reduce(w, mine, out);
        return;
    case KU_COLL_BROADCAST:
        if (c->me != coll->root)
            copy(out, entry_of(w, coll->root)->payload, bytes);
        return;
    case KU_COLL_SCATTER:
        copy(out, entry_of(w, coll->root)->payload + c->me * bytes, bytes);
        return;
    case KU_COLL_ALL_TO_ALL:
        mine = c->me * bytes;
        __attribute__((fallthrough));
    case KU_COLL_GATHER:
    case KU_COLL_ALL_GATHER:
    case KU_COLL_HASH:
    case KU_COLL_SPLIT:
        if (coll->kind == KU_COLL_GATHER && c->me != coll->root)
            return;
        for (int i = 0; i < c->n; i++)
            copy(out + i * bytes, entry_of(w, i)->payload + mine, bytes);
        return;
    case KU_COLL_BARRIER:
    case KU_COLL_SEND:
    case KU_COLL_RECV:
    case KU_COLL_LEAVE:
    case KU_COLL_ARENA:
    case KU_COLL_FREE:
    case KU_N_COLL_KINDS:
        break;
    }
}

/*
 * all_to_all_v: this rank's stage begins with [2][near.n] counts, sent to and received from each
 * near member. Those of members on other hosts come with the messages.
 */
_Static_assert(2 * KU_MAX_LOCAL * sizeof(int64_t) <= KU_STAGE_BYTES, "the counts fit");

static int64_t *published(const struct ku_work *w, int k)
{
    return (int64_t *)(void *)ku_move_stage(w, k);
}

void ku_move_publish(struct ku_work *w)
{
    const struct ku_comm *c = w->comm;
    int64_t *sent = published(w, c->near.me), *received = sent + c->near.n;
    KU_ASSERT(w->path == KU_PATH_STAGED_V);
    for (int k = 0; k < c->near.n; k++) {
        sent[k] = w->coll.counts[ku_comm_member(c, k)];
        received[k] = w->coll.recv_counts[ku_comm_member(c, k)];
    }
}

int ku_move_counts(struct ku_work *w)
{
    struct ku_comm *c = w->comm;
    int64_t most = 0;
    KU_ASSERT(w->path == KU_PATH_STAGED_V && w->piece_count > 0);
    for (int j = 0; j < c->near.n; j++) {
        const int64_t *sent = published(w, j);
        for (int k = 0; k < c->near.n; k++) {
            const int64_t expected = published(w, k)[c->near.n + j];
            if (sent[k] != expected) {
                KU_ERR_SCOPE(KUMI_EMISMATCH, KUMI_SCOPE_JOB,
                             "mismatched collectives: comm %s: all_to_all_v: rank %d sends %lld "
                             "elements to rank %d, which expects %lld; exchange the counts first",
                             c->name, ku_comm_rank(c, ku_comm_member(c, j)), (long long)sent[k],
                             ku_comm_rank(c, ku_comm_member(c, k)), (long long)expected);
                return ku_job_raise(c->job, c->job->rank);
            }
            most = sent[k] > most ? sent[k] : most;
        }
    }
    w->n_pieces = (most + w->piece_count - 1) / w->piece_count;
    return 0;
}
