/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_NONFINITE_H
#define KU_TRAIN_NONFINITE_H

#include "train/trainer.h"

struct ku_nonfinite {
    const char *tensor; /* the parameter whose gradient is not finite; NULL: the loss alone is */
    int rank;           /* whose part of it is not; -1: only the sum over ranks */
};
/*
 * Of a step whose report says APPLY 0: the first parameter, in their order, in whose gradient some
 * rank's own part is not finite, and the lowest such rank. Runs the step again on the ports as they
 * are and looks at each part before the ranks add theirs up; the state stays as it is, buffers
 * included.
 *
 * Collective: every rank gets the same answer. Errors: KUMI_ENOMEM, and the job's root cause.
 */
int ku_nonfinite_find(struct ku_trainer *t, int64_t step, struct ku_nonfinite *out);

#endif
