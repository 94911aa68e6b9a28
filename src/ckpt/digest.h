/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_DIGEST_H
#define KU_CKPT_DIGEST_H

#include "base/err.h"
#include "ckpt/saved_tensor.h"

/*
 * The digest of a state: SHA-256 over its logical tensors, first parameters and buffers sorted by
 * name, then optimizer tensors sorted by name. Each tensor, little endian
 * (docs/internals/numerics.md):
 *
 *     u32          bytes of the name
 *     bytes        the name
 *     u32          bytes of the type
 *     bytes        the type ("F32")
 *     u32          ndim
 *     i64 [ndim]   dims
 *     bytes        data, row-major, without padding
 *
 * Equal for every parallel layout, and for the state in memory and its snapshot.
 */
enum { KU_DIGEST_TEXT_BYTES = 7 + 64 + 1 /* "sha256:", hex digits, NUL */ };

/* Compute the digest of tensors in memory. parameters_only: without optimizer tensors. */
KU_STATUS ku_digest_memory(const struct ku_ckpt_tensor *tensor, int n, int parameters_only,
                           char out[KU_DIGEST_TEXT_BYTES]);
/*
 * The same of tensors whose elements are divided among hosts.
 *
 *   gather   called for all elements in the order of the digest, at most 1 MiB at a time, on every
 *            rank; where `out` is given it gets elements [at, at + count) of t
 *   out      NULL: only call gather
 */
struct ku_digest_source {
    int (*gather)(void *ctx, const struct ku_ckpt_tensor *t, int64_t at, int64_t count, void *out);
    void *ctx;
};
KU_STATUS ku_digest_stream(const struct ku_ckpt_tensor *tensor, int n, int parameters_only,
                           const struct ku_digest_source *from, char out[KU_DIGEST_TEXT_BYTES]);
/* Compute the digest of a snapshot directory and verify its checksums. Errors: ENOCKPT. */
KU_STATUS ku_digest_snapshot(const char *path, int parameters_only, char out[KU_DIGEST_TEXT_BYTES]);

#endif
