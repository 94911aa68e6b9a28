/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TEXT_SOURCE_H
#define KU_DATA_TEXT_SOURCE_H

#include "data/data.h"
#include "data/tokenizer/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

/* A sequence of tokens: a part of a file, or memory. Never mapped: a file that shrinks must be an
 * error, not a signal. */
struct ku_source {
    char *name;      /* the user's file */
    char *path;      /* of the file that holds the tokens; NULL: memory does */
    int fd;          /* -1: opened for each read (or memory) */
    int token_bytes; /* 1, 2 or 4, little endian */
    uint64_t at;     /* bytes before the first token */
    int64_t count;
    unsigned char *memory;
    int is_cache;         /* path is the cache's, not the user's */
    unsigned char id[32]; /* what the data's fingerprint is made of */
};

/* Text as bytes. Errors: EINPUT; *out is set only on success. */
int ku_source_bytes(const char *name, struct ku_source *out);
/* A *.bin file. format: "u16", "u32" or NULL. */
int ku_source_bin(const char *name, const char *format, struct ku_source *out);
/* What makes tokens of a text that comes in pieces: feed, feed, …, finish. Each appends. */
struct ku_encoder {
    void *ctx;
    const char *fingerprint; /* of everything that decides a token */
    int64_t vocab_count;     /* one more than the largest token */
    int (*feed)(void *ctx, const void *text, size_t bytes, struct ku_tokens *out);
    int (*finish)(void *ctx, struct ku_tokens *out);
    void (*reset)(void *ctx); /* forgets a text that was begun */
};
/* Text through an encoder, from or by way of the cache folder (NULL: memory). */
int ku_source_encode(const char *name, const struct ku_encoder *encoder, const char *cache,
                     const struct ku_progress *progress, struct ku_source *out);
/* The same with a tokenizer. */
int ku_source_text(const char *name, struct ku_tokenizer *t, const char *cache,
                   const struct ku_progress *progress, struct ku_source *out);
void ku_source_fini(struct ku_source *s);
/* Closes the file until the next read; for those that have very many. */
void ku_source_park(struct ku_source *s);

/* What every data of tokens asks of its options. EINVAL with the key. */
int ku_source_check(int n_train, int64_t seq_len, int64_t vocab_count, double val_fraction);

/* At most this many tokens a call. */
enum { KU_SOURCE_CHUNK = 2048 };
/* Reads tokens [first, first + n), each below vocab_count. Threads: any number at once. Errors:
 * EINPUT with file and byte. */
int ku_source_read(const struct ku_source *s, int64_t first, int n, int64_t vocab_count,
                   uint32_t *out);

/* A cached file's own checksum. */
int ku_source_check_cache(const struct ku_source *s, const struct ku_progress *progress);

#endif
