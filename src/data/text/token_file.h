/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TEXT_TOKEN_FILE_H
#define KU_DATA_TEXT_TOKEN_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Token files in llm.c's format, little endian:
 *
 *     | magic version count 0 0 … (int32[256]) | token | token | …
 *
 * There are two forms, with 2-byte and 4-byte tokens.
 */
enum { KU_TOKEN_HEADER_BYTES = 1024, KU_N_TOKEN_FORMS = 2 };
struct ku_token_form {
    int32_t magic, version;
    int token_bytes;
};
extern const struct ku_token_form ku_token_forms[KU_N_TOKEN_FORMS];

/*
 * Writes a token file in constant memory: create, add, add, …, commit. The file appears at the
 * commit.
 */
struct ku_token_file;
/*
 * Start writing a file.
 *
 *   path          the file
 *   overwrite     0: an existing file is an error; 1: it is replaced
 *   vocab_count   one more than the largest token; up to 65536: 2-byte tokens, else 4-byte
 *
 * Owns: *out, until ku_token_file_destroy. Errors: EBUSY (the file exists), ESTORAGE, ENOMEM.
 */
KU_STATUS ku_token_file_create(const char *path, int overwrite, int64_t vocab_count,
                               struct ku_token_file **out);
/* Appends tokens; errors: ESTORAGE; EINVAL: more tokens than the header can count, 2^31 - 1. */
KU_STATUS ku_token_file_add(struct ku_token_file *f, const uint32_t *id, size_t count);
/* Completes the file under its name; sets *count to the number of tokens; errors: ESTORAGE. */
KU_STATUS ku_token_file_commit(struct ku_token_file *f, int64_t *count);
/* Without a commit, removes the temporary file. */
void ku_token_file_destroy(struct ku_token_file *f);

#endif
