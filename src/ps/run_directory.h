/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_RUN_DIRECTORY_H
#define KU_PS_RUN_DIRECTORY_H

#include "base/err.h"
#include "run/run.h"

/* The directory of a run whose processes are all started by another one, `kumi ps run`. */

/* Create runs/<config>-<time>. out: [KU_RUN_PATH_BYTES]. Errors: KUMI_ESTORAGE. */
KU_STATUS ku_ps_directory_make(const char *config, char *out);
/* Remove a directory that ku_ps_directory_make has created, if no run has begun in it. */
void ku_ps_directory_drop(const char *out);

#endif
