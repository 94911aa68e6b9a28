/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_DATA_H
#define KUMI_DATA_H

#include "kumi/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Batches from text and token files, for a program with its own training loop. Sample i is tokens
 * [i T, i T + T]: inputs, and targets shifted by one. The sample in a row of a step's batch is a
 * function of (seed, step, row), computed in constant memory; it does not depend on the rank that
 * reads the row.
 *
 *     kumi_data_open(&options, &data);
 *     kumi_data_train_batch(data, step, 0, global_batch, tokens, targets);
 */
struct kumi_data;

/* All-zero means defaults. train, seq_len and global_batch are required. */
struct kumi_data_options {
    const char *const *train; /* [n_train] files or globs; *.bin holds tokens, others text */
    int n_train;
    const char *const *val; /* [n_val] the same; NULL: val_fraction of train */
    int n_val;
    double val_fraction;    /* share of train's tokens, in [0, 1); 0: no validation split */
    const char *tokenizer;  /* "byte" (default), a directory, or a tokenizer.json */
    const char *format;     /* of raw *.bin: "u16", "u32"; NULL: they have llm.c's header */
    int64_t seq_len;        /* T: tokens per sample */
    int64_t vocab_size;     /* reading a token >= this is an error; 0: 2^31 */
    int64_t global_batch;   /* samples per step */
    const char *last_batch; /* at the end of an epoch: "drop" (NULL), "wrap", "short" */
    int in_order;           /* 0: a seeded permutation of all samples per epoch */
    uint64_t seed;
};

/*
 * Open the files. Text is tokenized once; the tokens stay in the cache folder ($KUMI_CACHE).
 *
 * Blocks: while another rank tokenizes the same text. Errors: KUMI_EINPUT (missing, empty, shorter
 * than one sample), EINVAL (options), ENOMEM.
 */
KUMI_API int kumi_data_open(const struct kumi_data_options *options, struct kumi_data **data);
KUMI_API void kumi_data_close(struct kumi_data *data); /* NULL is allowed */

KUMI_API int64_t kumi_data_steps_per_epoch(const struct kumi_data *data);
KUMI_API int64_t kumi_data_n_val(const struct kumi_data *data); /* samples; 0: no such split */

/*
 * Read rows [first, first + n) of a step's batch, or samples [first, first + n) of the validation
 * split. A row without a sample (after the end of a short batch or of the split) gets negative
 * targets, which the loss ignores.
 *
 *   tokens, targets   out: [n][seq_len]
 *
 * Threads: any number at a time. Errors: KUMI_EINPUT with file and byte.
 */
KUMI_API int kumi_data_train_batch(const struct kumi_data *data, int64_t step, int64_t first,
                                   int64_t n, int32_t *tokens, int32_t *targets);
KUMI_API int kumi_data_val_batch(const struct kumi_data *data, int64_t first, int64_t n,
                                 int32_t *tokens, int32_t *targets);

#ifdef __cplusplus
}
#endif
#endif
