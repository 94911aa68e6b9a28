/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_COMPANIONS_H
#define KU_CKPT_COMPANIONS_H

#include <stddef.h>

/*
 * Small files that go with a model wherever it goes: generation_config.json and those of its
 * tokenizer. They are read once, from the directory that a training starts from or a tokenizer's,
 * and written into every checkpoint and export, so that neither needs that directory any more.
 */
enum {
    KU_COMPANIONS_MAX = 24,
    KU_COMPANION_BYTES_MAX = 64 << 20 /* the largest tokenizer.json in use have some 30 MB */
};
struct ku_companion {
    const char *name; /* "tokenizer.json", of a fixed list */
    char *data;       /* owned */
    size_t bytes;
};
struct ku_companions {
    struct ku_companion file[KU_COMPANIONS_MAX];
    int n;
};
/* Which files of a directory. */
enum ku_companion_kind {
    KU_COMPANION_MODEL = 1,     /* generation_config.json, preprocessor_config.json */
    KU_COMPANION_TOKENIZER = 2, /* all that tokenizers of Hugging Face's and OpenAI's have */
    KU_COMPANION_ALL = 3
};

/*
 * Adds the files of these kinds that dir has and `c` has not. OpenAI's encoder.json and vocab.bpe
 * become vocab.json and merges.txt, which are the same. A file above KU_COMPANION_BYTES_MAX is left
 * out and named in a warning.
 *
 * Owns: c, until fini, also on failure. Errors: EINPUT (a file that cannot be read), ENOMEM.
 */
int ku_companions_read(struct ku_companions *c, const char *dir, int kinds);
/* The same of one file, a tokenizer.json by another name. */
int ku_companions_read_tokenizer(struct ku_companions *c, const char *path);
/* Writes and syncs them in a folder that has none of them. -1 with errno. */
int ku_companions_write(const struct ku_companions *c, const char *dir);
/* Whether a directory holds a tokenizer that kumi reads. */
int ku_companions_has_tokenizer(const char *dir);
void ku_companions_fini(struct ku_companions *c);

#endif
