/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_COMPANIONS_H
#define KU_CKPT_COMPANIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/*
 * Small files that accompany a model: generation_config.json, preprocessor_config.json and the
 * tokenizer's files. They are read once, from the directory of the pretrained weights or the
 * tokenizer, and copied to every checkpoint and export, which therefore need no other directory.
 */
enum {
    KU_COMPANIONS_MAX = 24,
    KU_COMPANION_BYTES_MAX = 64 << 20 /* about twice the largest tokenizer.json in use (30 MB) */
};
struct ku_companion {
    const char *name; /* static, from the list in companions.c */
    char *data;       /* owned */
    size_t bytes;
};
struct ku_companions {
    struct ku_companion file[KU_COMPANIONS_MAX];
    int n;
};
/* Which files of a directory to read. */
enum ku_companion_kind {
    KU_COMPANION_MODEL = 1,     /* generation_config.json, preprocessor_config.json */
    KU_COMPANION_TOKENIZER = 2, /* files of Hugging Face's and OpenAI's tokenizers */
    KU_COMPANION_ALL = 3
};

/*
 * Add the files of these kinds in dir that `c` does not have yet. OpenAI's encoder.json and
 * vocab.bpe become vocab.json and merges.txt (same contents). Larger files than
 * KU_COMPANION_BYTES_MAX are skipped with a warning.
 *
 * Owns: c, until fini, also on failure. Errors: EINPUT (unreadable file), ENOMEM.
 */
KU_STATUS ku_companions_read(struct ku_companions *c, const char *dir, int kinds);
/* The same for one file with the contents of a tokenizer.json and any name. */
KU_STATUS ku_companions_read_tokenizer(struct ku_companions *c, const char *path);
/* Write and fsync the files to a directory that has none of them. Returns 0, or -1 with errno. */
int ku_companions_write(const struct ku_companions *c, const char *dir);
/* Whether a directory has a tokenizer that kumi reads. */
bool ku_companions_has_tokenizer(const char *dir);
void ku_companions_fini(struct ku_companions *c);

#endif
