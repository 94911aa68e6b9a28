/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TEXT_JSONL_H
#define KU_DATA_TEXT_JSONL_H

#include "base/err.h"
#include "data/data.h"
#include "data/input_file.h"

/*
 * Documents for fine-tuning: files with one JSON object per line. The first line decides the form
 * of a file:
 *
 *     {"input_ids": [..], "labels": [..]}   labels has the length of input_ids, with -100 for no
 *                                           label; without it labels equal input_ids
 *     {"text": ".."}                        the tokenizer's tokens with those that it adds around
 *                                           a text, and the separator, unless that is the last of
 *                                           these; all labelled
 *
 * Other members are ignored. As in Hugging Face's models, position k predicts labels[k + 1], so a
 * document of n tokens has n - 1 positions. A string of fewer than two tokens is skipped. Files are
 * tokenized once, into the cache.
 *
 * Ports of a sample, i32 [T]:
 *
 *     tokens     padding: 0
 *     targets    KU_NO_TARGET where there is no label, and in padding
 *     segments   optional: number of the document in the sample, from 0; padding counts as one more
 *
 * With pack, the positions of all documents form one sequence, and sample i is positions [i T, i T
 * + T); only the last sample is padded, and no target crosses a document boundary. Without pack, a
 * sample is one document, padded or cut to T.
 */
enum ku_jsonl_long { KU_LONG_CUT, KU_LONG_ERROR };

struct ku_jsonl_opts {
    const char *const *train; /* files or globs, as struct ku_text_opts */
    int n_train;              /* 0: only data.val */
    const char *const *val;   /* n_val 0: the last val_fraction of train's samples */
    int n_val;
    double val_fraction;        /* in [0, 1); 0: no validation split */
    const char *tokenizer;      /* for strings, as ku_tokenizer_open; NULL: "byte" */
    const int64_t *separator;   /* after each string; NULL: the tokenizer's end of text, if any */
    const char *cache;          /* folder; NULL: as ku_input_cache */
    int64_t seq_len;            /* T, 1 to KU_SEQ_LEN_MAX */
    int64_t vocab_count;        /* 1 to 2^31 */
    int pack, segments;         /* booleans */
    enum ku_jsonl_long on_long; /* without pack: treatment of a document of more than T positions */
    struct ku_progress progress;
};

/*
 * Open the files.
 *
 * Memory: the files' names; without pack also 8 bytes per document. Owns: *out, until
 * ku_data_destroy. Blocks: while another rank reads the same file.
 * Errors: EINPUT with file:line (not JSON, neither input_ids nor text, unequal lengths, a token
 * outside the vocabulary, fewer than two tokens), EINVAL, ENOMEM.
 */
KU_STATUS ku_jsonl_open(const struct ku_jsonl_opts *opts, struct ku_data **out);
/*
 * Detect the form of a file from its first document. Faults of the document are reported when it is
 * read, as one of token ids.
 *
 *   form   out: UNKNOWN for a first line that is not JSON or has neither member
 *
 * Errors: EINPUT, the file cannot be opened; ENOMEM.
 */
enum ku_jsonl_form { KU_JSONL_UNKNOWN, KU_JSONL_IDS, KU_JSONL_TEXT };
KU_STATUS ku_jsonl_form_of(const char *path, enum ku_jsonl_form *form);
/* Number of documents that were cut, over both splits. */
int64_t ku_jsonl_n_cut(const struct ku_data *d);

#endif
