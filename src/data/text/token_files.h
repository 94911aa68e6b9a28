/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TEXT_TOKEN_FILES_H
#define KU_DATA_TEXT_TOKEN_FILES_H

#include "data/data.h"

/*
 * Text and token files as data. The files of a split are one sequence of tokens, in the order
 * given; sample i is its tokens [i T, i T + T], inputs and targets shifted by one, so n_samples =
 * (n_tokens - 1) / T. Ports: tokens, targets; i32 [T].
 *
 * *.bin holds tokens: llm.c's form (int32[256] little endian: 20240520, 1, count, 0…; then u16),
 * known by its header, or raw little-endian u16 or u32, as `format` says. Any other file is text.
 * With weights, each entry of `train` is a sequence of its own, cut into samples on its own, and
 * the samples of an epoch are in the proportion of the weights: so many that each comes at least
 * once, those of entries with more weight than tokens several times. (Shuffled they mix; numbering
 * does not depend on ranks, and memory is that of the files' names.) The validation split is then
 * the end of each entry.
 *
 * With a stride S the validation split is windows for evaluation (Hugging Face's "sliding window"
 * perplexity): window i takes the tokens from i S on and learns those of its T targets that the
 * windows before it have not, the last S but in the first window. So each token but the first
 * counts once, with at least T - S tokens before it where there are so many; the last window is
 * filled up with zeros that nobody learns.
 *
 * segments numbers the documents of a sample from 0, i32 [T], for attention within documents: the
 * token behind a separator begins the next.
 *
 * With the tokenizer "byte" a text's bytes are its tokens, read in place. Otherwise each text is
 * tokenized once and its tokens are kept in the cache, under the hash of text and tokenizer; of
 * several ranks one works and the others wait for it. A cache that cannot be written is no error: a
 * warning, and the tokens stay in memory.
 */
struct ku_text_opts {
    const char *const *train; /* files or globs ('*', '?', '['; sorted by name) */
    int n_train;              /* 0: data.val alone */
    const char *const *val;   /* n_val 0: the last val_fraction of train's tokens, from token
                                 (int64_t)((1 - f) n) on */
    int n_val;
    double val_fraction;   /* in [0, 1); 0: no validation split */
    const char *tokenizer; /* as ku_tokenizer_open; NULL: "byte" */
    const char *format;    /* of raw *.bin: "u16", "u32"; NULL: none is raw */
    const char *cache;     /* folder; NULL: $KUMI_CACHE, $XDG_CACHE_HOME/kumi, $HOME/.cache/kumi */
    int64_t seq_len;       /* T, 1 to KU_SEQ_LEN_MAX */
    int64_t stride;        /* of the validation split's windows, 1 to T; 0: samples as above */
    int64_t vocab_count;   /* tokens from here on are refused when read, 1 to 2^31 */
    const double *weight;  /* [n_train], above 0; NULL: files are one sequence */
    int segments;          /* 1: a third port, segments; documents end with token `separator` */
    int64_t separator;
    struct ku_progress progress;
};

/*
 * Opens the files, and tokenizes what is not in the cache.
 *
 * Owns: *out, until ku_data_destroy. Blocks: while another rank tokenizes the same text.
 * Errors: EINPUT (missing, empty, of odd length, a split shorter than one sample, …), EINVAL
 * (format, seq_len, …), ENOMEM.
 */
int ku_text_open(const struct ku_text_opts *opts, struct ku_data **out);

/* ku_data_read with names: T tokens and T targets. Errors: EINPUT, with file and byte. */
int ku_text_read(const struct ku_data *d, enum ku_data_split split, int64_t sample, int32_t *tokens,
                 int32_t *targets);

enum { KU_SEQ_LEN_MAX = 1 << 28 }; /* a sample's bytes fit 31 bits */

#endif
