/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_API_API_H
#define KU_COMM_API_API_H

#include "base/err.h"
#include "job/job.h"
#include "kumi/comm.h"

/*
 * The job of a world communicator. Borrowed. KUMI_EINVAL: `comm` is one of kumi_comm_split.
 *
 *   call   for the message
 */
KU_STATUS ku_comm_api_job(const struct kumi_comm *comm, const char *call, struct ku_job **job);
/* Wrap c in a public communicator. kumi_comm_free frees both. */
struct ku_comm;
KU_STATUS ku_comm_api_wrap(struct ku_comm *c, struct kumi_comm **out);

#endif
