/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TEXT_MASKED_H
#define KU_DATA_TEXT_MASKED_H

#include "data/data.h"

/*
 * Masked language modelling (Devlin et al. 2019, section 3.1) over data with the ports tokens and
 * targets: each token is chosen with `probability`; a chosen one becomes the mask in 80 of 100
 * cases, any token in 10, and stays in 10; targets are the chosen tokens, -100 elsewhere. What
 * happens to a token is a function of (seed, number of the draw over all epochs, place in the
 * sample), so every epoch masks anew and no layout shows; of a validation sample always the same.
 *
 * Ports: tokens, targets, token_type_ids (zeros); i32 [T]; lengths (T); i32.
 */
struct ku_masked_opts {
    double probability;  /* in (0, 1) */
    int64_t mask_token;  /* id that stands for what is masked */
    int64_t vocab_count; /* ids below it replace at random */
    uint64_t seed;
};
/* Owns: *out, and in it `text`, also after a failure. Errors: ENOMEM. */
int ku_masked_open(struct ku_data *text, const struct ku_masked_opts *opts, struct ku_data **out);

#endif
