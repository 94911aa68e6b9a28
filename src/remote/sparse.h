/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_REMOTE_SPARSE_H
#define KU_REMOTE_SPARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Bytes of which most need not travel.
 *
 *     push   the gradient of an embedding, of which a step touches the rows of its tokens alone.
 *            What is not zero travels, and the server writes zeros elsewhere: every bit is that of
 *            the dense push, and every optimizer sees the whole gradient.
 *     pull   parameters of which an update changed few (remote/changes.h). What has changed
 *            travels, and the worker keeps its bytes elsewhere.
 *
 *     u64 extent    bytes that it stands for, 1 .. 16 MiB
 *     u64 runs
 *     runs x { u32 first, u32 cells }    ascending, apart; cells of 64 bytes
 *     the bytes of the cells, run by run; the last cell of the extent may be shorter
 *
 * A cell of 64 bytes is 16 elements of f32, so a row of an embedding is a run, or part of one.
 */
enum {
    KU_SPARSE_CELL_BYTES = 64,
    KU_SPARSE_HEAD_BYTES = 16,
    KU_SPARSE_MAX_EXTENT_BYTES = 16 << 20, /* 2 ms of zeros, written under the lock of a push */
    KU_SPARSE_MAX_BYTES = 1 << 20          /* of a body: a frame */
};
/*
 * Encode the beginning of `data`.
 *
 *   bytes    at least 1
 *   body     out: up to KU_SPARSE_MAX_BYTES
 *   extent   out: bytes of data that it stands for
 *
 * Returns the bytes of the body; 0: most are no zeros, send them as they are.
 */
size_t ku_sparse_encode(const void *data, size_t bytes, void *body, size_t *extent);
/*
 * What a body is made from: cells at byte `at` of the data, asked for in ascending order.
 *
 *   travels   whether a cell is part of the body
 *   read      copies whole cells. Errors: its own, passed on
 */
struct ku_sparse_source {
    void *ctx;
    bool (*travels)(void *ctx, size_t at, size_t bytes);
    KU_STATUS (*read)(void *ctx, size_t at, size_t bytes, void *to);
};
/* ku_sparse_encode of any source. *body_bytes: of the body, 0 as above. */
KU_STATUS ku_sparse_build(const struct ku_sparse_source *s, size_t bytes, void *body,
                          size_t *body_bytes, size_t *extent);
/*
 * Check a body of any origin.
 *
 *   extent   out
 *
 * Errors: KUMI_EINVAL.
 */
KU_STATUS ku_sparse_check(const void *body, size_t bytes, size_t *extent);
/* A run of a checked body: its bytes of the extent. All-zero: before the first one. */
struct ku_sparse_run {
    size_t at, bytes;
    const unsigned char *data; /* [bytes] in the body */
    uint64_t next;             /* number of the run after it */
};
/* Goes to the next run; false: there is none. */
bool ku_sparse_next(const void *body, struct ku_sparse_run *x);
/* Write the extent of a checked body, with zeros where it has no cells. */
void ku_sparse_expand(const void *body, void *to);
/* Write the cells of a checked body, and nothing else. */
void ku_sparse_merge(const void *body, void *to);

#endif
