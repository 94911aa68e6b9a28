/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Static description of collectives: names, fingerprints, the choice of the path, and the ops of
 * each path. Nothing here runs a collective.
 */
#include "comm/coll.h"

#include "base/err.h"
#include "comm/area.h"
#include "comm/sum.h"

#include <stddef.h>

static const char *const kind_name[KU_N_COLL_KINDS] = {[KU_COLL_BARRIER] = "barrier",
                                                       [KU_COLL_ALL_REDUCE] = "all_reduce",
                                                       [KU_COLL_REDUCE_SCATTER] = "reduce_scatter",
                                                       [KU_COLL_ALL_GATHER] = "all_gather",
                                                       [KU_COLL_BROADCAST] = "broadcast",
                                                       [KU_COLL_REDUCE] = "reduce",
                                                       [KU_COLL_GATHER] = "gather",
                                                       [KU_COLL_SCATTER] = "scatter",
                                                       [KU_COLL_ALL_TO_ALL] = "all_to_all",
                                                       [KU_COLL_SEND] = "send",
                                                       [KU_COLL_RECV] = "recv",
                                                       [KU_COLL_HASH] = "check_hash",
                                                       [KU_COLL_LEAVE] = "leave",
                                                       [KU_COLL_ARENA] = "alloc",
                                                       [KU_COLL_SPLIT] = "split",
                                                       [KU_COLL_FREE] = "free"};

const char *ku_coll_kind_name(enum ku_coll_kind kind)
{
    return (unsigned)kind < KU_N_COLL_KINDS ? kind_name[kind] : "failure";
}

bool ku_coll_has_elements(enum ku_coll_kind kind)
{
    return kind != KU_COLL_BARRIER && kind != KU_COLL_LEAVE && kind != KU_COLL_ARENA &&
           kind != KU_COLL_FREE;
}

static bool is_reduction(enum ku_coll_kind kind)
{
    return kind == KU_COLL_ALL_REDUCE || kind == KU_COLL_REDUCE || kind == KU_COLL_REDUCE_SCATTER;
}

static bool has_root(enum ku_coll_kind kind)
{
    return kind == KU_COLL_BROADCAST || kind == KU_COLL_REDUCE || kind == KU_COLL_GATHER ||
           kind == KU_COLL_SCATTER;
}

static bool is_p2p(enum ku_coll_kind kind)
{
    return kind == KU_COLL_SEND || kind == KU_COLL_RECV;
}

uint64_t ku_coll_what(const struct ku_coll *coll)
{
    uint64_t what = (uint64_t)coll->kind | (uint64_t)coll->dtype << 8 | (uint64_t)coll->wire << 12;
    if (is_reduction(coll->kind))
        what |= (uint64_t)coll->reduce << 16;
    if (has_root(coll->kind)) {
        KU_ASSERT(coll->root >= 0 &&
                  coll->root < 1 << 24); /* as many ranks as a launcher may name */
        what |= (uint64_t)coll->root << 24;
    }
    if (coll->counts)
        what |= UINT64_C(1) << 23;
    return what;
}

/* The ops of each path, up to KU_STEP_END */
#define ARRIVED KU_STEP_ARRIVE, KU_STEP_AWAIT
#define FILLED  KU_STEP_FILLED, KU_STEP_AWAIT_FILLED
#define OVER    KU_STEP_DONE, KU_STEP_AWAIT_DONE, KU_STEP_END
enum { MAX_STEPS = 15 };
static const uint8_t steps[][MAX_STEPS] = {
    [KU_PATH_BARRIER] = {ARRIVED, KU_STEP_DONE, KU_STEP_END},
    [KU_PATH_FREE] = {ARRIVED, OVER},
    [KU_PATH_INLINE] = {ARRIVED, KU_STEP_INLINE, KU_STEP_DONE, KU_STEP_END},
    [KU_PATH_POSTED] = {KU_STEP_ARRIVE, KU_STEP_END},
    [KU_PATH_PROGRAM] = {ARRIVED, KU_STEP_MOVE, OVER},
    [KU_PATH_PUBLIC] = {ARRIVED, KU_STEP_CHOOSE, KU_STEP_END},
    [KU_PATH_DIRECT] = {KU_STEP_MOVE, OVER},
    [KU_PATH_STAGED] = {KU_STEP_AWAIT_FREE, KU_STEP_FILL, FILLED, KU_STEP_MOVE, KU_STEP_FREED,
                        KU_STEP_NEXT, KU_STEP_DONE, KU_STEP_END},
    [KU_PATH_STAGED_SUM] = {KU_STEP_AWAIT_FREE, KU_STEP_FILL, FILLED, KU_STEP_MOVE, KU_STEP_FREED,
                            KU_STEP_RESULT, FILLED, KU_STEP_DRAIN, KU_STEP_FREED, KU_STEP_NEXT,
                            KU_STEP_DONE, KU_STEP_END},
    [KU_PATH_STAGED_V] = {KU_STEP_AWAIT_FREE, KU_STEP_PUBLISH, FILLED, KU_STEP_COUNTS,
                          KU_STEP_FREED, KU_STEP_CHOOSE, KU_STEP_END},
    [KU_PATH_P2P] = {KU_STEP_P2P, KU_STEP_END},
    [KU_PATH_FAR_BARRIER] = {ARRIVED, KU_STEP_FAR_SMALL, KU_STEP_FAR_READY, KU_STEP_AWAIT_FAR,
                             KU_STEP_DONE, KU_STEP_END},
    [KU_PATH_FAR_FREE] = {ARRIVED, KU_STEP_FAR_SMALL, KU_STEP_FAR_READY, KU_STEP_AWAIT_FAR, OVER},
    [KU_PATH_FAR_INLINE] = {ARRIVED, KU_STEP_FAR_SMALL, KU_STEP_FAR_READY, KU_STEP_AWAIT_FAR,
                            KU_STEP_INLINE, KU_STEP_DONE, KU_STEP_END},
    [KU_PATH_FAR_INLINE_GATHER] = {ARRIVED, KU_STEP_TAKE_PIECE, KU_STEP_AWAIT_FREE,
                                   KU_STEP_FAR_SMALL, FILLED, KU_STEP_INLINE, KU_STEP_FREED,
                                   KU_STEP_DONE, KU_STEP_END},
    [KU_PATH_FAR_ALL_REDUCE] = {ARRIVED, KU_STEP_FAR_REDUCE, KU_STEP_FAR_GATHER, OVER},
    [KU_PATH_FAR_REDUCE_SCATTER] = {ARRIVED, KU_STEP_FAR_REDUCE, OVER},
    [KU_PATH_FAR_HOST_SCATTER] = {ARRIVED, KU_STEP_FAR_REDUCE, KU_STEP_FAR_GATHER, OVER},
    [KU_PATH_FAR_ALL_GATHER] = {ARRIVED, KU_STEP_FAR_GATHER, KU_STEP_MOVE, OVER},
    [KU_PATH_FAR_HOST_GATHER] = {ARRIVED, KU_STEP_FAR_GATHER, KU_STEP_MOVE, OVER},
    [KU_PATH_FAR_STAGED_GATHER] = {KU_STEP_AWAIT_FREE, KU_STEP_FILL, KU_STEP_FAR_GATHER, FILLED,
                                   KU_STEP_MOVE, KU_STEP_FREED, KU_STEP_NEXT, KU_STEP_DONE,
                                   KU_STEP_END},
    [KU_PATH_FAR_STAGED_SUM] = {KU_STEP_AWAIT_FREE, KU_STEP_FILL, FILLED, KU_STEP_FAR_REDUCE,
                                KU_STEP_FAR_GATHER, KU_STEP_FREED, KU_STEP_RESULT, FILLED,
                                KU_STEP_DRAIN, KU_STEP_FREED, KU_STEP_NEXT, KU_STEP_DONE,
                                KU_STEP_END},
    [KU_PATH_FAR_LONE_SUM] = {KU_STEP_FAR_REDUCE, KU_STEP_FAR_GATHER, OVER},
    [KU_PATH_FAR_STAGED_SCATTER] = {KU_STEP_AWAIT_FREE, KU_STEP_FILL, FILLED, KU_STEP_FAR_REDUCE,
                                    KU_STEP_FREED, KU_STEP_NEXT, KU_STEP_DONE, KU_STEP_END},
    [KU_PATH_FAR_STAGED_BROADCAST] = {KU_STEP_AWAIT_FREE, KU_STEP_FILL, KU_STEP_FAR_BROADCAST,
                                      FILLED, KU_STEP_MOVE, KU_STEP_FREED, KU_STEP_NEXT,
                                      KU_STEP_DONE, KU_STEP_END},
    [KU_PATH_FAR_PAIRS] = {KU_STEP_FAR_PAIRS, KU_STEP_CHOOSE, KU_STEP_END},
    [KU_PATH_FAR_MESSAGE] = {KU_STEP_FAR_MESSAGE, KU_STEP_END},
};

const uint8_t *ku_coll_steps(enum ku_coll_path path)
{
    return steps[path];
}

int64_t ku_coll_inline_count(const struct ku_coll *c, int n)
{
    int has_blocks = c->kind == KU_COLL_REDUCE_SCATTER || c->kind == KU_COLL_SCATTER ||
                     c->kind == KU_COLL_ALL_TO_ALL;
    return has_blocks ? c->count * n : c->count;
}

/*
 * Whether every rank's data fits in its arrival. The product cannot overflow: ku_coll_check limits
 * count to INT64_MAX / 8 / n.
 */
static bool fits_inline(const struct ku_coll *c, int n)
{
    return !c->counts &&
           ku_coll_inline_count(c, n) <= KU_INLINE_BYTES / (int64_t)kumi_dtype_bytes(c->dtype);
}

enum ku_coll_path ku_coll_path(const struct ku_coll *c, int n, int me)
{
    KU_ASSERT(me >= 0 && me < n);
    switch (c->kind) {
    case KU_COLL_SEND:
    case KU_COLL_RECV:
        return KU_PATH_P2P;
    case KU_COLL_BARRIER:
    case KU_COLL_LEAVE:
    case KU_COLL_ARENA:
        return KU_PATH_BARRIER;
    case KU_COLL_FREE:
        return KU_PATH_FREE;
    case KU_COLL_HASH:
    case KU_COLL_SPLIT:
        return KU_PATH_INLINE;
    case KU_COLL_ALL_REDUCE:
    case KU_COLL_REDUCE_SCATTER:
    case KU_COLL_ALL_GATHER:
    case KU_COLL_BROADCAST:
    case KU_COLL_REDUCE:
    case KU_COLL_GATHER:
    case KU_COLL_SCATTER:
    case KU_COLL_ALL_TO_ALL:
    case KU_N_COLL_KINDS:
        break;
    }
    if (c->n_parts == 1 && c->kind == KU_COLL_ALL_REDUCE &&
        c->part->count <= KU_INLINE_BYTES / (int64_t)kumi_dtype_bytes(c->dtype))
        return KU_PATH_INLINE;
    if (c->n_parts)
        return KU_PATH_PROGRAM;
    if (!fits_inline(c, n))
        return KU_PATH_PUBLIC;
    return c->kind == KU_COLL_BROADCAST && me == c->root ? KU_PATH_POSTED : KU_PATH_INLINE;
}

/* Whether all payloads together fit in the piece of one stage */
static bool fits_stage(const struct ku_coll *c, int n)
{
    const int64_t bytes = ku_coll_inline_count(c, n) * (int64_t)kumi_dtype_bytes(c->dtype);
    return bytes <= KU_STAGE_BYTES / n;
}

int64_t ku_coll_piece_count(int n_sections, int each)
{
    KU_ASSERT(n_sections > 0 && each > 0);
    const int64_t bytes = KU_STAGE_BYTES / n_sections, whole = bytes / 64 * 64; /* lines */
    return (whole ? whole : bytes) / each;
}

/* Whether an all_gather of parts leaves one vector for the members of each host */
static bool is_host_gather(const struct ku_coll *c)
{
    return c->kind == KU_COLL_ALL_GATHER && c->n_parts && c->part->out.flags & KU_ARENA_COMMON;
}

static enum ku_coll_path far_program_path(const struct ku_coll *c, int max_near)
{
    switch (c->kind) {
    case KU_COLL_REDUCE_SCATTER:
        return c->n_owners ? KU_PATH_FAR_HOST_SCATTER : KU_PATH_FAR_REDUCE_SCATTER;
    case KU_COLL_ALL_REDUCE:
        return KU_PATH_FAR_ALL_REDUCE;
    case KU_COLL_ALL_GATHER:
        return is_host_gather(c) ? KU_PATH_FAR_HOST_GATHER
               : max_near == 1   ? KU_PATH_FAR_ALL_GATHER
                                 : KU_PATH_PUBLIC;
    default:
        return KU_PATH_PUBLIC;
    }
}

enum ku_coll_path ku_coll_far_path(const struct ku_coll *c, int n, int max_near)
{
    switch (ku_coll_path(c, n, 0)) {
    case KU_PATH_P2P:
        return KU_PATH_FAR_MESSAGE;
    case KU_PATH_BARRIER:
        return KU_PATH_FAR_BARRIER;
    case KU_PATH_FREE:
        return KU_PATH_FAR_FREE;
    case KU_PATH_PROGRAM:
        return far_program_path(c, max_near);
    case KU_PATH_INLINE:
    case KU_PATH_POSTED:
        break;
    default:
        return KU_PATH_PUBLIC;
    }
    if (is_reduction(c->kind) || c->kind == KU_COLL_BROADCAST || c->kind == KU_COLL_SCATTER)
        return KU_PATH_FAR_INLINE;
    return fits_stage(c, n) ? KU_PATH_FAR_INLINE_GATHER : KU_PATH_PUBLIC;
}

enum ku_coll_path ku_coll_far_choice(const struct ku_coll *c, int max_near)
{
    switch (c->kind) {
    case KU_COLL_ALL_REDUCE:
        return max_near == 1 ? KU_PATH_FAR_LONE_SUM : KU_PATH_FAR_STAGED_SUM;
    case KU_COLL_REDUCE:
        return KU_PATH_FAR_STAGED_SUM;
    case KU_COLL_REDUCE_SCATTER:
        return KU_PATH_FAR_STAGED_SCATTER;
    case KU_COLL_BROADCAST:
        return KU_PATH_FAR_STAGED_BROADCAST;
    case KU_COLL_GATHER:
    case KU_COLL_SCATTER:
    case KU_COLL_ALL_TO_ALL:
        return KU_PATH_FAR_PAIRS;
    default: /* all_gather, and internal ones of many ranks, which are gathers too */
        return KU_PATH_FAR_STAGED_GATHER;
    }
}

static int check_parts(const struct ku_comm *comm, const struct ku_coll *c)
{
    const char *kind = ku_coll_kind_name(c->kind);
    if (c->kind != KU_COLL_ALL_REDUCE && c->kind != KU_COLL_REDUCE_SCATTER &&
        c->kind != KU_COLL_ALL_GATHER && c->kind != KU_COLL_BROADCAST)
        return KU_ERR(KUMI_EINVAL, "collective: %s: does not support parts", kind);
    if (c->reduce == KUMI_PREMUL_SUM && is_reduction(c->kind))
        return KU_ERR(KUMI_EINVAL,
                      "collective: %s: premul_sum does not support parts; scale the input first",
                      kind);
    if (c->n_owners &&
        (c->kind != KU_COLL_REDUCE_SCATTER || c->see || c->n_owners != ku_comm_host_members(comm)))
        return KU_ERR(KUMI_EINVAL,
                      "collective: %s: %d shards on each host; they need a reduce_scatter over "
                      "several hosts of as many members each",
                      kind, c->n_owners);
    if (is_host_gather(c) && ku_comm_host_members(comm) == 0)
        return KU_ERR(KUMI_EINVAL,
                      "collective: %s: into memory that the ranks of each host share; it needs "
                      "several hosts of as many members each",
                      kind);
    for (int i = 0; i < c->n_parts; i++) {
        const struct ku_coll_part *p = &c->part[i];
        const bool is_common = (p->in.flags & KU_ARENA_COMMON) != 0;
        if (is_host_gather(c) && (p->out.flags != c->part->out.flags ||
                                  (is_common && (p->in.arena != p->out.arena ||
                                                 p->in.off != p->out.off || p->kept & KU_KEPT_IN))))
            return KU_ERR(KUMI_EINVAL,
                          "collective: %s: part %d: not gathered in place; the ranks share the "
                          "vector, and each writes its shard there",
                          kind, i);
        if (p->count < 0 || p->first_block < 0 || p->block_count < 0 || p->row < 0 ||
            (p->row && ku_comm_has_far(comm)))
            return KU_ERR(KUMI_EINVAL,
                          "collective: %s: part %d: count %lld, first_block %lld, block_count %d, "
                          "row %lld",
                          kind, i, (long long)p->count, (long long)p->first_block,
                          (int)p->block_count, (long long)p->row);
        int outs = c->kind == KU_COLL_ALL_REDUCE ? p->out.flags : 0;
        if (((p->in.flags | outs) & KU_ARENA_PRIVATE) && comm->n > 1 &&
            ku_coll_path(c, comm->n, comm->me) != KU_PATH_INLINE)
            return KU_ERR(KUMI_EINVAL,
                          "collective: %s: part %d: private memory; parts must be in arenas", kind,
                          i);
        if ((p->in.flags & KU_ARENA_COMMON) && comm->n > 1 && is_reduction(c->kind))
            return KU_ERR(
                KUMI_EINVAL,
                "collective: %s: part %d: its input is shared by the ranks; give each rank its own",
                kind, i);
    }
    return 0;
}

static int check_counts(const struct ku_comm *comm, const struct ku_coll *c)
{
    int64_t limit = INT64_MAX / 8 / comm->n; /* n blocks of 8-byte elements fit */
    if (c->count < 0 || c->count > limit)
        return KU_ERR(KUMI_EINVAL, "collective: %s: count: %lld; give 0 to %lld",
                      ku_coll_kind_name(c->kind), (long long)c->count, (long long)limit);
    for (int i = 0; c->counts && i < comm->n; i++) {
        int64_t r = c->recv_counts ? c->recv_counts[i] : 0;
        if (c->counts[i] < 0 || c->counts[i] > limit || r < 0 || r > limit)
            return KU_ERR(KUMI_EINVAL, "collective: %s: counts[%d]: %lld; give 0 to %lld",
                          ku_coll_kind_name(c->kind), i,
                          (long long)(r < 0 || r > limit ? r : c->counts[i]), (long long)limit);
    }
    if (c->kind == KU_COLL_ALL_TO_ALL && !c->counts != !c->recv_counts)
        return KU_ERR(
            KUMI_EINVAL,
            "collective: all_to_all: one of send and receive counts is missing; give both");
    return 0;
}

int ku_coll_check(const struct ku_comm *comm, const struct ku_coll *c)
{
    KU_ASSERT(comm->me >= 0 && comm->me < comm->n && comm->n <= comm->job->n);
    if ((unsigned)c->kind >= KU_N_COLL_KINDS)
        return KU_ERR(KUMI_EINVAL, "collective: kind: %d: unknown", (int)c->kind);
    if (!kumi_dtype_bytes(c->dtype) || !kumi_dtype_bytes(c->wire))
        return KU_ERR(KUMI_EINVAL, "collective: %s: dtype: %d: unknown", ku_coll_kind_name(c->kind),
                      (int)c->dtype);
    if ((has_root(c->kind) || is_p2p(c->kind)) && (c->root < 0 || c->root >= comm->n))
        return KU_ERR(KUMI_EINVAL, "collective: %s: %s: %d; comm %s has ranks 0 to %d",
                      ku_coll_kind_name(c->kind), is_p2p(c->kind) ? "peer" : "root", c->root,
                      comm->name, comm->n - 1);
    if (is_reduction(c->kind))
        KU_TRY(ku_sum_check(c->dtype, c->wire, c->reduce));
    return c->n_parts ? check_parts(comm, c) : check_counts(comm, c);
}
