/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_WEIGHTS_H
#define KU_CKPT_WEIGHTS_H

#include "ckpt/tensor.h"

/* How a Hugging Face model's names relate to ours. All-zero: names are equal and every tensor is
 * wanted. */
struct ku_weights_opts {
    const char *prefix; /* "transformer.": names may carry it, or not; NULL: none */
    const char *const
        *ignore; /* [n_ignore] patterns of buffers to pass over ("h.*.attn.bias"), without prefix */
    int n_ignore;
    const char *tied,
        *tied_to; /* "lm_head.weight" is accepted where it equals "wte.weight"; NULL: none */
};
struct ku_weights_report {
    int has_prefix; /* the file's names carry it: a writer that shall write what was read adds it */
    int has_tied;   /* the file holds the tied tensor once more */
    int n_ignored, n_rounded; /* tensors passed over; tensors whose dtype was narrowed */
};

/*
 * Load the tensors (of group MODEL) from DIR/model.safetensors or its shards, converting (f64 to
 * f32 rounds once). Padding is not touched.
 *
 *   report   NULL: not wanted
 *
 * Errors: KUMI_EINPUT: files malformed; or missing, extra and misshapen tensors in one complete
 * list, before anything is written.
 */
int ku_weights_load(const char *dir, const struct ku_ckpt_tensor *tensor, int n,
                    const struct ku_weights_opts *opts, struct ku_weights_report *report);

#endif
