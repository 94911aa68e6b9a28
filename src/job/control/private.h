/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_CONTROL_PRIVATE_H
#define KU_JOB_CONTROL_PRIVATE_H

#include "base/err.h"
#include "job/control.h"

/* Hand a connection to a rank of the bridge's host. 0, or -1: EAGAIN: its queue is full. */
int ku_doorbell_pass(const struct ku_doorbell *own, int local, const struct ku_dial_head *head,
                     int fd);

#endif
