/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_PAIRS_PARALLEL_CORPUS_H
#define KU_DATA_PAIRS_PARALLEL_CORPUS_H

#include "data/pairs/buckets.h"
#include "data/data.h"
#include "data/input_file.h"
#include "data/tokenizer/vocab.h"

/*
 * Sentence pairs: two files (or two lists of files) of one sentence a line, line i of one the
 * translation of line i of the other. Each file is tokenized once, into the cache, as text is.
 * Samples are the pairs in the files' order, less those that are left out (empty or over-long).
 *
 * Ports of a sample, padded to a shape's lengths s and t:
 *
 *     src      i32 [s]   the source's tokens, then <pad>
 *     src_len  i32 []    how many
 *     tgt_in   i32 [t]   <s>, the target's tokens, then <pad>
 *     targets  i32 [t]   the target's tokens, </s>, then KU_NO_TARGET
 *     tgt_len  i32 []    how many of either: the target's tokens and one
 */
enum {
    KU_PARALLEL_SRC,
    KU_PARALLEL_SRC_LEN,
    KU_PARALLEL_TGT_IN,
    KU_PARALLEL_TARGETS,
    KU_PARALLEL_TGT_LEN,
    KU_PARALLEL_PORTS
};

/* What becomes of a pair that has an empty line, or more tokens than the limit. */
enum ku_parallel_odd {
    KU_ODD_DROP, /* left out; counted, the first named in a warning */
    KU_ODD_ERROR /* EINPUT with file and line */
};

struct ku_parallel_files {
    const char *const *src, *const *tgt; /* [n] each */
    int n;                               /* 0: the split is absent */
};
struct ku_parallel_opts {
    struct ku_parallel_files files[KU_N_SPLITS];
    struct ku_vocab *src_vocab, *tgt_vocab; /* borrowed until destroy; may be one */
    int64_t src_len_max, tgt_len_max;       /* tokens of a sentence, <s> and </s> not counted; 1 to
                                               KU_SENTENCE_TOKENS_MAX */
    enum ku_parallel_odd on_empty, on_long;
    const char *cache; /* folder; NULL: as ku_source_cache */
    struct ku_progress progress;
};
enum { KU_SENTENCE_TOKENS_MAX = 1 << 16 };

/*
 * Opens the files, and tokenizes what is not in the cache. Batches of few shapes:
 * ku_buckets_of_data; read_shape pads to one, read to the limits (t = tgt_len_max + 1).
 *
 * Memory: 20 bytes a line. Owns: *out, until ku_data_destroy. Blocks: while another rank tokenizes.
 * Errors: EINPUT (missing, empty, not UTF-8, unequal counts of lines, no pair left, …), EINVAL,
 * ENOMEM.
 */
int ku_parallel_open(const struct ku_parallel_opts *opts, struct ku_data **out);

/* What was read, and what was left out. */
struct ku_parallel_counts {
    int64_t lines, n_empty, n_long;
    int64_t src_tokens, tgt_tokens; /* of the samples, without <s> and </s> */
};
struct ku_parallel_counts ku_parallel_counts(const struct ku_data *d, enum ku_data_split split);

/* The line of a sample in its files, from 1, files joined. */
int64_t ku_parallel_line(const struct ku_data *d, enum ku_data_split split, int64_t sample);

#endif
