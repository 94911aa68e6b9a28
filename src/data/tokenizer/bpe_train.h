/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_BPE_TRAIN_H
#define KU_DATA_TOKENIZER_BPE_TRAIN_H

#include "base/str.h"
#include "data/data.h"
#include "data/tokenizer/word_count.h"

/*
 * Learns a byte-level BPE from text: the tokens and merges that Hugging Face's
 * ByteLevelBPETokenizer learns from the same files, in the same order, whatever the order of the
 * files.
 */
struct ku_bpe_train_opts {
    int64_t vocab_count;   /* special tokens, 256 bytes, and a token for each merge */
    int64_t min_frequency; /* pairs seen less often are not merged; at least 1 */
    const char *const
        *special; /* tokens 0, 1, …; each once, valid UTF-8, none that text can mean */
    int n_special;
    struct ku_progress progress;
};

enum {
    KU_BPE_VOCAB_MAX = 1 << 24, /* what the loader of tokenizer.json takes */
    KU_BPE_SPECIAL_MAX = 1024,
    KU_BPE_SPECIAL_BYTES_MAX = 1 << 10,
};

/* Counts the words of a text by GPT-2's pattern, line by line, as Hugging Face does. EINPUT. */
int ku_bpe_count_words(const char *path, const struct ku_progress *progress,
                       struct ku_word_count *words);

/* Tokens and the merges that made them. */
struct ku_bpe_merge {
    uint32_t left, right;
};
struct ku_bpe_trained {
    struct ku_bpe *vocab;       /* token 0 on: special tokens, bytes, merges */
    struct ku_bpe_merge *merge; /* in order of rank */
    uint32_t n_merges, cap_merges;
    uint32_t n_special;
};

/*
 * Learns from counted words. Fewer than vocab_count tokens come out when no pair is left that
 * occurs min_frequency times.
 *
 * Owns: *out, until ku_bpe_trained_fini.
 * Errors: EINVAL (vocab_count, min_frequency, special), ENOMEM; what progress returns.
 */
int ku_bpe_train(const struct ku_word_count *words, const struct ku_bpe_train_opts *opts,
                 struct ku_bpe_trained *out);
void ku_bpe_trained_fini(struct ku_bpe_trained *t);

/* Appends the tokenizer.json that Hugging Face writes for it, byte for byte. */
int ku_bpe_trained_json(const struct ku_bpe_trained *t, struct ku_str *out);

/*
 * How files spell tokens: a character for each byte (OpenAI's bytes_to_unicode). spell: the
 * character of a byte. unspell: the bytes that a text spells, at most `bytes` of them; returns 1,
 * or 0 with out = text when a character spells no byte.
 */
uint32_t ku_token_spell(unsigned byte);
int ku_token_unspell(const unsigned char *text, size_t bytes, unsigned char *out,
                     size_t *out_bytes);

#endif
