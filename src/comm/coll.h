/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_COLL_H
#define KU_COMM_COLL_H

#include "base/err.h"
#include "comm/arena.h"
#include "job/job.h"
#include "kumi/comm.h"
#include "kumi/dtype.h"

/*
 * Collectives between the ranks of a host.
 *
 * A collective (struct ku_coll) runs as a work (struct ku_work). A pure function maps it to a path,
 * which is a list of ops (enum ku_step_op); the interpreter in work.c advances a cursor over them.
 * An op that must wait returns "not yet", so any number of works can be in flight without a thread.
 * Compiled programs and public calls use the same interpreter. A work is compiled once and started
 * any number of times without allocation:
 *
 *     ku_work_init(&w, comm, &coll);
 *     for (each step) {
 *         ku_work_start(&w);    writes this rank's arrival: fingerprint, location, small payload
 *         compute();            ku_job_progress() between tiles advances w
 *         ku_work_wait(&w);     spins or sleeps until the result is complete
 *     }
 *
 *     which bytes move            path            buffers
 *     ------------------------    ------------    ---------------------------------------------
 *     payload of the arrival      INLINE          at most 88 bytes per rank
 *     rank r sums slice r of      PROGRAM         parts at equal offsets of an arena
 *       all ranks' buffers        DIRECT          public call, all buffers in arenas
 *     as before, by pieces        STAGED, .._SUM  public call, private memory: through the stages
 *     sender and receiver         P2P             send, recv
 *
 * Every arrival carries a fingerprint of the call. The ranks compare them before a byte of a result
 * is written. Between start and wait the members of the comm own the buffers. Works of one comm run
 * in start order; several comms and works may be in flight.
 *
 * Sums follow the neighbour tree over the comm's ranks: (0,1), (2,3), …, then pairs of pairs; an
 * odd node is carried up. The result depends on n and on the data alone.
 */
enum ku_coll_kind {
    /*
     * start: this rank has arrived; wait: all have arrived. As `release`: readers start it, the
     * next writer waits for it.
     */
    KU_COLL_BARRIER,
    KU_COLL_ALL_REDUCE,
    /* Each rank ends with its own shard; in a program at that shard's offset in `out`. */
    KU_COLL_REDUCE_SCATTER,
    KU_COLL_ALL_GATHER, /* each rank begins with its own shard */
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
    KU_COLL_FREE,
    KU_N_COLL_KINDS
};
/* Case labels of the kinds that only this module starts */
#define KU_COLL_INTERNAL                                                                           \
    KU_COLL_HASH:                                                                                  \
    case KU_COLL_LEAVE:                                                                            \
    case KU_COLL_ARENA:                                                                            \
    case KU_COLL_SPLIT:                                                                            \
    case KU_COLL_FREE:                                                                             \
    case KU_N_COLL_KINDS
const char *ku_coll_kind_name(enum ku_coll_kind kind); /* "all_reduce" */
/* Whether calls of a kind have elements: messages then show dtype and count. */
bool ku_coll_has_elements(enum ku_coll_kind kind);

/*
 * One part of a compiled collective: `count` elements of `in` and `out` (which may be equal), at
 * the same offset on every rank. The shard of a rank is ku_blocks_range(count, block_count,
 * first_block, n, rank). A reference in the mask `kept` points at a buffer that holds the rank's
 * own shard alone; the others point at the whole vector. KU_KEPT_IN is for all_gather, OUT and
 * ADDEND for reduce_scatter. Memory that only this rank writes (`out` of both) may be private.
 * Over several hosts of equal numbers of members, all parts of an all_gather may be in the common
 * range of an arena, `in` where `out` is: each host then has the vector once, and receives it once.
 */
enum { KU_KEPT_IN = 1, KU_KEPT_OUT = 2, KU_KEPT_ADDEND = 4 };
struct ku_coll_part {
    struct ku_ref in, out;
    /*
     * reduce_scatter and all_reduce, with has_addend: added to the sum before it is stored. Its
     * shard of this rank must be complete when the work runs. all_reduce: equal on all ranks.
     */
    struct ku_ref addend;
    int64_t count, first_block;
    int32_t block_count, has_addend;
    int kept; /* mask of KU_KEPT_* */
    /*
     * Parts before this one whose shards come first in the same KU_KEPT_IN or OUT buffer, dense and
     * each as large as this one's: so `off` is equal on all ranks where their shards differ in
     * size. Of comms of one host.
     */
    int64_t row;
};

/*
 * Callback on each reduced block while it is still in cache.
 *
 *   part    index in ku_coll.part
 *   sum     `count` sums of this rank's shard, contiguous after those of the call before; whole
 *           blocks, except at the end of the part
 *
 * Runs on the rank's own thread in whatever call moves bytes. It must not block.
 */
typedef void ku_coll_see(void *ctx, int part, void *sum, int64_t count);

struct ku_coll {
    enum ku_coll_kind kind;
    enum kumi_dtype dtype;
    /* dtype, or narrower for f32 data: then every leaf and node of the tree rounds to it. */
    enum kumi_dtype wire;
    enum kumi_reduce reduce;
    /* Rank in comm: of broadcast, reduce, gather, scatter; the peer of send and recv. */
    int root;
    double scale;     /* premul_sum: this rank's factor */
    const char *name; /* in messages; NULL: the kind */

    /*
     * Compiled programs: owned memory. A barrier has no parts. The array is borrowed and must
     * outlive the work.
     */
    const struct ku_coll_part *part;
    int n_parts;
    ku_coll_see *see; /* reduce_scatter; NULL: none */
    void *see_ctx;
    /*
     * reduce_scatter of parts over hosts with equal numbers of members: 0, or the members of a
     * host. Then a part has as many shards, and member i ends with shard i mod n_owners of the sum
     * over all members: every host has the whole sum, in shards. The order of the sum is that of
     * n members. Without `see`.
     *
     *     2 hosts x 2 members        member   0    1    2    3
     *                                shard    0/2  1/2  0/2  1/2
     */
    int n_owners;

    /*
     * Public calls (n_parts = 0): any memory. Blocks lie packed in rank order. The arrays are
     * borrowed until wait returns.
     */
    const void *in;
    void *out;
    int64_t count; /* elements of the vector, or of one rank's block */
    /* v forms: elements of block r; all_to_all: sent to r; NULL: `count` */
    const int64_t *counts;
    const int64_t *recv_counts; /* all_to_all_v: elements received from r */
};

/*
 * Members are ranks of the job, in the comm's order. Those of this host are its near members, in
 * the same order. With members on several hosts:
 *
 *     member      0      1      2      3             this rank: member 3
 *     rank        1      3      5      7             first 1, stride 2
 *     near                      0      1             near.me 1, near.n 2
 *     local                     1      3             near.first 1, near.stride 2; first_rank 4
 */
struct ku_net_req;
struct ku_comm {
    struct ku_job *job;
    uint32_t slot;
    int me, n;
    int first, stride; /* without `list`, member i is rank first + i * stride */
    int *list;
    struct {
        int me, n;
        int first, stride; /* without `list`, near member k is local rank first + k * stride */
        int *list;
        int begin; /* without `member`, near member k is member begin + k */
        int *member;
    } near;
    char name[24];
    struct ku_comm_private *priv;
};
static inline int ku_comm_rank(const struct ku_comm *c, int member)
{
    return c->list ? c->list[member] : c->first + member * c->stride;
}
/* Local rank of near member k */
static inline int ku_comm_near(const struct ku_comm *c, int k)
{
    return c->near.list ? c->near.list[k] : c->near.first + k * c->near.stride;
}
/* Member of near member k */
static inline int ku_comm_member(const struct ku_comm *c, int k)
{
    return c->near.member ? c->near.member[k] : c->near.begin + k;
}
/* Near member of a member that is on this host */
static inline int ku_comm_near_of(const struct ku_comm *c, int member)
{
    int k = member - c->near.begin;
    if (c->near.member)
        for (k = 0; c->near.member[k] != member; k++)
            continue;
    return k;
}
static inline bool ku_comm_is_near(const struct ku_comm *c, int member)
{
    const int local = ku_comm_rank(c, member) - c->job->first_rank;
    return local >= 0 && local < c->job->local_n;
}
/* Members on each of several hosts; 0: one host, or not as many on each */
int ku_comm_host_members(const struct ku_comm *c);
/* Local rank of a member on this host */
static inline int ku_comm_local(const struct ku_comm *c, int member)
{
    return ku_comm_rank(c, member) - c->job->first_rank;
}
static inline bool ku_comm_has_far(const struct ku_comm *c)
{
    return c->near.n < c->n;
}

/*
 * Split `parent` by colour. The members of a colour are ordered by (key, rank in parent).
 *
 *   color   < 0: this rank gets no comm (*comm = NULL)
 *
 * Collective over parent, which must have no work in flight.
 */
KU_STATUS ku_comm_split(struct ku_comm *parent, int color, int key, const char *name,
                        struct ku_comm **comm);
/*
 * Create the comm of the world's ranks first, first + stride, … (n of them), which include this
 * rank. Collective over the world: every rank gives the comm that it is in.
 */
KU_STATUS ku_comm_mesh(struct ku_job *job, const char *name, int first, int stride, int n,
                       struct ku_comm **comm);
/*
 * Free the comm, also when the job has failed: then it returns the root cause. Takes NULL.
 * Collective over comm, which must have no work in flight: KUMI_EINVAL, and the comm stays.
 */
KU_STATUS ku_comm_destroy(struct ku_comm *comm);
/*
 * Compare a program's hash over the ranks; KUMI_EMISMATCH names a rank that differs. `name` is the
 * program's, for the message. Collective. Blocks.
 */
KU_STATUS ku_comm_check_hash(struct ku_comm *comm, const char *name, uint64_t hash);

/*
 * Ops of the interpreter. The AWAIT ops, MOVE and P2P can return "not yet".
 */
enum ku_step_op {
    KU_STEP_ARRIVE, /* publish fingerprint, locations and payload of this rank */
    KU_STEP_AWAIT,  /* all have arrived, with equal fingerprints */
    /* public calls: DIRECT if all buffers are owned memory, else a staged path */
    KU_STEP_CHOOSE,
    KU_STEP_INLINE,     /* compute the result from the payloads */
    KU_STEP_PUBLISH,    /* all_to_all_v: write this rank's counts to its stage */
    KU_STEP_COUNTS,     /* all_to_all_v: compare all counts; they give the number of pieces */
    KU_STEP_AWAIT_FREE, /* all members have released what this rank's stage held */
    KU_STEP_FILL,       /* copy private input to this rank's stage */
    KU_STEP_FILLED,
    KU_STEP_AWAIT_FILLED,
    KU_STEP_MOVE, /* sum or copy between the ranks' memory */
    KU_STEP_FREED,
    KU_STEP_RESULT, /* the next piece of the stages holds the sums of this one */
    KU_STEP_DRAIN,  /* copy the other ranks' sums to private output */
    KU_STEP_NEXT,   /* go on with the next piece, if any */
    KU_STEP_DONE,
    KU_STEP_AWAIT_DONE,
    KU_STEP_P2P,
    /* comms with members on several hosts, see comm/far.h */
    KU_STEP_FAR_SMALL,  /* the host's first member exchanges payloads with those of other hosts */
    KU_STEP_FAR_READY,  /* this host has what came from the others */
    KU_STEP_AWAIT_FAR,  /* … as all near members say */
    KU_STEP_TAKE_PIECE, /* number one piece of the stages, as CHOOSE does for public calls */
    KU_STEP_FAR_REDUCE, /* sum this member's destinations over all hosts */
    KU_STEP_FAR_GATHER, /* hand out this member's part, receive those of its destinations */
    KU_STEP_FAR_BROADCAST,
    KU_STEP_FAR_PAIRS,   /* blocks to and from the members of other hosts, each directly */
    KU_STEP_FAR_MESSAGE, /* send, recv */
    KU_STEP_END
};
/* Case labels of the ops between hosts, for a switch over the others */
#define KU_STEP_FAR                                                                                \
    KU_STEP_FAR_SMALL:                                                                             \
    case KU_STEP_FAR_READY:                                                                        \
    case KU_STEP_AWAIT_FAR:                                                                        \
    case KU_STEP_TAKE_PIECE:                                                                       \
    case KU_STEP_FAR_REDUCE:                                                                       \
    case KU_STEP_FAR_GATHER:                                                                       \
    case KU_STEP_FAR_BROADCAST:                                                                    \
    case KU_STEP_FAR_PAIRS:                                                                        \
    case KU_STEP_FAR_MESSAGE
enum ku_coll_path {
    KU_PATH_BARRIER, /* no data */
    KU_PATH_FREE,    /* of a comm: a barrier after which no member reads the flags of another */
    KU_PATH_INLINE,  /* at most KU_INLINE_BYTES per rank */
    KU_PATH_POSTED,  /* root of an inline broadcast: does not wait */
    KU_PATH_PROGRAM, /* parts in owned memory */
    KU_PATH_PUBLIC,  /* first part of a public call, up to CHOOSE */
    KU_PATH_DIRECT,  /* second part: owned memory */
    KU_PATH_STAGED,
    /* all_reduce and reduce: each rank sums a slice and hands it out through its stage */
    KU_PATH_STAGED_SUM,
    KU_PATH_STAGED_V, /* all_to_all_v */
    KU_PATH_P2P,
    /* the same with members on several hosts */
    KU_PATH_FAR_BARRIER,
    KU_PATH_FAR_FREE,
    KU_PATH_FAR_INLINE,        /* reductions, broadcast, scatter */
    KU_PATH_FAR_INLINE_GATHER, /* gather, all_gather, all_to_all, internal ones */
    KU_PATH_FAR_ALL_REDUCE,    /* programs */
    KU_PATH_FAR_REDUCE_SCATTER,
    KU_PATH_FAR_HOST_SCATTER,   /* with n_owners */
    KU_PATH_FAR_ALL_GATHER,     /* one near member: received in place */
    KU_PATH_FAR_HOST_GATHER,    /* into memory that the near members share */
    KU_PATH_FAR_STAGED_GATHER,  /* more: through the stages; programs and public calls */
    KU_PATH_FAR_STAGED_SUM,     /* public calls: all_reduce, reduce */
    KU_PATH_FAR_LONE_SUM,       /* public all_reduce, one member on each host: in its output */
    KU_PATH_FAR_STAGED_SCATTER, /* reduce_scatter */
    KU_PATH_FAR_STAGED_BROADCAST,
    KU_PATH_FAR_PAIRS, /* gather, scatter, all_to_all: then STAGED or STAGED_V among near members */
    KU_PATH_FAR_MESSAGE
};
/*
 * The ops of a path, up to KU_STEP_END; and the path on which rank `me` of n begins. Pure
 * functions.
 */
const uint8_t *ku_coll_steps(enum ku_coll_path path);
enum ku_coll_path ku_coll_path(const struct ku_coll *coll, int n, int me);
/* As ku_coll_path, for a comm with members on several hosts, at most max_near of them on one */
enum ku_coll_path ku_coll_far_path(const struct ku_coll *coll, int n, int max_near);
/* What CHOOSE chooses for a public call of such a comm */
enum ku_coll_path ku_coll_far_choice(const struct ku_coll *coll, int max_near);
/*
 * Elements of `each` bytes in a section of a stage that is cut into n_sections. A section begins at
 * a cache line if every section has room for a line. 0: not even one element fits.
 */
int64_t ku_coll_piece_count(int n_sections, int each);
/* Elements in the payload of a rank on the inline path */
int64_t ku_coll_inline_count(const struct ku_coll *coll, int n);
/*
 * Kind, dtype, wire, reduction and root in one value of 48 bits, for fingerprints and the flight
 * recorder
 */
uint64_t ku_coll_what(const struct ku_coll *coll);
/*
 * Check the arguments. Errors: KUMI_EINVAL.
 */
KU_STATUS ku_coll_check(const struct ku_comm *comm, const struct ku_coll *coll);

enum ku_work_state { KU_WORK_IDLE, KU_WORK_STARTED, KU_WORK_FINISHED };
struct ku_work {
    struct ku_comm *comm;
    struct ku_coll coll;
    const uint8_t *step, *first_step; /* ops of `path` and of `first_path` */
    uint8_t pc, state, path, arrived;
    uint8_t first_path; /* path of a start, before CHOOSE */
    int missing;  /* first near member that the current await misses; those before it are there */
    uint64_t seq; /* number of this start on its comm */
    uint64_t what, extra;
    int64_t total; /* elements, for the fingerprint */
    /* Staged: current piece, number of pieces, elements per block and piece */
    int64_t piece, n_pieces, piece_count;
    /*
     * Staged: current piece of the stages, and the last one of this work; counted over the comm's
     * life
     */
    uint64_t stage, last_stage;
    int64_t part, at;     /* cursor of MOVE: part, and element in it */
    struct ku_work *next; /* next in the comm's queue */
    struct {
        uint64_t sequence;
        uint64_t place;    /* send: of a buffer that the receiver reads in place; or KU_PRIVATE */
        int64_t at, taken; /* bytes moved; receive: of the current piece */
        uint32_t chunk[2];
        int opened, n_looks, is_posted;
        struct ku_net_req *req; /* KU_PATH_FAR_MESSAGE, while it is posted */
        /* KU_PATH_P2P: the next one of this peer and direction; in the first: the last of them */
        struct ku_work *after, *last;
    } p2p;
};
/*
 * Check and compile. `coll` is copied, its arrays are borrowed. Errors: KUMI_EINVAL.
 */
KU_STATUS ku_work_init(struct ku_work *work, struct ku_comm *comm, const struct ku_coll *coll);
/*
 * Start: this rank's input is written. Never blocks. Errors: the job's root cause.
 */
KU_STATUS ku_work_start(struct ku_work *work);
/*
 * Advance all works of the rank. Returns 1 when this one is finished, 0 when not, or a status. It
 * checks no other rank: a caller that tests in a loop also calls ku_job_check.
 */
KU_STATUS ku_work_test(struct ku_work *work);
/*
 * Wait until the result is complete; advances all works of the rank. Blocks. Errors: the job's root
 * cause (KUMI_EPEER, ETIMEDOUT, EMISMATCH).
 */
KU_STATUS ku_work_wait(struct ku_work *work);
/* init, start and wait in one call */
KU_STATUS ku_coll_run(struct ku_comm *comm, const struct ku_coll *coll);
/*
 * Advance every started work of this rank; ~1 ns without any. Callable between tiles. Returns 0, or
 * the job's root cause.
 */
KU_STATUS ku_job_progress(struct ku_job *job);
/*
 * Check that all other ranks are alive, and advance this rank's works. A caller with its own wait
 * loop calls it at least every 50 ms. Returns 0, or the job's root cause.
 */
KU_STATUS ku_job_check(struct ku_job *job);
/* Bytes that public calls of this rank copied through stages */
uint64_t ku_job_staged_bytes(const struct ku_job *job);
/* Time in which this rank moved bytes of compiled programs, in waits and between tiles */
int64_t ku_job_moved_ns(const struct ku_job *job);
/*
 * Bytes of floating-point elements that this rank stored for them: sums, on any rank, copies, and
 * messages that it received from ranks of its host.
 */
uint64_t ku_job_moved_bytes(const struct ku_job *job);
/* Bytes of floating-point elements that this rank sent to other hosts in chunks and messages */
uint64_t ku_job_far_bytes(const struct ku_job *job);

#endif
