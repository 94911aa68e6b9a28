/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_LAUNCH_H
#define KUMI_LAUNCH_H

#include "kumi/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Run fn on n ranks, processes forked from this one on this host (what mp.spawn is in PyTorch).
 * Inside, fn joins with kumi_comm_join; a rank's exit code is fn's result, its negative if that is
 * a status.
 *
 *   n   1 … 512
 *
 * Blocks until all ranks ended. Errors: KUMI_EINVAL (n; or this process has other threads, which a
 * fork would lose); otherwise the job's root cause, or -exit code of the first rank that failed.
 */
KUMI_API int kumi_launch(int (*fn)(void *arg), void *arg, int n);

#ifdef __cplusplus
}
#endif
#endif
