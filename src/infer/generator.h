/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_INFER_GENERATOR_H
#define KU_INFER_GENERATOR_H

#include "base/err.h"
#include "device/device.h"
#include "exec/exec.h"
#include "pass/pass.h"
#include "model/model.h"

/*
 * Text generation with a trained causal model. It holds the parameters, and a KV cache of n_rows
 * sequences, so that each token costs one run of one token (plus reading the cache). Prompts run in
 * pieces of 16, 64 or 256 tokens ("prefill"), then one token per row and run ("decode"); all
 * programs share one memory plan and are loaded on first use:
 *
 *     ku_infer_prompt    [16 | 64 | 256 tokens per row] …   -> logits of the next token
 *     ku_infer_next      [1 token per row]                  -> logits of the next token
 *     sampling.h         logits -> token
 *
 * A row holds at most max_positions tokens. A further token removes the first one, which changes
 * the position of all others, so the row's cache is recomputed for each such token.
 */
struct ku_infer_opts {
    enum kumi_dtype compute;
    const char *const *keep_f32; /* modules that compute in f32, as in training; NULL: none */
    const struct ku_precision_rules *modules; /* dtypes by module, as in training; NULL: none */
    const char *averages; /* checkpoint whose averaged weights replace those of dir; NULL: none */
    const struct ku_device_ops *device;
    struct ku_device_opts device_opts;
    struct ku_watch watch; /* compile progress callback */
    int64_t n_rows;        /* at least 1 */
    int64_t max_tokens;    /* of a row, at least 1; limited to max_positions */
};
struct ku_infer;

/*
 * Compile, allocate and load parameters.
 *
 *   job   has one rank
 *   dir   holds model.safetensors with Hugging Face's names
 *
 * Owns: *out, until ku_infer_destroy.
 * Errors: EINVAL (a model without a KV cache), EINPUT (the weights), ENOMEM, EDEVICE.
 */
KU_STATUS ku_infer_create(struct ku_job *job, const struct ku_model *model, const char *dir,
                          const struct ku_infer_opts *o, struct ku_infer **out);
void ku_infer_destroy(struct ku_infer *m);

/*
 * Start all rows with a text each, cut to its last max_positions tokens, and compute the logits of
 * the token after it.
 *
 *   text     [n_rows]; n >= 1 tokens below vocab_size each
 *   logits   [n_rows][vocab_size], out
 */
struct ku_infer_text {
    const uint32_t *token;
    int64_t n;
};
KU_STATUS ku_infer_prompt(struct ku_infer *m, const struct ku_infer_text *text, double *logits);
/*
 * Append a token to each row's text and compute the logits of the next one.
 *
 *   token     [n_rows]
 *   is_done   [n_rows]; 1: the row is not used until the next prompt, and its logits are not
 *             written; NULL: none
 *   logits    [n_rows][vocab_size], out
 */
KU_STATUS ku_infer_next(struct ku_infer *m, const uint32_t *token, const unsigned char *is_done,
                        double *logits);

/* Tokens processed so far, and the time it took. */
struct ku_infer_work {
    int64_t prompt_tokens, prompt_ns; /* including recomputed windows */
    int64_t tokens, steps, ns;        /* decode: `tokens` of all rows in `steps` runs */
};
struct ku_infer_work ku_infer_work(const struct ku_infer *m);

#endif
