/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_DATA_H
#define KUMI_DATA_H

#include "kumi/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Text and token files as batches, for a program that keeps its own loop. Sample i is tokens
 * [i T, i T + T], inputs and targets shifted by one. Which sample stands where in a step's batch is
 * a function of (seed, step, row), in constant memory: who reads a row never changes the batch.
 *
 *     kumi_data_open(&options, &data);
 *     kumi_data_train_batch(data, step, 0, global_batch, tokens, targets);
 */
struct kumi_data;

/* All-zero means defaults; train, seq_len and global_batch are wanted. */
struct kumi_data_options {
    const char *const *train; /* [n_train] files or globs; *.bin holds tokens, others text */
    int n_train;
    const char *const *val; /* [n_val]; none: the end of train */
    int n_val;
    double val_fraction;    /* of train's tokens, in [0, 1); default 0: no validation split */
    const char *tokenizer;  /* "byte" (default), a directory, or a tokenizer.json */
    const char *format;     /* of raw *.bin: "u16", "u32"; default: they carry llm.c's header */
    int64_t seq_len;        /* T */
    int64_t vocab_size;     /* tokens from here on are refused when read; default: 2^31 */
    int64_t global_batch;   /* samples of a step */
    const char *last_batch; /* of an epoch: "drop" (default), "wrap", "short" */
    int in_order;           /* 0: a seeded permutation of all samples in each epoch */
    uint64_t seed;
};

/*
 * Opens the files; text is tokenized once and kept in the cache folder ($KUMI_CACHE).
 *
 * Blocks: while another rank tokenizes the same text. Errors: KUMI_EINPUT (missing, empty, shorter
 * than a sample), EINVAL (options), ENOMEM.
 */
KUMI_API int kumi_data_open(const struct kumi_data_options *options, struct kumi_data **data);
KUMI_API void kumi_data_close(struct kumi_data *data); /* takes NULL */

KUMI_API int64_t kumi_data_steps_per_epoch(const struct kumi_data *data);
KUMI_API int64_t kumi_data_n_val(const struct kumi_data *data); /* samples; 0: no such split */

/*
 * Rows [first, first + n) of a step's batch, or samples [first, first + n) of the validation split.
 * A row that holds no sample (behind a short batch, behind the split's end) has negative targets,
 * which no loss counts.
 *
 *   tokens, targets   [n][seq_len]
 *
 * Threads: any number at once. Errors: KUMI_EINPUT with file and byte.
 */
KUMI_API int kumi_data_train_batch(const struct kumi_data *data, int64_t step, int64_t first,
                                   int64_t n, int32_t *tokens, int32_t *targets);
KUMI_API int kumi_data_val_batch(const struct kumi_data *data, int64_t first, int64_t n,
                                 int32_t *tokens, int32_t *targets);

#ifdef __cplusplus
}
#endif
#endif
