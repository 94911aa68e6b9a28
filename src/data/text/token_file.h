/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TEXT_TOKEN_FILE_H
#define KU_DATA_TEXT_TOKEN_FILE_H

#include <stddef.h>
#include <stdint.h>

/*
 * Files of tokens as llm.c has them, little endian:
 *
 *     | magic version count 0 0 … (int32[256]) | token | token | …
 *
 * One form has tokens of 2 bytes, the other of 4.
 */
enum { KU_TOKEN_HEADER_BYTES = 1024, KU_N_TOKEN_FORMS = 2 };
struct ku_token_form {
    int32_t magic, version;
    int token_bytes;
};
extern const struct ku_token_form ku_token_forms[KU_N_TOKEN_FORMS];

/*
 * Writing one, in memory that does not grow with it: create, add, add, …, commit. The name appears
 * at the commit.
 */
struct ku_token_file;
/*
 *   path          the file
 *   overwrite     0: a file of this name is an error; 1: it is replaced
 *   vocab_count   one more than the largest token: up to 65536, tokens have 2 bytes, above it 4
 *
 * Owns: *out, until ku_token_file_destroy. Errors: EBUSY (it exists), ESTORAGE, ENOMEM.
 */
int ku_token_file_create(const char *path, int overwrite, int64_t vocab_count,
                         struct ku_token_file **out);
/* Errors: ESTORAGE; EINVAL: more tokens than the header can count, 2^31 - 1. */
int ku_token_file_add(struct ku_token_file *f, const uint32_t *id, size_t count);
/* The file is whole and has its name; tokens so far to *count. Errors: ESTORAGE. */
int ku_token_file_commit(struct ku_token_file *f, int64_t *count);
/* Without a commit nothing is left. NULL is fine. */
void ku_token_file_destroy(struct ku_token_file *f);

#endif
