/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TEXT_SOURCE_H
#define KU_DATA_TEXT_SOURCE_H

#include "base/err.h"
#include "data/data.h"
#include "data/input_file.h"
#include "data/tokenizer/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

/*
 * A sequence of tokens in a part of a file, or in memory.
 *
 * Where the tokens of a user's file come from:
 *
 *     text, tokenizer "byte"   the file itself, 1 byte per token      ku_source_bytes
 *     *.bin                    the file itself, u16 or u32            ku_source_bin
 *     other text               the cache folder, or memory            ku_source_text, _encode
 */
struct ku_source {
    char *name;          /* the user's file */
    struct ku_file file; /* holds the tokens; closed: they are in memory */
    int token_bytes;     /* 1, 2 or 4, little endian */
    uint64_t at;         /* bytes before the first token */
    int64_t count;
    unsigned char *memory;
    int is_cache;         /* the file is in the cache folder */
    unsigned char id[32]; /* input to the data's fingerprint */
};

/* Opens text whose bytes are its tokens; errors: EINPUT; *out is set only on success. */
KU_STATUS ku_source_bytes(const char *name, struct ku_source *out);
/* Opens a *.bin file. format of files without a header: "u16", "u32" or NULL. */
KU_STATUS ku_source_bin(const char *name, const char *format, struct ku_source *out);
/* Turns text into tokens, piece by piece: feed, feed, …, finish; each call appends to `out`. */
struct ku_encoder {
    void *ctx;
    const char *fingerprint; /* identifies everything that affects the tokens */
    int64_t vocab_count;     /* one more than the largest token */
    int (*feed)(void *ctx, const void *text, size_t bytes, struct ku_tokens *out);
    int (*finish)(void *ctx, struct ku_tokens *out);
    void (*reset)(void *ctx); /* discards a partly fed text */
};
/*
 * Opens text through an encoder. The tokens come from the cache folder, and are stored there if
 * missing or damaged; without a folder they stay in memory.
 */
KU_STATUS ku_source_encode(const char *name, const struct ku_encoder *encoder,
                           struct ku_cache *cache, const struct ku_progress *progress,
                           struct ku_source *out);
/* The same with a tokenizer. */
KU_STATUS ku_source_text(const char *name, struct ku_tokenizer *t, struct ku_cache *cache,
                         const struct ku_progress *progress, struct ku_source *out);
void ku_source_fini(struct ku_source *s);

/* Checks options common to all token data; errors: EINVAL with the key. */
KU_STATUS ku_source_check(int n_train, int64_t seq_len, int64_t vocab_count, double val_fraction);

/* The ports of token data, i32 [seq_len]: tokens, targets, segments. */
void ku_source_ports(struct ku_data_port port[3], int64_t seq_len);

/* Maximum tokens per read. */
enum { KU_SOURCE_CHUNK = 2048 };
/*
 * Reads tokens [first, first + n), each below vocab_count.
 *
 * Threads: any number at once. Errors: EINPUT with file and byte.
 */
KU_STATUS ku_source_read(const struct ku_source *s, int64_t first, int n, int64_t vocab_count,
                         uint32_t *out);

/* Verifies the checksum, if the tokens are in the cache folder. */
KU_STATUS ku_source_check_cache(const struct ku_source *s, const struct ku_progress *progress);

#endif
