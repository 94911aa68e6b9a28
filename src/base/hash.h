/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_HASH_H
#define KU_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Fast checksum and hash-table key: XXH3, 64 bits, seed 0. */
uint64_t ku_hash64(const void *data, size_t bytes);
uint64_t ku_hash64_mix(uint64_t a, uint64_t b);

/* SHA-256 (libcrypto), for digests and fingerprints that users compare. */
struct ku_sha256 {
    void *ctx;
};
KU_STATUS ku_sha256_init(struct ku_sha256 *h); /* KUMI_ENOMEM */
void ku_sha256_update(struct ku_sha256 *h, const void *data, size_t bytes);
void ku_sha256_final(struct ku_sha256 *h, unsigned char out[32]); /* releases ctx as well */
void ku_sha256_hex(const unsigned char digest[32], char out[65]);
void ku_sha256_u64(struct ku_sha256 *h, uint64_t value); /* the 8 bytes, little endian */
void ku_sha256_final_hex(struct ku_sha256 *h, char out[65]);

/* HMAC-SHA256 (RFC 2104), to prove that one has a key. */
void ku_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                    unsigned char out[32]);
/* Compare in a time that does not depend on the bytes. */
bool ku_is_equal_secret(const void *a, const void *b, size_t bytes);

#endif
