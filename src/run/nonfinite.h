/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_RUN_NONFINITE_H
#define KU_RUN_NONFINITE_H

#include "base/err.h"
#include "train/trainer.h"

struct ku_nonfinite {
    const char *tensor; /* parameter with the non-finite gradient; NULL: only the loss */
    int rank;           /* rank whose part is not finite; -1: only the sum over ranks is not */
};
/*
 * For a step whose report has APPLY 0: find the first parameter, in parameter order, for which some
 * rank's own part of the gradient is not finite, and the lowest such rank. Runs the step again on
 * the current ports and checks each part before the ranks sum it. The state, buffers included, is
 * unchanged.
 *
 * Collective: every rank gets the same result. Errors: KUMI_ENOMEM, and the job's root cause.
 */
KU_STATUS ku_nonfinite_find(struct ku_trainer *t, int64_t step, struct ku_nonfinite *out);

#endif
