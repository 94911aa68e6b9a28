/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_INFER_GENERATOR_H
#define KU_INFER_GENERATOR_H

#include "device/device.h"
#include "exec/exec.h"
#include "pass/pass.h"
#include "model/model.h"

/*
 * A trained model made ready to continue texts: parameters, and for n_rows texts side by side the
 * keys and values of their tokens, so that a token costs the same wherever it stands (but for
 * reading those). One program reads prompts, in pieces of a few lengths, another makes a token of
 * each row; both over one memory plan. A program is bound when it is first needed.
 *
 * A row holds at most max_positions tokens. The next one pushes the first out, which moves all
 * others: their keys and values are made anew, for each such token.
 */
struct ku_infer_opts {
    enum kumi_dtype compute;
    const char *const *keep_f32; /* modules that compute in f32, as in training; NULL: none */
    const char *averages; /* a checkpoint, whose averages of the weights are taken in place of those
                             of dir; NULL: they are not */
    const struct ku_device_ops *device;
    struct ku_device_opts device_opts;
    struct ku_watch watch; /* of the compiler */
    int64_t n_rows;        /* at least 1 */
    int64_t max_tokens; /* that a row will hold, at least 1; more than max_positions is as that */
};
struct ku_infer;

/*
 * Compiles, allocates and loads parameters.
 *
 *   job   of one rank
 *   dir   with model.safetensors under Hugging Face's names
 *
 * Owns: *out, until ku_infer_destroy. Errors: KUMI_EINVAL (a model that keeps no keys), EINPUT (the
 * weights), ENOMEM, EDEVICE.
 */
int ku_infer_create(struct ku_job *job, const struct ku_model *model, const char *dir,
                    const struct ku_infer_opts *o, struct ku_infer **out);
void ku_infer_destroy(struct ku_infer *m); /* NULL is fine */

/*
 * Begins all rows anew, each with a text, of which the last max_positions tokens are seen; logits
 * are what the model says of the token behind it.
 *
 *   token    [n_rows] texts, [n] each, n >= 1, ids below vocab_size
 *   logits   [n_rows][vocab_size], out
 */
struct ku_infer_text {
    const uint32_t *token;
    int64_t n;
};
int ku_infer_prompt(struct ku_infer *m, const struct ku_infer_text *text, double *logits);
/*
 * Puts a token behind each row's text.
 *
 *   is_done   [n_rows], rows that nobody will ask for again, until the next prompt or selection;
 *             NULL: none. Their logits stay as they are.
 */
int ku_infer_next(struct ku_infer *m, const uint32_t *token, const unsigned char *is_done,
                  double *logits);
/* Row i becomes what row parent[i] is, parent [n_rows]. Errors: KUMI_ENOMEM. */
int ku_infer_reorder(struct ku_infer *m, const int64_t *parent);

/* What was done so far, and its time. */
struct ku_infer_work {
    int64_t prompt_tokens, prompt_ns; /* windows that were made anew are among them */
    int64_t tokens, steps, ns;        /* one by one: `tokens` of all rows in `steps` runs */
};
struct ku_infer_work ku_infer_work(const struct ku_infer *m);

#endif
