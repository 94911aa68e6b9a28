/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_RECOMPUTE_BUDGET_H
#define KU_TRAIN_RECOMPUTE_BUDGET_H

#include "base/err.h"
#include "train/session.h"

/*
 * memory.recompute {"budget_gib": x}: choose a recompute level for each layer, so that a rank's
 * plan (its own arenas and its share of the host's) stays within x with minimum work. This is a
 * knapsack over the layers, exact while the frontier has at most KU_MAX_FRONTIER points (identical
 * layers: hundreds). The compiled plan decides what fits. The session keeps the result. Without a
 * budget nothing happens.
 *
 *   o    gets the levels, which the session owns
 *
 * Errors: KUMI_ENOMEM: even full recomputation exceeds the budget, with the bytes.
 */
enum { KU_MAX_FRONTIER = 8192 };
KU_STATUS ku_session_solve_recompute(struct ku_session *s, const struct ku_target *target,
                                     struct ku_compile_opts *o);
/*
 * Append "recomputed in blocks: nothing by 3, selective by 9", or nothing without a budget. Call it
 * after ku_session_solve_recompute.
 */
void ku_session_print_recompute(const struct ku_session *s, struct ku_str *out);

#endif
