/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_REMAT_BUDGET_SEARCH_H
#define KU_PASS_REMAT_BUDGET_SEARCH_H

#include "pass/remat/recompute.h"

/*
 * memory.recompute {"budget_gib": x}: choose a recompute level for each layer, so that a rank's
 * plan stays within the budget with minimum work. This is a knapsack over the layers, exact while
 * the frontier has at most KU_MAX_FRONTIER points (identical layers: hundreds). The compiled plan
 * decides what fits.
 */
enum { KU_MAX_FRONTIER = 8192 };
struct ku_budget_search {
    const struct ku_recompute_unit *unit; /* [n], of ku_recompute_measure */
    int n;
    double budget_bytes;
    /* Compile with the levels that the search has written, and say what a rank needs. */
    int (*planned_bytes)(void *ctx, double *bytes);
    void *ctx;
};
/*
 * Search.
 *
 *   level   [n], written before each call of planned_bytes; out: the choice
 *
 * Errors: KUMI_ENOMEM: even full recomputation exceeds the budget, with the bytes; those of
 * planned_bytes.
 */
KU_STATUS ku_budget_search(const struct ku_budget_search *search, unsigned char *level);

#endif
