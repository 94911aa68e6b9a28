/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_INFER_TRANSLATOR_H
#define KU_INFER_TRANSLATOR_H

#include "exec/exec.h"
#include "model/model.h"

/*
 * A trained model of pairs made ready to translate: parameters, and for n_rows sentences side by
 * side the keys and values of source and target. One program reads sources, in a few lengths,
 * another puts a token behind each target; all over one memory plan.
 */
struct ku_translator_opts {
    enum kumi_dtype compute;
    const char *const *keep_f32; /* modules that compute in f32, as in training; NULL: none */
    const char *averages; /* a checkpoint, whose averages of the weights are taken in place of those
                             of dir; NULL: they are not */
    const struct ku_device_ops *device;
    struct ku_device_opts device_opts;
    int64_t n_rows; /* at least 1 */
    int64_t src_max,
        tgt_max; /* tokens of a source, of a target; more than max_positions: as that */
};
struct ku_translator;

/*
 * Compiles, allocates and loads parameters.
 *
 *   job   of one rank
 *   dir   with model.safetensors
 *
 * Owns: *out, until ku_translator_destroy. Errors: KUMI_EINVAL (a model of no pairs), EINPUT (the
 * weights), ENOMEM, EDEVICE.
 */
int ku_translator_create(struct ku_job *job, const struct ku_model *model, const char *dir,
                         const struct ku_translator_opts *o, struct ku_translator **out);
void ku_translator_destroy(struct ku_translator *t); /* NULL is fine */

/* Begins all rows anew: source[row] of n tokens, at most src_max; no target yet. */
struct ku_translator_text {
    const uint32_t *token;
    int64_t n;
};
int ku_translator_read(struct ku_translator *t, const struct ku_translator_text *source);
/* For ku_beam_model, ctx the translator: a token behind each target, log-probabilities of the next;
 * and rows that become others of the same source. */
int ku_translator_step(void *translator, const uint32_t *token, const unsigned char *is_done,
                       double *log_p);
int ku_translator_select(void *translator, const int64_t *parent);

#endif
