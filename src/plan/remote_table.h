/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PLAN_REMOTE_TABLE_H
#define KU_PLAN_REMOTE_TABLE_H

#include "base/err.h"
#include "kumi/run.h"

/*
 * Bytes of a parameter server (ps.workers), per worker and server: messages of a step and memory.
 *
 *   text   out: freed by the caller
 */
KU_STATUS ku_plan_remote(const struct kumi_settings *settings, int as_json, char **text);
/* Errors: KUMI_ENOMEM: a worker or a server needs more than limit_bytes. */
KU_STATUS ku_plan_remote_limit(const struct kumi_settings *settings, uint64_t limit_bytes);

#endif
