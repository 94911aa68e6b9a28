/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_COMM_H
#define KUMI_COMM_H

#include "kumi/dtype.h"
#include "kumi/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Communicators and collectives, usable alone, as one would use Gloo or MPI:
 *
 *     struct kumi_comm *world;
 *     if (kumi_comm_join(NULL, &world) < 0) …
 *     kumi_all_reduce(world, x, x, count, KUMI_F32, KUMI_SUM);
 *     kumi_comm_leave(world);
 *
 * under `kumi run -n 4 -- ./program`, or torchrun, mpirun, srun on one host, or plainly (one rank).
 *
 * Defaults for every call: returns 0 or an enum kumi_status (kumi_last_error() has the text);
 * arguments that a kind does not use are ignored; counts are elements; in == out works where in and
 * out have the same size; blocks lie packed in rank order. Sums follow a fixed tree over the ranks,
 * so results depend on the number of ranks and the data alone, bit by bit. Every call is checked on
 * all ranks before a byte of a result is written.
 *
 * Threads: the communicators of one join are used by one thread at a time; other threads of the
 * process are free. No thread moves data in the background: works advance in start, test, wait and
 * kumi_comm_progress. Errors of every collective: KUMI_EINVAL (this call only), KUMI_EMISMATCH,
 * KUMI_EPEER, KUMI_ETIMEDOUT: the job is over, all ranks return the same root cause, which one of
 * them prints.
 */
struct kumi_comm;
struct kumi_work;

enum kumi_reduce {
    KUMI_SUM = 0,
    KUMI_AVG = 1, /* sum / n; floating types */
    KUMI_MIN = 2, /* a NaN in any input is the result */
    KUMI_MAX = 3,
    KUMI_PROD = 4,
    KUMI_PREMUL_SUM = 5, /* each rank's input times its own `scale` first; floating types */
    KUMI_N_REDUCES = 6
};

/* All-zero means defaults. */
struct kumi_comm_options {
    double timeout_s;      /* how long an awaited rank may stand still; 0: 600 */
    double join_timeout_s; /* 0: 60 */
    int threads;           /* runnable threads of this rank (how to wait depends on it); 0: 1 */
    const char
        *chaos; /* fault injection, "delay=20ms,kill=1@100"; NULL: the environment's KUMI_CHAOS */
};

/* Join the job that the environment describes; *world has all its ranks. Collective. Blocks: <=
 * join_timeout_s. */
KUMI_API int kumi_comm_join(const struct kumi_comm_options *options, struct kumi_comm **world);
/* Leave the job: ends all its communicators and memory. Collective over the world; takes NULL. */
KUMI_API int kumi_comm_leave(struct kumi_comm *world);

/* KUMI_EINVAL for NULL. */
KUMI_API int kumi_comm_rank(const struct kumi_comm *comm);
KUMI_API int kumi_comm_size(const struct kumi_comm *comm);
/*
 * Make communicators of the ranks with equal colour, ordered by (key, rank).
 *
 *   color   >= 0; negative: this rank gets none (*out = NULL)
 *
 * Collective over comm. At most 63 alive per rank.
 */
KUMI_API int kumi_comm_split(struct kumi_comm *comm, int color, int key, struct kumi_comm **out);
/* Give one from kumi_comm_split back. Collective over it; takes NULL. */
KUMI_API int kumi_comm_free(struct kumi_comm *comm);

/*
 * Memory that the host's ranks share: collectives on it move the fewest bytes and are not staged.
 * Zeroed, page-aligned. Collective over the world, with equal bytes.
 */
KUMI_API int kumi_comm_alloc(struct kumi_comm *world, size_t bytes, void **memory);
/* Collective over the world; every rank passes what the same kumi_comm_alloc gave it. */
KUMI_API int kumi_comm_dealloc(struct kumi_comm *world, void *memory);
/* Bytes that this rank's collectives copied because memory did not come from kumi_comm_alloc. */
KUMI_API uint64_t kumi_comm_staged_bytes(const struct kumi_comm *comm);

/*
 * Collectives that block. `count` is that of the whole vector in all_reduce, broadcast and reduce,
 * and of one rank's block in the others; the v forms take each rank's count instead, the same array
 * on every rank (all_to_all_v: what this rank sends to and receives from each). The root of a
 * broadcast of up to 88 bytes does not wait for the others: if they call something else, it is its
 * next call on the communicator that says so.
 */
KUMI_API int kumi_all_reduce(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                             enum kumi_dtype dtype, enum kumi_reduce reduce);
KUMI_API int kumi_reduce(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                         enum kumi_dtype dtype, enum kumi_reduce reduce, int root);
KUMI_API int kumi_broadcast(struct kumi_comm *comm, void *data, int64_t count,
                            enum kumi_dtype dtype, int root);
KUMI_API int kumi_reduce_scatter(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                                 enum kumi_dtype dtype, enum kumi_reduce reduce);
KUMI_API int kumi_reduce_scatter_v(struct kumi_comm *comm, const void *in, void *out,
                                   const int64_t *counts, enum kumi_dtype dtype,
                                   enum kumi_reduce reduce);
KUMI_API int kumi_all_gather(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                             enum kumi_dtype dtype);
KUMI_API int kumi_all_gather_v(struct kumi_comm *comm, const void *in, void *out,
                               const int64_t *counts, enum kumi_dtype dtype);
KUMI_API int kumi_gather(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                         enum kumi_dtype dtype, int root);
KUMI_API int kumi_gather_v(struct kumi_comm *comm, const void *in, void *out, const int64_t *counts,
                           enum kumi_dtype dtype, int root);
KUMI_API int kumi_scatter(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                          enum kumi_dtype dtype, int root);
KUMI_API int kumi_scatter_v(struct kumi_comm *comm, const void *in, void *out,
                            const int64_t *counts, enum kumi_dtype dtype, int root);
KUMI_API int kumi_all_to_all(struct kumi_comm *comm, const void *in, void *out, int64_t count,
                             enum kumi_dtype dtype);
KUMI_API int kumi_all_to_all_v(struct kumi_comm *comm, const void *in, void *out,
                               const int64_t *send_counts, const int64_t *recv_counts,
                               enum kumi_dtype dtype);
KUMI_API int kumi_barrier(struct kumi_comm *comm);
/* Return when the peer has received (up to 96 bytes: when they are on their way), or sent. Messages
 * between two ranks of a comm match in order; counts must be equal; each must be received before
 * the comm is freed. */
KUMI_API int kumi_send(struct kumi_comm *comm, const void *data, int64_t count,
                       enum kumi_dtype dtype, int peer);
KUMI_API int kumi_recv(struct kumi_comm *comm, void *data, int64_t count, enum kumi_dtype dtype,
                       int peer);

enum kumi_collective_kind {
    KUMI_BARRIER = 0,
    KUMI_ALL_REDUCE = 1,
    KUMI_REDUCE_SCATTER = 2,
    KUMI_ALL_GATHER = 3,
    KUMI_BROADCAST = 4, /* in place: out */
    KUMI_REDUCE = 5,
    KUMI_GATHER = 6,
    KUMI_SCATTER = 7,
    KUMI_ALL_TO_ALL = 8,
    KUMI_SEND = 9,
    KUMI_RECV = 10
};

/* Any collective, for kumi_work_start and kumi_batch. Unused members are zero. */
struct kumi_collective {
    enum kumi_collective_kind kind;
    enum kumi_dtype dtype;
    enum kumi_reduce reduce;
    int root; /* root, or peer */
    const void *in;
    void *out;
    int64_t count;
    const int64_t *counts;      /* v form (all_to_all: what I send); else NULL */
    const int64_t *recv_counts; /* all_to_all's v form */
    double scale;               /* KUMI_PREMUL_SUM */
};

/*
 * Start a collective and return. Until kumi_work_wait, or kumi_work_test says 1, the buffers belong
 * to the communicator: neither read nor written. Works of a communicator are started in the same
 * order on all its ranks.
 *
 *   work   given back by kumi_work_wait or by the kumi_work_test that returned 1 or < 0
 */
KUMI_API int kumi_work_start(struct kumi_comm *comm, const struct kumi_collective *collective,
                             struct kumi_work **work);
KUMI_API int kumi_work_wait(struct kumi_work *work);
KUMI_API int kumi_work_test(struct kumi_work *work); /* 1 finished, 0 not yet, < 0 */
/* Sends and receives (any collectives) that may depend on each other: starts all n, waits for all.
 */
KUMI_API int kumi_batch(struct kumi_comm *comm, const struct kumi_collective *collectives, int n);
/* Advance all works of this rank. */
KUMI_API int kumi_comm_progress(struct kumi_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
