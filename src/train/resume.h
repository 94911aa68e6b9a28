/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_RESUME_H
#define KU_TRAIN_RESUME_H

#include "train/rundir.h"
#include "train/trainer.h"

/*
 * The checkpoint that a run continues from. By one rank.
 *
 *   run     the run's directory
 *   how     YES or AUTO
 *   step    the step whose checkpoint it is; 0: the newest that is usable
 *   found   out; "": the run has no checkpoint, and AUTO starts afresh
 *
 * Errors: KUMI_ENOCKPT: none, none that is usable, or none of that step. A run that has checkpoints
 * never starts afresh.
 */
int ku_resume_find(const char *run, enum ku_resume how, int64_t step,
                   char found[KU_CKPT_PATH_BYTES]);
/*
 * The run continues from `step`: checkpoints of later steps move to RUN/checkpoints.cut, where
 * nothing reads or removes them.
 *
 * Errors: KUMI_ESTORAGE, ENOCKPT.
 */
int ku_resume_cut(const char *run, int64_t step);

#endif
