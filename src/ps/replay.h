/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_REPLAY_H
#define KU_PS_REPLAY_H

#include "base/err.h"
#include "kumi/run.h"

/*
 * Repeat a run from its journal, in this process, without workers: from the start if all of the
 * journal was kept, else from the newest checkpoint before its last update, with the logged pushes
 * in the logged order. The run's directory is not changed.
 *
 *   dir      of the run
 *   out      directory of the repeated run
 *   result   as of a run: the digest is that of the run if nothing was lost or applied twice
 *
 * Errors: KUMI_EINVAL (no journal), ENOCKPT (no checkpoint to begin with, which also has the
 * configuration); those of a run.
 */
KU_STATUS ku_ps_replay(const char *dir, const char *out, struct kumi_train_result *result);

#endif
