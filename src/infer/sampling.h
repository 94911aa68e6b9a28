/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_INFER_SAMPLING_H
#define KU_INFER_SAMPLING_H

#include <stdint.h>

#include "base/err.h"

/*
 * Draws the next token from a model's logits, restricted by top_k and top_p, with probabilities at
 * a temperature.
 */
struct ku_token_logit {
    double logit;
    uint32_t id;
};
struct ku_sampling {
    double temperature; /* 0: the most probable token */
    int64_t top_k;      /* only the k most probable; 0: all */
    /* of these the fewest with probability >= top_p (nucleus, Holtzman et al. 2020); 0, 1: all */
    double top_p;
    struct ku_token_logit *order; /* [n] scratch */
};
/*
 * Draw a token.
 *
 *   logit    [n], n >= 1; overwritten
 *   number   index of the token in its text; the random number is a function of (seed, number)
 *
 * Errors: ENUMERIC, for a logit that is NaN or +infinity.
 */
KU_STATUS ku_sampling_draw(const struct ku_sampling *p, double *logit, int64_t n, uint64_t seed,
                           int64_t number, uint32_t *id);

#endif
