/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_DIGEST_H
#define KU_CKPT_DIGEST_H

#include "ckpt/tensor.h"

/*
 * The digest of a state: SHA-256 over its logical tensors, parameters and buffers sorted by name,
 * then optimizer tensors sorted by name, each as
 *
 *     u32 bytes of the name, the name, u32 bytes of the type, the type ("F32"), u32 ndim, i64 dims
 * …, data
 *
 * little endian, data row-major without padding (docs/internals/numerics.md). Equal for every
 * layout, and for the state in memory and its snapshot.
 */
enum { KU_DIGEST_TEXT_BYTES = 7 + 64 + 1 /* "sha256:", hex digits, NUL */ };

/* parameters_only: leave out optimizer tensors. */
int ku_digest_memory(const struct ku_ckpt_tensor *tensor, int n, int parameters_only,
                     char out[KU_DIGEST_TEXT_BYTES]);
/* Of a snapshot's folder, every byte verified on the way. KUMI_ENOCKPT. */
int ku_digest_snapshot(const char *path, int parameters_only, char out[KU_DIGEST_TEXT_BYTES]);

#endif
