/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_PROFILE_H
#define KU_TRAIN_PROFILE_H

#include "train/trainer.h"

/*
 * Where the time of some steps went: a clock stamp before each instruction of the training program
 * (27 ns), none in other steps. Written at the end of the last of them:
 *
 *     DIR/profile.txt          a table of what `by` names: calls, time, rates, share of the
 * roofline DIR/profile.trace.json   each instruction of the first ranks: Perfetto, chrome://tracing
 */
struct ku_profile_opts {
    const char *steps; /* "5-8" or "5"; "" or NULL: four steps from the third of the run */
    const char *by;    /* "op" (NULL), "path", "shape" */
    const char *sort;  /* "time" (NULL), "calls", "name" */
    int rows;          /* at most; 0: all */
};
enum { KU_PROFILE_TRACED_RANKS = 8 };

struct ku_profile;
/* first_step: the first that this run makes. Errors: KUMI_EINVAL. */
int ku_profile_create(const struct ku_profile_opts *o, const struct ku_trainer *t,
                      int64_t first_step, struct ku_profile **p);
void ku_profile_destroy(struct ku_profile *p); /* NULL is fine */
/* Around each step, counted from 0; `p` may be NULL. The end of the last step writes the files.
 * Collective then. */
void ku_profile_before(struct ku_profile *p, int64_t step);
int ku_profile_after(struct ku_profile *p, int64_t step, const char *dir);

#endif
