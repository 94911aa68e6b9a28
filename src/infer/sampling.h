/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_INFER_SAMPLING_H
#define KU_INFER_SAMPLING_H

#include <stdint.h>

/*
 * The next token, drawn from a model's logits: those that top_k and top_p leave, by their
 * probabilities at a temperature.
 */
struct ku_rank {
    double logit;
    uint32_t id;
};
struct ku_pick {
    double temperature;   /* 0: the likeliest token */
    int64_t top_k;        /* among the k likeliest; 0: all */
    double top_p;         /* of these the fewest whose share is at least top_p (nucleus sampling:
                             Holtzman et al. 2020); 0 or 1: all */
    struct ku_rank *rank; /* [n] scratch */
};
/*
 * Number `number` of a text's tokens; its random number is a function of (seed, number).
 *
 *   logit   [n], n >= 1; afterwards they mean nothing
 *
 * Errors: KUMI_ENUMERIC, for a logit that is NaN or infinity.
 */
int ku_pick(const struct ku_pick *p, double *logit, int64_t n, uint64_t seed, int64_t number,
            uint32_t *id);

#endif
