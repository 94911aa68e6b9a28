/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_RUN_SUMMARY_H
#define KU_RUN_SUMMARY_H

#include "base/err.h"
#include "run/metrics.h"
#include "sim/roofline.h"
#include "train/trainer.h"

/* DIR/summary.json, written at the end of a run by rank 0. */
struct ku_summary {
    const struct kumi_train_result *result;
    const struct ku_metrics *metrics;
    const struct ku_limits *limits;
    const struct ku_trainer *t;
    int n_cores;        /* of the job, on all machines */
    bool lacks_eval;    /* there is a validation split, and this step was not evaluated */
    double loss;        /* of the last step; NaN: this process ran none */
    int64_t held_bytes; /* memory of all ranks; 0: unknown */
    int64_t step_bytes; /* stored for collectives by all ranks, in all steps of this process */
    int64_t far_bytes;  /* sent between hosts for them */
    struct ku_step_bytes planned; /* of all ranks in a step */
    int64_t n_unread;             /* samples that could not be read */
};
/*
 * Write the file. A process that ran no steps keeps the measured values of an existing summary.json
 * of the same step. Errors: KUMI_ESTORAGE, ENOMEM.
 */
KU_STATUS ku_summary_write(const char *dir, const struct ku_summary *s);
/*
 * Whether summary.json is from a run that ended after `step` steps.
 *
 *   has_val    there is a validation split, so the file must have its loss, which may be null
 *   val_loss   out: NaN if there is none, or none that is finite
 */
bool ku_summary_is_of(const char *dir, int64_t step, int has_val, double *val_loss);
/*
 * Remove summary.json if it is from a run that ended after more than `step` steps: a run that
 * continues from there repeats them. Errors: KUMI_ESTORAGE.
 */
KU_STATUS ku_summary_cut(const char *dir, int64_t step);

#endif
