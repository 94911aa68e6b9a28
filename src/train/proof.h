/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_PROOF_H
#define KU_TRAIN_PROOF_H

#include "check/check.h"
#include "pass/pass.h"

/*
 * Check the training program of a model (check/check.h).
 *
 *   model    the graph as nn built it; on return after pass precision
 *   o        as it was compiled
 *   report   set on success
 *
 * Errors: KUMI_EPLAN, the program is wrong, with the rule; KUMI_ENOMEM.
 */
KU_STATUS ku_trainer_prove(struct ku_graph *model, const struct ku_compile_opts *o,
                           const struct ku_target *target, const struct ku_program *program,
                           struct ku_check_report *report);

#endif
