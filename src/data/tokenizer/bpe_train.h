/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_BPE_TRAIN_H
#define KU_DATA_TOKENIZER_BPE_TRAIN_H

#include "base/err.h"
#include "base/str.h"
#include "data/data.h"
#include "data/tokenizer/word_count.h"

/*
 * Learns a byte-level BPE from text. Gives the tokens and merges, in the same order, that Hugging
 * Face's ByteLevelBPETokenizer learns from the same files. The order of the files does not matter.
 *
 *     ku_bpe_count_words (each file) -> ku_bpe_train -> ku_bpe_trained_json
 */
struct ku_bpe_train_opts {
    int64_t vocab_count;        /* special tokens, 256 bytes, and a token for each merge */
    int64_t min_frequency;      /* at least 1; rarer pairs are not merged */
    const char *const *special; /* tokens 0, 1, …; distinct, valid UTF-8, not producible by text */
    int n_special;
    struct ku_progress progress;
};

enum {
    KU_BPE_VOCAB_MAX = 1 << 24, /* limit of the loader of tokenizer.json */
    KU_BPE_SPECIAL_MAX = 1024,
    KU_BPE_SPECIAL_BYTES_MAX = 1 << 10,
};

/*
 * Counts the words of a file by GPT-2's pattern, line by line, as Hugging Face does. Errors:
 * EINPUT, ENOMEM, any status of progress.
 */
KU_STATUS ku_bpe_count_words(const char *path, const struct ku_progress *progress,
                             struct ku_word_count *words);

/* A merge, and the learned tokens and merges. */
struct ku_bpe_merge {
    uint32_t left, right;
};
struct ku_bpe_trained {
    struct ku_bpe *vocab;       /* tokens from 0: special tokens, bytes, merges */
    struct ku_bpe_merge *merge; /* in order of rank */
    uint32_t n_merges, cap_merges;
    uint32_t n_special;
};

/*
 * Learn merges from counted words. The result has fewer than vocab_count tokens if no remaining
 * pair occurs min_frequency times.
 *
 * Owns: *out, until ku_bpe_trained_fini.
 * Errors: EINVAL (vocab_count, min_frequency, special), ENOMEM; any status of progress.
 */
KU_STATUS ku_bpe_train(const struct ku_word_count *words, const struct ku_bpe_train_opts *opts,
                       struct ku_bpe_trained *out);
void ku_bpe_trained_fini(struct ku_bpe_trained *t);

/* Appends the tokenizer.json that Hugging Face writes for these tokens, byte for byte. */
KU_STATUS ku_bpe_trained_json(const struct ku_bpe_trained *t, struct ku_str *out);

/*
 * Notation of tokens in files: one character per byte (OpenAI's bytes_to_unicode). spell gives the
 * character of a byte. unspell gives the bytes of a notation, at most `bytes` of them; it returns
 * 1, or 0 with out = text if some character represents no byte.
 */
uint32_t ku_token_spell(unsigned byte);
int ku_token_unspell(const unsigned char *text, size_t bytes, unsigned char *out,
                     size_t *out_bytes);

#endif
