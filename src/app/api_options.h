/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_APP_API_OPTIONS_H
#define KU_APP_API_OPTIONS_H

#include "kumi/trainer.h"
#include "train/session.h"

/*
 * A session of a program's own graph and options: they become a configuration, over which
 * options->set counts, and are checked and compiled as any other. s is zero at entry; what is in it
 * on failure is for ku_session_fini.
 *
 *   graph   with ports over samples (dim n); the session's to read until its trainer is made
 *
 * Errors: KUMI_EINVAL: options, with the key.
 */
int ku_api_configure(const struct kumi_trainer_options *o, const struct ku_graph *graph,
                     int n_ranks, struct ku_session *s);

#endif
