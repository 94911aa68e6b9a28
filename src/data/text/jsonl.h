/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TEXT_JSONL_H
#define KU_DATA_TEXT_JSONL_H

#include "data/data.h"
#include "data/input_file.h"

/*
 * Documents as data: files of one JSON object a line. The first line says which form a file has:
 *
 *     {"input_ids": [..], "labels": [..]}   labels has the length of input_ids, -100 where nothing
 *                                           is to be learnt; without it labels are the input_ids
 *     {"text": ".."}                        the tokenizer's tokens and the separator, all learnt
 *
 * Other members are not looked at. As Hugging Face's models do, position k learns labels[k + 1]; so
 * a document of n tokens has n - 1 positions, and the last token is only a label. A text of fewer
 * than two tokens has none and is passed over. Files are read once, into the cache, as text is.
 *
 * Ports of a sample, i32 [T]:
 *
 *     tokens     padding: 0
 *     targets    KU_NO_TARGET where there is no label, and in padding
 *     segments   by option: documents of the sample numbered from 0, padding as one more
 *
 * pack: all documents' positions are one sequence, and sample i is positions [i T, i T + T); only
 * the last is padded, and no position learns another document's token. Otherwise a sample is a
 * document, padded, or cut at T.
 */
enum ku_jsonl_long { KU_LONG_CUT, KU_LONG_ERROR };

struct ku_jsonl_opts {
    const char *const *train; /* files or globs, as struct ku_text_opts */
    int n_train;              /* 0: data.val alone */
    const char *const *val;   /* n_val 0: the last val_fraction of train's samples */
    int n_val;
    double val_fraction;        /* in [0, 1); 0: no validation split */
    const char *tokenizer;      /* of texts, as ku_tokenizer_open; NULL: "byte" */
    const int64_t *separator;   /* that ends a text; NULL: the tokenizer's end of text, if any */
    const char *cache;          /* folder; NULL: as ku_source_cache */
    int64_t seq_len;            /* T, 1 to KU_SEQ_LEN_MAX */
    int64_t vocab_count;        /* 1 to 2^31 */
    int pack, segments;         /* booleans */
    enum ku_jsonl_long on_long; /* without pack: a document of more than T positions */
    struct ku_progress progress;
};

/*
 * Memory: that of the files' names; without pack also 8 bytes a document.
 * Owns: *out, until ku_data_destroy. Blocks: while another rank reads the same file.
 * Errors: EINPUT with file:line (no JSON, neither input_ids nor text, unequal lengths, a token
 * outside the vocabulary, fewer than two tokens), EINVAL, ENOMEM.
 */
int ku_jsonl_open(const struct ku_jsonl_opts *opts, struct ku_data **out);
/* Documents that were cut, over both splits. */
int64_t ku_jsonl_n_cut(const struct ku_data *d);

#endif
