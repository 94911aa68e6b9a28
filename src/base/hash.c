/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include <endian.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <xxhash.h>

#include "base/err.h"

uint64_t ku_hash64(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

uint64_t ku_hash64_mix(uint64_t a, uint64_t b)
{
    uint64_t pair[2] = {a, b};
    return XXH3_64bits(pair, sizeof pair);
}

int ku_sha256_init(struct ku_sha256 *h)
{
    h->ctx = EVP_MD_CTX_new();
    if (h->ctx == NULL || EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(h->ctx);
        h->ctx = NULL;
        return KU_ERR(KUMI_ENOMEM, "sha256: libcrypto gives no context");
    }
    return KUMI_OK;
}

void ku_sha256_update(struct ku_sha256 *h, const void *data, size_t bytes)
{
    KU_ASSERT(EVP_DigestUpdate(h->ctx, data, bytes) == 1);
}

void ku_sha256_final(struct ku_sha256 *h, unsigned char out[32])
{
    unsigned bytes = 0;
    KU_ASSERT(EVP_DigestFinal_ex(h->ctx, out, &bytes) == 1 && bytes == 32);
    EVP_MD_CTX_free(h->ctx);
    h->ctx = NULL;
}

void ku_sha256_hex(const unsigned char digest[32], char out[65])
{
    static const char hex[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++) {
        out[2 * i] = hex[digest[i] >> 4];
        out[2 * i + 1] = hex[digest[i] & 15];
    }
    out[64] = '\0';
}

void ku_sha256_u64(struct ku_sha256 *h, uint64_t value)
{
    value = htole64(value);
    ku_sha256_update(h, &value, sizeof value);
}

void ku_sha256_final_hex(struct ku_sha256 *h, char out[65])
{
    unsigned char digest[32];
    ku_sha256_final(h, digest);
    ku_sha256_hex(digest, out);
}

void ku_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                    unsigned char out[32])
{
    unsigned got = 0;
    KU_ASSERT(key_bytes <= INT_MAX);
    KU_ASSERT(HMAC(EVP_sha256(), key, (int)key_bytes, data, bytes, out, &got) && got == 32);
}

bool ku_is_equal_secret(const void *a, const void *b, size_t bytes)
{
    return CRYPTO_memcmp(a, b, bytes) == 0;
}
