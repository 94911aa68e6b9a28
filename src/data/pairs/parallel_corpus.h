/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_PAIRS_PARALLEL_CORPUS_H
#define KU_DATA_PAIRS_PARALLEL_CORPUS_H

#include "base/err.h"
#include "data/pairs/buckets.h"
#include "data/data.h"
#include "data/input_file.h"
#include "data/tokenizer/vocab.h"

/*
 * Parallel corpus for translation: two files (or two lists of files) with one sentence per line,
 * where line i of the target is the translation of line i of the source. Each file is tokenized
 * once, into the cache (text/source.h). Samples are the sentence pairs in file order, without those
 * left out (empty or too long).
 *
 * Ports of a sample, padded to the lengths s and t of a shape; source of m tokens, target of n:
 *
 *     src      i32 [s]   a1 … am <pad> …
 *     src_len  i32 []    m
 *     tgt_in   i32 [t]   <s> b1 … bn <pad> …
 *     targets  i32 [t]   b1 … bn </s> KU_NO_TARGET …
 *     tgt_len  i32 []    n + 1
 */
enum {
    KU_PARALLEL_SRC,
    KU_PARALLEL_SRC_LEN,
    KU_PARALLEL_TGT_IN,
    KU_PARALLEL_TARGETS,
    KU_PARALLEL_TGT_LEN,
    KU_PARALLEL_PORTS
};

/* Treatment of a sentence pair with an empty line or with more tokens than the limit. */
enum ku_parallel_odd {
    KU_ODD_DROP, /* left out; counted, and a warning names the first one */
    KU_ODD_ERROR /* EINPUT with file and line */
};

struct ku_parallel_files {
    const char *const *src, *const *tgt; /* [n] each */
    int n;                               /* 0: the split is absent */
};
struct ku_parallel_opts {
    struct ku_parallel_files files[KU_N_SPLITS];
    struct ku_vocab *src_vocab, *tgt_vocab; /* borrowed until destroy; may be the same */
    /* tokens per sentence without <s> and </s>; 1 to KU_SENTENCE_TOKENS_MAX */
    int64_t src_len_max, tgt_len_max;
    enum ku_parallel_odd on_empty, on_long;
    const char *cache; /* folder; NULL: as ku_input_cache */
    struct ku_progress progress;
};
enum { KU_SENTENCE_TOKENS_MAX = 1 << 16 };

/*
 * Open the files and tokenize those not in the cache. ku_buckets_of_data makes batches of few
 * shapes; read_shape pads to one of them, read pads to the limits (t = tgt_len_max + 1).
 *
 * Memory: 20 bytes per line. Owns: *out, until ku_data_destroy. Blocks: while another rank
 * tokenizes.
 * Errors: EINPUT (missing, empty, not UTF-8, unequal numbers of lines, no sample left, …), EINVAL,
 * ENOMEM.
 */
KU_STATUS ku_parallel_open(const struct ku_parallel_opts *opts, struct ku_data **out);

/* Counts of lines read and lines left out. */
struct ku_parallel_counts {
    int64_t lines, n_empty, n_long;
    int64_t src_tokens, tgt_tokens; /* of the samples, without <s> and </s> */
};
struct ku_parallel_counts ku_parallel_counts(const struct ku_data *d, enum ku_data_split split);

/* The line number of a sample, from 1, over all files of the split. */
int64_t ku_parallel_line(const struct ku_data *d, enum ku_data_split split, int64_t sample);

#endif
