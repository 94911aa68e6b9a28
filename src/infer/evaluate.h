/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_INFER_EVALUATE_H
#define KU_INFER_EVALUATE_H

#include "job/job.h"
#include "kumi/run.h"

/*
 * Evaluate a run's newest checkpoint that is whole. Without data and stride as the run itself does:
 * the loss has the bits of the val_loss of its step, whatever the rank counts then and now.
 *
 *   run   as for ku_ckpt_find
 *
 * Collective over the job, which a failure ends (ku_job_fail). Errors: KUMI_ENOCKPT, EINVAL (no
 * validation split), EINPUT (the data), and the job's root cause.
 */
int ku_evaluate_run(struct ku_job *job, const struct kumi_eval_options *options,
                    struct kumi_eval_result *result);

#endif
