/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_APP_API_OPTIONS_H
#define KU_APP_API_OPTIONS_H

#include "base/err.h"
#include "kumi/trainer.h"
#include "train/session.h"

/*
 * Create a session from a program's graph and options. The options become a configuration,
 * options->set overrides it, and it is checked and compiled like any other.
 *
 *   graph   with ports over samples (dim n); borrowed until the session's trainer exists
 *   s       all zero at entry; to be finished with ku_session_fini even on failure
 *
 * Errors: KUMI_EINVAL: options, with the key.
 */
KU_STATUS ku_api_configure(const struct kumi_trainer_options *o, const struct ku_graph *graph,
                           int n_ranks, struct ku_session *s);

#endif
