/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_RECOMPUTE_BUDGET_H
#define KU_TRAIN_RECOMPUTE_BUDGET_H

#include "train/session.h"

/*
 * memory.recompute {"budget_gib": x}: which blocks recompute what, so that a rank's plan (its own
 * arenas and its share of the host's) stays within x with the least work. A knapsack over the
 * blocks, exact up to KU_MAX_FRONTIER choices that no other beats (identical blocks: hundreds of
 * them); of those the first whose plan, compiled in full, holds. The session keeps the answer. Does
 * nothing without a budget.
 *
 *   o    gets the blocks' levels, the session's
 *
 * Errors: KUMI_ENOMEM: not even full recomputation holds, with what it comes to.
 */
enum { KU_MAX_FRONTIER = 8192 };
int ku_session_solve_recompute(struct ku_session *s, const struct ku_target *target,
                               struct ku_compile_opts *o);
/* "recomputed in blocks: nothing by 3, selective by 9", or ""; of a session whose budget is solved.
 */
void ku_session_print_recompute(const struct ku_session *s, struct ku_str *out);

#endif
