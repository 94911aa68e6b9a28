/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_REMOTE_SPARSE_H
#define KU_REMOTE_SPARSE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Bytes of a push of which most are zeros: the gradient of an embedding, of which a step touches
 * the rows of its tokens alone. Only what is not zero travels. The server writes zeros elsewhere,
 * so that every bit is that of the dense push, and every optimizer sees the whole gradient.
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
 * Check a body of any origin.
 *
 *   extent   out
 *
 * Errors: KUMI_EINVAL.
 */
KU_STATUS ku_sparse_check(const void *body, size_t bytes, size_t *extent);
/* Write the extent of a checked body. */
void ku_sparse_expand(const void *body, void *to);

#endif
