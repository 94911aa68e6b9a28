/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_RUN_SEEN_H
#define KU_TRAIN_RUN_SEEN_H

#include "base/err.h"
#include "job/job.h"

/*
 * Check that every host of the job sees the run directory: rank 0 makes an empty file there whose
 * name was never used, and the first rank of each other host opens it. A file system may show it
 * late, so they try for 2 s. The file is removed in any case; those of runs that were killed are
 * removed too.
 *
 *   path   as broadcast from rank 0: a relative one is taken in each rank's working directory
 *
 * Collective. No effect with one host.
 * Errors: KUMI_EINVAL on all ranks (names up to four hosts that do not see it, and their number);
 * ESTORAGE (the file cannot be made).
 */
KU_STATUS ku_run_check_seen(struct ku_job *job, const char *path);

#endif
