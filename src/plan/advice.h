/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PLAN_ADVICE_H
#define KU_PLAN_ADVICE_H

#include <stdbool.h>

#include "plan/plan.h"

/* Settings under which a plan needs less memory, and the memory it then needs. */
struct ku_advice {
    char set[3][64]; /* [n_sets]; they apply together */
    int n_sets;
    const char *price;
    bool trains_only; /* evaluation and initialization are those of the plan */
    uint64_t host_bytes;
};
enum {
    KU_MAX_ADVICE = 10,
    /*
     * Each alternative is compiled in full, so its bytes are exact. Models with more forward
     * operations, over all micro-batches of a rank, get no advice: a step has about four
     * instructions per forward operation, and GPT-3 with 96 layers and 16 micro-batches has 90,000.
     */
    KU_MAX_ADVISED_OPS = 1 << 15
};

/*
 * ku_plan_init with advice: the plan and its alternatives are compiled side by side, one per core.
 * Nothing needs to be finished on failure.
 *
 *   advice   [KU_MAX_ADVICE] result: the alternatives that need less than the plan
 *   n        result: their number; -1: the model is too large for advice
 */
KU_STATUS ku_plan_init_advised(struct ku_plan *p, const struct kumi_settings *settings, int n_ranks,
                               struct ku_advice *advice, int *n);

#endif
