/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_INFER_TRANSLATOR_H
#define KU_INFER_TRANSLATOR_H

#include "base/err.h"
#include "exec/exec.h"
#include "model/model.h"

/*
 * Runs a trained translation model. It holds the parameters, and for n_rows sentences the keys and
 * values of source and target. One program per source length runs the encoder, another appends a
 * token to each target; all share one memory plan.
 */
struct ku_translator_opts {
    enum kumi_dtype compute;
    const char *const *keep_f32; /* modules that compute in f32, as in training; NULL: none */
    const struct ku_precision_rules *modules; /* dtypes by module, as in training; NULL: none */
    const char *averages; /* checkpoint whose averaged weights replace those of dir; NULL: none */
    const struct ku_device_ops *device;
    struct ku_device_opts device_opts;
    int64_t n_rows;           /* at least 1 */
    int64_t src_max, tgt_max; /* max tokens of a source, of a target; limited to max_positions */
    int64_t n_tokens;         /* tokens of the target vocabulary, as the model's may be padded; ids
                                 from here on have the log-probability -inf; 0: none */
};
struct ku_translator;

/*
 * Compile, allocate and load parameters.
 *
 *   job   has one rank
 *   dir   holds model.safetensors
 *
 * Owns: *out, until ku_translator_destroy.
 * Errors: EINVAL (not a translation model), EINPUT (the weights), ENOMEM, EDEVICE.
 */
KU_STATUS ku_translator_create(struct ku_job *job, const struct ku_model *model, const char *dir,
                               const struct ku_translator_opts *o, struct ku_translator **out);
void ku_translator_destroy(struct ku_translator *t);

/* Starts all rows with a source of at most src_max tokens each, and an empty target. */
struct ku_translator_text {
    const uint32_t *token;
    int64_t n;
};
KU_STATUS ku_translator_read(struct ku_translator *t, const struct ku_translator_text *source);
/*
 * The functions of struct ku_beam_model, with ctx the translator: append a token to each target and
 * compute log-probabilities of the next; replace rows by others of the same source.
 */
KU_STATUS ku_translator_step(void *translator, const uint32_t *token, const unsigned char *is_done,
                             double *log_p);
KU_STATUS ku_translator_select(void *translator, const int64_t *parent);

#endif
