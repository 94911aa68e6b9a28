/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_API_H
#define KU_COMM_API_H

#include "comm/job.h"
#include "kumi/comm.h"

/* The job behind a public communicator. Borrowed. */
struct ku_job *ku_comm_api_job(const struct kumi_comm *comm);

#endif
