/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_COLL_H
#define KU_COMM_COLL_H

#include "comm/arena.h"
#include "comm/job.h"
#include "kumi/comm.h"
#include "kumi/dtype.h"

/*
 * Collectives. A collective is compiled by a pure function to a list of steps; a work is a cursor
 * over them; one interpreter runs both compiled programs and public calls. A work is compiled once
 * and started any number of times without allocation:
 *
 *     ku_work_init(&w, comm, &coll);   … each step:   ku_work_start(&w); compute; ku_work_wait(&w);
 *
 * Between start and wait the comm's members own the buffers (RUNTIME: ownership in phases). Works
 * of one comm run in start order; several comms and works may be in flight. Canonical order: sums
 * follow the neighbour tree over the comm's ranks, (0,1), (2,3), … then pairs of pairs, an odd one
 * carried up; results depend on n and data alone.
 */
enum ku_coll_kind {
    KU_COLL_BARRIER, /* start = I arrived; wait = all arrived. As `release`: who reads in place
                        starts it, the next writer waits */
    KU_COLL_ALL_REDUCE,
    KU_COLL_REDUCE_SCATTER, /* each rank ends with what it keeps; program form: at its place in
                               `out` */
    KU_COLL_ALL_GATHER,     /* each rank begins with what it keeps */
    KU_COLL_BROADCAST,
    KU_COLL_REDUCE,
    KU_COLL_GATHER,
    KU_COLL_SCATTER,
    KU_COLL_ALL_TO_ALL,
    KU_COLL_SEND,
    KU_COLL_RECV,
    KU_COLL_HASH, /* compares the payload */
    KU_COLL_LEAVE,
    KU_COLL_ARENA,
    KU_COLL_SPLIT,
    KU_N_COLL_KINDS
};
const char *ku_coll_kind_name(enum ku_coll_kind kind); /* "all_reduce" */

/*
 * One piece of a compiled collective: `count` elements at in and out (which may be the same), at
 * the same place on every rank. What a rank keeps of it: ku_blocks_range(count, block_count,
 * first_block, n, rank). A place in `kept` holds each rank's own range alone, not the whole with
 * the range in its place: in of an all_gather, out and addend of a reduce_scatter. What only this
 * rank writes (out of both) may be private.
 */
enum { KU_KEPT_IN = 1, KU_KEPT_OUT = 2, KU_KEPT_ADDEND = 4 };
struct ku_coll_part {
    struct ku_ref in, out;
    struct ku_ref addend; /* reduce_scatter and all_reduce, with has_addend: added to the sum
                             before it is stored; complete where this rank keeps it when the
                             work's turn comes. all_reduce: equal on all ranks */
    int64_t count, first_block;
    int32_t block_count, has_addend;
    int kept; /* mask of KU_KEPT_* */
};

/* Who wants to see sums while they are in the caches: `count` elements of a part that this rank has
 * just summed, from its next unseen block on, whole blocks but for the last of the part. On the
 * rank's own thread, in whatever call moves bytes; must not wait. */
typedef void ku_coll_see(void *ctx, int part, void *sum, int64_t count);

struct ku_coll {
    enum ku_coll_kind kind;
    enum kumi_dtype dtype;
    enum kumi_dtype
        wire; /* dtype, or narrower for f32: then every leaf and node of the tree rounds to it */
    enum kumi_reduce reduce;
    int root;     /* rank in comm: broadcast, reduce, gather, scatter; the peer of send and recv */
    double scale; /* premul_sum: this rank's factor */
    const char *name; /* for messages; NULL: the kind */

    /* Compiled programs: owned memory. Barrier and n_parts = 0 move nothing. Borrowed; outlives the
     * work. */
    const struct ku_coll_part *part;
    int n_parts;
    ku_coll_see *see; /* reduce_scatter: of the blocks that this rank keeps; NULL: nobody */
    void *see_ctx;

    /* Public calls (n_parts = 0): any memory. Blocks are packed in rank order; counts NULL: `count`
     * each. Borrowed until wait returns. */
    const void *in;
    void *out;
    int64_t count;              /* elements of the vector, or of one rank's block */
    const int64_t *counts;      /* v forms: block r has counts[r]; all_to_all: what I send to r */
    const int64_t *recv_counts; /* all_to_all: what I receive from r */
};

struct ku_comm {
    struct ku_job *job;
    uint32_t slot;
    int me, n;
    int first, stride; /* member i is local rank first + i * stride, if list is NULL */
    int *list;
    char name[24];
    struct ku_comm_private *priv;
};
static inline int ku_comm_local(const struct ku_comm *c, int member)
{
    return c->list ? c->list[member] : c->first + member * c->stride;
}

/*
 * Split `parent` by colour; members ordered by (key, rank in parent). color < 0: no comm (*comm =
 * NULL). Collective over parent, which must have no work in flight.
 */
int ku_comm_split(struct ku_comm *parent, int color, int key, const char *name,
                  struct ku_comm **comm);
/* The members first, first + stride, … (n of them) of the world, among which this rank is.
 * Collective over the world: every rank names its own. */
int ku_comm_mesh(struct ku_job *job, const char *name, int first, int stride, int n,
                 struct ku_comm **comm);
/* Collective over comm; takes NULL. */
int ku_comm_destroy(struct ku_comm *comm);
/* All ranks hold the same 64-bit hash, or KUMI_EMISMATCH names who differs. Collective, blocks.
 * `name`: "program train". */
int ku_comm_check_hash(struct ku_comm *comm, const char *name, uint64_t hash);

/* Steps of the interpreter; each may say "not yet". */
enum ku_step_op {
    KU_STEP_ARRIVE,     /* my part is written; my fingerprint, places and payload are out */
    KU_STEP_AWAIT,      /* all arrived; fingerprints agree */
    KU_STEP_CHOOSE,     /* public calls: direct if every rank passed owned memory, else staged */
    KU_STEP_INLINE,     /* result from the payloads */
    KU_STEP_PUBLISH,    /* all_to_all_v: my counts into my stage */
    KU_STEP_COUNTS,     /* all_to_all_v: everybody's counts agree; they give the number of pieces */
    KU_STEP_AWAIT_FREE, /* everybody is done with what my stage held here before */
    KU_STEP_FILL,       /* private input -> my stage */
    KU_STEP_FILLED,
    KU_STEP_AWAIT_FILLED,
    KU_STEP_MOVE, /* sum or copy between the ranks' memory */
    KU_STEP_FREED,
    KU_STEP_RESULT, /* the next piece of the stages holds sums of this one */
    KU_STEP_DRAIN,  /* the others' sums -> private output */
    KU_STEP_NEXT,   /* the next piece, if any */
    KU_STEP_DONE,
    KU_STEP_AWAIT_DONE,
    KU_STEP_P2P,
    KU_STEP_END
};
enum ku_coll_path {
    KU_PATH_BARRIER, /* nothing moves */
    KU_PATH_INLINE,  /* at most KU_INLINE_BYTES a rank */
    KU_PATH_POSTED,  /* of these, a broadcast's root: nobody has anything for it */
    KU_PATH_PROGRAM, /* parts in owned memory */
    KU_PATH_PUBLIC,  /* how a public call begins */
    KU_PATH_DIRECT,  /* how it goes on */
    KU_PATH_STAGED,
    KU_PATH_STAGED_SUM, /* all_reduce, reduce: each rank sums a slice, results go out by the stages
                         */
    KU_PATH_STAGED_V,   /* all_to_all_v */
    KU_PATH_P2P
};
/* The steps of a path, up to KU_STEP_END; and the path on which rank `me` of n begins. Pure. */
const uint8_t *ku_coll_steps(enum ku_coll_path path);
enum ku_coll_path ku_coll_path(const struct ku_coll *coll, int n, int me);
/* Elements that a rank of n sends with its arrival on the inline path. */
int64_t ku_coll_inline_count(const struct ku_coll *coll, int n);
/* Kind, dtype, wire, reduction and root in one word, as fingerprints and the flight recorder carry
 * them (48 bits). */
uint64_t ku_coll_what(const struct ku_coll *coll);
/* Checks arguments. KUMI_EINVAL. */
int ku_coll_check(const struct ku_comm *comm, const struct ku_coll *coll);

enum ku_work_state { KU_WORK_IDLE, KU_WORK_STARTED, KU_WORK_FINISHED };
struct ku_work {
    struct ku_comm *comm;
    struct ku_coll coll;
    const uint8_t *step;
    uint8_t pc, state, path, arrived;
    int missing;  /* member that the current await lacks; those before it are there */
    uint64_t seq; /* of this start on its comm */
    uint64_t what, extra;
    int64_t total; /* elements, for the fingerprint */
    int64_t piece, n_pieces,
        piece_count;            /* staged: current, number, elements per block and piece */
    uint64_t stage, last_stage; /* staged: number of the piece of the stages in use, and of the last
                                   one of this work; counted over the comm's life */
    int64_t part, at;           /* cursor of MOVE: part (or peer) and element in it */
    struct ku_work *next;       /* in the comm's queue */
    struct {
        uint64_t ticket, n_left; /* message number; pieces not yet posted or taken */
        int64_t at;              /* bytes moved */
        uint32_t chunk[2];
        int opened, n_looks;
    } p2p;
};
/* Checks and compiles. `coll` is copied; its arrays are borrowed. Errors: KUMI_EINVAL. */
int ku_work_init(struct ku_work *work, struct ku_comm *comm, const struct ku_coll *coll);
/* My part is written. Never blocks. Errors: the job's root cause. */
int ku_work_start(struct ku_work *work);
/* Advances all works of the rank, then says whether this one is finished: 1, 0, or < 0. */
int ku_work_test(struct ku_work *work);
/* Until the result is complete. Blocks; advances all works of the rank. Errors: KUMI_EPEER,
 * ETIMEDOUT, EMISMATCH: the job's root cause. */
int ku_work_wait(struct ku_work *work);
/* init, start, wait. */
int ku_coll_run(struct ku_comm *comm, const struct ku_coll *coll);
/* Bytes that public calls of this rank copied through stages. */
uint64_t ku_job_staged_bytes(const struct ku_job *job);
/* Time in which this rank moved the bytes of programs, in waits and between tiles. */
int64_t ku_job_moved_ns(const struct ku_job *job);
/* Bytes of floating numbers that it stored for them: sums, to whomever, and copies. */
uint64_t ku_job_moved_bytes(const struct ku_job *job);

#endif
