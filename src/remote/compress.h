/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_REMOTE_COMPRESS_H
#define KU_REMOTE_COMPRESS_H

#include <stdbool.h>

#include "train/remote_update.h"

/*
 * The compressed forms of a gradient on its way to the servers (ps.compression). The unit is the
 * canonical chunk of 4,096 elements, which one server owns: a record per chunk, one after another.
 * What a chunk becomes does not depend on the number of servers.
 *
 *     int8   | scale f32 | n x int8 |                          element i: q[i] * scale
 *     topk   | k x f32, the elements of largest magnitude | k x u16, their indices, ascending |
 *
 * A record is padded with zeros to a multiple of 4 bytes; 16 whole ones are a multiple of 64.
 *
 * Error feedback (Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014; Karimireddy et
 * al., Error Feedback Fixes SignSGD, ICML 2019): the worker compresses gradient + residual, and
 * what the record does not say is the next residual.
 *
 * A chunk with an infinity or a NaN decodes to one, so that train.on_nonfinite sees it, and leaves
 * its residual as it was.
 */

/* What random rounding depends on; stream: of worker and tensor. */
struct ku_compress_draw {
    uint64_t seed;
    uint32_t step, stream;
    uint64_t first; /* index of the chunk's first element in the tensor */
};
/*
 * Compress a chunk.
 *
 *   n        elements, 1 .. 4,096
 *   g        [n] gradient
 *   before   [n] residual
 *   record   out: ku_remote_record_bytes(x, n) bytes, 4-byte aligned
 *   after    out: [n] the next residual; not `before`
 */
void ku_compress_chunk(const struct ku_remote_entry *x, const struct ku_compress_draw *draw,
                       int64_t n, const float *g, const float *before, void *record, float *after);
/* Whether a record of any origin can be decoded: indices ascend and are below n. */
bool ku_compress_is_valid(const struct ku_remote_entry *x, int64_t n, const void *record);
/* The elements of a valid record. out: [n] */
void ku_compress_decode(const struct ku_remote_entry *x, int64_t n, const void *record, float *out);

#endif
