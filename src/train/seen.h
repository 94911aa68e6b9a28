/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_SEEN_H
#define KU_TRAIN_SEEN_H

#include "base/err.h"
#include "job/job.h"

/*
 * Check that every host of the job sees a directory that rank 0 can write: rank 0 makes an empty
 * file there whose name was never used, and the first rank of each other host opens it. A file
 * system may show it late, so they try for 2 s. The file is removed in any case; those of jobs that
 * were killed are removed too.
 *
 *   what   for errors: "run directory"
 *   path   a relative one is taken in each rank's working directory
 *
 * Collective. No effect with one host. An error does not end the job.
 * Errors, on all ranks: KUMI_EINVAL (names up to four hosts that do not see it, and their number);
 * ESTORAGE (the file cannot be made).
 */
KU_STATUS ku_check_seen(struct ku_job *job, const char *what, const char *path);

#endif
