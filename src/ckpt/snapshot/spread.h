/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_SPREAD_H
#define KU_CKPT_SNAPSHOT_SPREAD_H

#include "base/err.h"
#include "ckpt/snapshot/snapshot.h"

/*
 * Writing a snapshot from several hosts. A chunk of a file has one writer, so that no two hosts
 * write one page and each piece is hashed in one place. Where tensors are divided among hosts
 * (struct ku_ckpt_owners) it is a rank that has the chunk's first element; what the chunk has of
 * other hosts is sent to it before the writing starts:
 *
 *     tensor        |  owner 0, host a  |  owner 1, host a  |   owner 2, host b   |
 *     chunks     |   0    |    1    |    2    |    3    |    4    |    5    |
 *     writer         0         0         0         1         1         2
 *     messages                                                 ^ 2 to 1
 *
 * The copies of a tensor write chunks in turn.
 */
struct ku_ckpt_world {
    int rank, n_ranks;
    int (*host_of)(const void *ctx, int rank);
    const void *ctx;
};

/*
 * Choose this rank's chunks and messages. After ku_ckpt_writer_create, on every rank with the same
 * world; ku_ckpt_writer_write then takes them. It leaves the checksums to ku_ckpt_writer_sums.
 *
 * Errors: ENOMEM.
 */
KU_STATUS ku_ckpt_writer_spread(struct ku_ckpt_writer *w, const struct ku_ckpt_world *world);

/*
 * Bytes that a rank gets from other hosts for its chunks, and has in memory until the writer is
 * destroyed: of all ranks, the most.
 *
 *   tensor   [n] as for a writer; their memory is not needed
 *   world    its rank is not read
 *
 * Errors: ENOMEM; EINVAL (the tensors).
 */
KU_STATUS ku_ckpt_inbox_most(const struct ku_ckpt_tensor *tensor, int n,
                             const struct ku_ckpt_world *world, size_t *bytes);
/* The same of this rank alone, as ku_ckpt_writer_spread allocated it. */
size_t ku_ckpt_writer_inbox_bytes(const struct ku_ckpt_writer *w);

/*
 * A message of this rank: bytes of one chunk. All messages of the job have one order, in which
 * every rank lists its own, so ranks that exchange them one after the other do not wait for each
 * other in a circle.
 */
struct ku_ckpt_message {
    int peer;
    bool is_sent;
    int64_t bytes;       /* at most KU_CHUNK_BYTES */
    unsigned char *data; /* receiver: where they belong; NULL: sender */
    int64_t run, n_runs; /* for ku_ckpt_message_pack */
};
const struct ku_ckpt_message *ku_ckpt_writer_messages(const struct ku_ckpt_writer *w, int64_t *n);
/* Sender: copy the message's bytes from the tensors to `out`. Errors: those of a store. */
KU_STATUS ku_ckpt_message_pack(const struct ku_ckpt_writer *w, const struct ku_ckpt_message *m,
                               unsigned char *out);

/*
 * After all ranks have written: the checksums of pieces [at, at + n) of all files, in one sequence;
 * zero for those of other ranks. The committing rank sets the sums over all ranks before the
 * commit, which writes the .xxh3 files.
 */
int64_t ku_ckpt_writer_n_sums(const struct ku_ckpt_writer *w);
void ku_ckpt_writer_sums(const struct ku_ckpt_writer *w, int64_t at, int64_t n, uint64_t *sum);
void ku_ckpt_writer_set_sums(struct ku_ckpt_writer *w, int64_t at, int64_t n, const uint64_t *sum);

#endif
