/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TEXT_TOKEN_FILES_H
#define KU_DATA_TEXT_TOKEN_FILES_H

#include "base/err.h"
#include "data/data.h"

/*
 * Text and token files as training data. The files of a split form one sequence of tokens in the
 * given order. Sample i is tokens [i T, i T + T] of it, T inputs and T targets shifted by one, so
 * n_samples = (n_tokens - 1) / T. Ports: tokens, targets; i32 [T].
 *
 *     sequence, T = 4    a b c d e f g h i        n_samples = 2
 *     sample 0           tokens a b c d           targets b c d e
 *     sample 1           tokens e f g h           targets f g h i
 *
 * *.bin holds tokens: in llm.c's format, detected by its header (token_file.h), or raw
 * little-endian u16 or u32, selected by `format`. Any other file is text.
 *
 * With weights, each entry of `train` is a separate sequence. An epoch draws samples in proportion
 * to the weights, each sample at least once. Shuffling mixes the entries. The validation split is
 * then the end of each entry.
 *
 * With a stride S the validation split consists of overlapping windows (Hugging Face's
 * sliding-window perplexity). Window i begins at token i S; its targets are those that earlier
 * windows did not have: the last S, in the first window all. So each token but the first counts
 * once, with at least T - S tokens of context where available. The last window is padded with zeros
 * without targets.
 *
 * segments gives the number of a position's document in its sample, from 0, i32 [T], for attention
 * within documents; the token after a separator begins the next document.
 *
 * With the tokenizer "byte" the bytes of a text are its tokens, read in place. Otherwise each text
 * is tokenized once into the cache (source_text.c); one rank does it and the others wait. If the
 * cache cannot be written, a warning is printed and the tokens stay in memory.
 */
struct ku_text_opts {
    const char *const *train; /* files or globs ('*', '?', '['; sorted by name) */
    int n_train;              /* 0: only data.val */
    const char *const *val; /* n_val 0: train's n tokens from (int64_t)((1 - val_fraction) n) on */
    int n_val;
    double val_fraction;   /* in [0, 1); 0: no validation split */
    const char *tokenizer; /* as ku_tokenizer_open; NULL: "byte" */
    const char *format;    /* of raw *.bin: "u16", "u32"; NULL: every *.bin has a header */
    const char *cache;     /* folder; NULL: $KUMI_CACHE, $XDG_CACHE_HOME/kumi, $HOME/.cache/kumi */
    int64_t seq_len;       /* T, 1 to KU_SEQ_LEN_MAX */
    int64_t stride;        /* of the validation split's windows, 1 to T; 0: samples as above */
    int64_t vocab_count;   /* valid tokens are below it, 1 to 2^31 */
    const double *weight;  /* [n_train], above 0; NULL: all files are one sequence */
    int segments;          /* 1: a third port, segments; documents end with token `separator` */
    int64_t separator;
    struct ku_progress progress;
};

/*
 * Open the files and tokenize those not in the cache.
 *
 * Owns: *out, until ku_data_destroy. Blocks: while another rank tokenizes the same text.
 * Errors: EINPUT (missing, empty, of odd length, a split shorter than one sample, …), EINVAL
 * (format, seq_len, …), ENOMEM.
 */
KU_STATUS ku_text_open(const struct ku_text_opts *opts, struct ku_data **out);

enum { KU_SEQ_LEN_MAX = 1 << 28 }; /* a sample's bytes fit 31 bits */

#endif
