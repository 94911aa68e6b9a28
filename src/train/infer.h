/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_INFER_H
#define KU_TRAIN_INFER_H

#include "device/device.h"
#include "exec/exec.h"
#include "train/model.h"

/*
 * A trained model made ready to continue texts: parameters alone, one sample, programs for a few
 * context lengths (powers of two, and the longest) over one memory plan, of which the shortest that
 * holds the context runs. A program is bound when it is first needed. Nothing is kept between calls
 * but the parameters.
 */
struct ku_infer_opts {
    enum kumi_dtype compute;
    const struct ku_device_ops *device;
    struct ku_device_opts device_opts;
    int64_t max_tokens; /* the longest context that ku_infer_next will get, at least 1 */
};
struct ku_infer;

/*
 * Compiles, allocates and loads parameters.
 *
 *   job   of one rank
 *   dir   with model.safetensors under Hugging Face's names
 *
 * Owns: *out, until ku_infer_destroy. Errors: KUMI_EINVAL, EINPUT (the weights), ENOMEM, EDEVICE.
 */
int ku_infer_create(struct ku_job *job, const struct ku_model *model, const char *dir,
                    const struct ku_infer_opts *o, struct ku_infer **out);
void ku_infer_destroy(struct ku_infer *m); /* NULL is fine */

/*
 * What the model says of the token behind token[n - 1]. Of a context longer than n_positions only
 * the end is seen.
 *
 *   token    [n], 1 <= n <= max_tokens, each below vocab_size
 *   logits   [vocab_size], out
 */
int ku_infer_next(struct ku_infer *m, const uint32_t *token, int64_t n, double *logits);

#endif
