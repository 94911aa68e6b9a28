/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_INFER_EVALUATE_H
#define KU_INFER_EVALUATE_H

#include "job/job.h"
#include "kumi/run.h"

/*
 * Evaluate the newest intact checkpoint of a run, or a directory of weights. Without data and
 * stride the loss has the same bits as the val_loss of that step in training, for any number of
 * ranks.
 *
 *   options   options->run as for ku_ckpt_find
 *
 * Collective: over the job; a failure ends the job (ku_job_fail).
 * Errors: ENOCKPT, EINVAL (no validation split), EINPUT (the data), and the job's root cause.
 */
int ku_evaluate_run(struct ku_job *job, const struct kumi_eval_options *options,
                    struct kumi_eval_result *result);

#endif
