/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_PROFILE_H
#define KU_TRAIN_PROFILE_H

#include "train/trainer.h"

/*
 * Where the time of some steps went: a clock stamp before each instruction of the training program
 * (27 ns), none in other steps. Written at the end of the last of them:
 *
 *   profile.txt         a table of what `by` names: calls, time, rates, share of the roofline; and
 *                       how each rank spent its time
 *   profile.trace.json  each instruction of the first ranks, with exchanges in flight, data and
 *                       checkpoints: Perfetto, chrome://tracing
 */
struct ku_profile_opts {
    const char *steps; /* "5-8" or "5"; "" or NULL: four steps from the third of the run */
    const char *by;    /* "op" (NULL), "path", "shape", "source" */
    const char *sort;  /* "time" (NULL), "calls", "name" */
    int rows;          /* at most; 0: all */
};
enum { KU_PROFILE_TRACED_RANKS = 8 };

struct ku_profile;
/* The run makes the steps from first_step on, up to end_step. Errors: KUMI_EINVAL. */
int ku_profile_create(const struct ku_profile_opts *o, const struct ku_trainer *t,
                      int64_t first_step, int64_t end_step, struct ku_profile **p);
void ku_profile_destroy(struct ku_profile *p); /* NULL is fine */
/* Around each step, counted from 0; `p` may be NULL, here and below. */
void ku_profile_before(struct ku_profile *p, int64_t step);
void ku_profile_after(struct ku_profile *p, int64_t step);
/* What belongs to a step, but is not in its program. Other steps' are dropped. */
enum ku_profile_what { KU_PROFILE_DATA, KU_PROFILE_CHECKPOINT, KU_PROFILE_N };
void ku_profile_note(struct ku_profile *p, int64_t step, enum ku_profile_what what,
                     int64_t begin_ns, int64_t end_ns);
/* Writes the files into dir once all steps are done; is_over: with those that are. Collective. */
int ku_profile_write(struct ku_profile *p, const char *dir, int is_over);

#endif
