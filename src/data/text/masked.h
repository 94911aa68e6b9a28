/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TEXT_MASKED_H
#define KU_DATA_TEXT_MASKED_H

#include "base/err.h"
#include "data/data.h"

/*
 * Masked language modelling (Devlin et al. 2019, section 3.1) over data with the ports tokens and
 * targets. Each token is selected with `probability`; a selected token becomes the mask token in 80
 * %, a random token in 10 % and stays in 10 % of the cases. Targets are the selected tokens,
 * KU_NO_TARGET elsewhere. The choice is a function of (seed, number of the draw over all epochs,
 * position in the sample): it differs between epochs and does not depend on the parallel layout.
 * For a validation sample it is always the same.
 *
 * Ports: tokens, targets, token_type_ids (zeros), i32 [T]; lengths (T), i32 [].
 */
struct ku_masked_opts {
    double probability;  /* in (0, 1) */
    int64_t mask_token;  /* id of the mask token */
    int64_t vocab_count; /* random replacements are below it */
    uint64_t seed;
};
/*
 * Owns: *out, which owns `text`; `text` is destroyed on failure too. Errors: ENOMEM.
 */
KU_STATUS ku_masked_open(struct ku_data *text, const struct ku_masked_opts *opts,
                         struct ku_data **out);
/* The mask token of masked data; -1 for other data. */
int64_t ku_masked_token(const struct ku_data *d);

#endif
