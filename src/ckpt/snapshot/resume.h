/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_RESUME_H
#define KU_CKPT_SNAPSHOT_RESUME_H

#include "base/err.h"
#include "ckpt/snapshot/snapshot.h"

/* No; from a checkpoint, which must exist; from a checkpoint if there is one. */
enum ku_resume { KU_RESUME_NO, KU_RESUME_YES, KU_RESUME_AUTO };

/*
 * Find the checkpoint that a run continues from. Called by one rank.
 *
 *   run     the run's directory
 *   how     YES or AUTO
 *   step    step of the checkpoint; 0: the newest usable one
 *   found   out: its path; "": the run has none, and AUTO starts afresh
 *
 * Errors: KUMI_ENOCKPT: no checkpoint, no usable one, or none of that step. A run with checkpoints
 * never starts afresh.
 */
KU_STATUS ku_resume_find(const char *run, enum ku_resume how, int64_t step,
                         char found[KU_CKPT_PATH_BYTES]);
/*
 * Move checkpoints of steps after `step`, from which the run continues, to RUN/checkpoints.cut.
 * Nothing reads or removes them there.
 *
 * Errors: KUMI_ESTORAGE, ENOCKPT.
 */
KU_STATUS ku_resume_cut(const char *run, int64_t step);

#endif
