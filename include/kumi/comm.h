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
 * Communicators and collectives. They can be used without the rest of kumi, like Gloo or MPI:
 *
 *     struct kumi_comm *world;
 *     if (kumi_comm_join(NULL, &world) < 0) …
 *     kumi_all_reduce(world, x, x, count, KUMI_F32, KUMI_SUM);
 *     kumi_comm_leave(world);
 *
 * Start the program with `kumi run -n 4 -- ./program`, on several hosts with `kumi run -H a:4,b:4
 * -- ./program`, with torchrun, mpirun or srun, or directly (one rank).
 *
 * Defaults for every call: it returns 0 or an enum kumi_status (kumi_last_error() has the text).
 * Arguments that a kind does not use are ignored. Counts are elements. in == out is allowed where
 * in and out have the same size. Blocks are packed in rank order. Sums follow a fixed tree over the
 * ranks, so the bits of a result depend on the number of ranks and the data alone. A call that
 * differs between ranks fails on all of them: on one host before any byte of a result is written,
 * between hosts by the messages, so results may be written in part.
 *
 * Threads: one thread at a time uses the communicators of one join; other threads of the process
 * are not restricted. No background thread moves data: works advance inside start, test, wait and
 * kumi_comm_progress. Errors of every collective: KUMI_EINVAL (this call only); KUMI_EMISMATCH,
 * KUMI_EPEER, KUMI_ETIMEDOUT (the job has failed; all ranks return the same root cause, and one of
 * them prints it).
 */
struct kumi_comm;
struct kumi_work;

enum kumi_reduce {
    KUMI_SUM = 0,
    KUMI_AVG = 1, /* sum / n; floating types */
    KUMI_MIN = 2, /* NaN if any input is NaN */
    KUMI_MAX = 3,
    KUMI_PROD = 4,
    KUMI_PREMUL_SUM = 5, /* each rank's input is first multiplied by its `scale`; floating types */
    KUMI_N_REDUCES = 6
};

/* All-zero means defaults. */
struct kumi_comm_options {
    double timeout_s;      /* maximum time without progress of an awaited rank; 0: 600;
                              INFINITY: no limit */
    double join_timeout_s; /* 0: 60; INFINITY: no limit */
    int threads;           /* runnable threads of this rank (selects the way to wait); 0: 1 */
    const char *chaos;     /* fault injection, "delay=20ms,kill=1@100"; NULL: $KUMI_CHAOS */
};

/*
 * Join the job that the environment describes.
 *
 *   options   NULL: defaults
 *   world     out: communicator of all ranks of the job
 *
 * Collective. Blocks: up to join_timeout_s.
 */
KUMI_API int kumi_comm_join(const struct kumi_comm_options *options, struct kumi_comm **world);
/*
 * Leave the job and destroy all its communicators and shared memory. NULL is allowed.
 *
 * Collective over the world.
 */
KUMI_API int kumi_comm_leave(struct kumi_comm *world);

/*
 * Rank of the caller; number of ranks; KUMI_EINVAL for NULL.
 */
KUMI_API int kumi_comm_rank(const struct kumi_comm *comm);
KUMI_API int kumi_comm_size(const struct kumi_comm *comm);
/*
 * Split a communicator: one new communicator for the ranks of each colour, ordered by (key, rank).
 *
 *   color   >= 0; negative: this rank gets no communicator (*out = NULL)
 *   key     order within the new communicator; equal keys keep the order of the ranks
 *   out     freed with kumi_comm_free
 *
 * Collective over comm. At most 63 communicators of a rank exist at a time.
 */
KUMI_API int kumi_comm_split(struct kumi_comm *comm, int color, int key, struct kumi_comm **out);
/*
 * Free a communicator of kumi_comm_split. NULL is allowed. Collective over it.
 *
 * Errors: KUMI_EINVAL (works are not waited for; nothing is freed). With any other status it is
 * freed, and also when the job has failed: then the status is that of the root cause.
 */
KUMI_API int kumi_comm_free(struct kumi_comm *comm);

/*
 * Allocate memory that the ranks of the host share. Collectives of ranks of one host on it move the
 * fewest bytes and need no staging copy, and a message to a rank of this host that is sent from it
 * is copied once. The memory is zeroed and page-aligned.
 *
 *   bytes    equal on all ranks
 *   memory   out: freed with kumi_comm_dealloc
 *
 * Collective over the world. Errors: KUMI_EINVAL, also for a comm that is not the world; ENOMEM.
 */
KUMI_API int kumi_comm_alloc(struct kumi_comm *world, size_t bytes, void **memory);
/*
 * Free such memory. Every rank passes the pointer that it got from the same kumi_comm_alloc.
 *
 * Collective over the world.
 */
KUMI_API int kumi_comm_dealloc(struct kumi_comm *world, void *memory);
/*
 * Bytes that this rank's collectives copied because their buffers did not come from
 * kumi_comm_alloc, or because there are ranks of other hosts.
 */
KUMI_API uint64_t kumi_comm_staged_bytes(const struct kumi_comm *comm);

/*
 * Blocking collectives.
 *
 *   count    all_reduce, broadcast, reduce: elements of the vector; others: of one rank's block
 *   counts   v forms: [ranks] elements of each rank, the same array on every rank
 *   send_counts, recv_counts
 *            all_to_all_v: [ranks] elements that this rank sends to and receives from each rank
 *   in, out  a buffer of 0 elements may be NULL, as `out` of a rank that receives nothing
 *
 * The root of a broadcast of up to 88 bytes does not wait for the other ranks, unless it is 16
 * calls ahead of one. If they call something else, a later call of the root that waits returns the
 * mismatch.
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
/*
 * Send to or receive from one rank. A message of up to 96 bytes is sent eagerly: kumi_send returns
 * at once, unless the peer has yet to receive two of this rank. Of a longer one it returns when a
 * peer on this host has received it, and when it is on its way to one on another host, received or
 * not. So a send does not order what the two ranks do otherwise. Two ranks that each send three
 * messages before they receive wait for ever: start sends and receives together, with kumi_batch.
 *
 * Messages between two ranks of a communicator match in order, with equal counts. Every message
 * must be received before the communicator is freed.
 */
KUMI_API int kumi_send(struct kumi_comm *comm, const void *data, int64_t count,
                       enum kumi_dtype dtype, int peer);
KUMI_API int kumi_recv(struct kumi_comm *comm, void *data, int64_t count, enum kumi_dtype dtype,
                       int peer);

enum kumi_collective_kind {
    KUMI_BARRIER = 0,
    KUMI_ALL_REDUCE = 1,
    KUMI_REDUCE_SCATTER = 2,
    KUMI_ALL_GATHER = 3,
    KUMI_BROADCAST = 4, /* data is in `out` */
    KUMI_REDUCE = 5,
    KUMI_GATHER = 6,
    KUMI_SCATTER = 7,
    KUMI_ALL_TO_ALL = 8,
    KUMI_SEND = 9,
    KUMI_RECV = 10
};

/*
 * Any collective, for kumi_work_start and kumi_batch. Unused members are zero.
 */
struct kumi_collective {
    enum kumi_collective_kind kind;
    enum kumi_dtype dtype;
    enum kumi_reduce reduce;
    int root; /* root or peer */
    const void *in;
    void *out;
    int64_t count;
    const int64_t *counts;      /* v form (all_to_all: what this rank sends); else NULL */
    const int64_t *recv_counts; /* all_to_all's v form */
    double scale;               /* KUMI_PREMUL_SUM */
};

/*
 * Start a collective and return. Until kumi_work_wait returns or kumi_work_test returns 1, the
 * caller neither reads nor writes the buffers, and `counts` and `recv_counts` stay as they are. All
 * ranks start the works of a communicator in the same order.
 *
 *   work   out: freed by kumi_work_wait, or by the kumi_work_test that returns 1 or < 0; before its
 *          communicator is freed
 *
 * Async: works advance in start, test, wait and kumi_comm_progress. A program that calls test in a
 * loop learns of a rank that ends, leaves or makes no progress as one that waits does.
 */
KUMI_API int kumi_work_start(struct kumi_comm *comm, const struct kumi_collective *collective,
                             struct kumi_work **work);
KUMI_API int kumi_work_wait(struct kumi_work *work);
KUMI_API int kumi_work_test(struct kumi_work *work); /* 1: finished, 0: not yet, < 0: status */
/*
 * Start n collectives and wait for all. Sends and receives among them may depend on each other.
 * KUMI_EINVAL and ENOMEM: none has started.
 */
KUMI_API int kumi_batch(struct kumi_comm *comm, const struct kumi_collective *collectives, int n);
/* Advance all works of this rank. */
KUMI_API int kumi_comm_progress(struct kumi_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
