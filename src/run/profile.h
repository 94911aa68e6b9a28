/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_RUN_PROFILE_H
#define KU_RUN_PROFILE_H

#include "base/err.h"
#include "train/trainer.h"

/*
 * Profile of a few training steps: a clock stamp before each instruction of the training program
 * (27 ns each); other steps have none. The files are written after the last profiled step:
 *
 *   profile.txt         a table by `by`: calls, time, rates, share of the roofline; and the time of
 *                       each rank by category
 *   profile.trace.json  a time line of the first ranks: instructions, collectives in flight, data,
 *                       checkpoints; for Perfetto or chrome://tracing
 */
struct ku_profile_opts {
    const char *steps; /* "5-8" or "5"; "" or NULL: the third to sixth step of the run */
    const char *by;    /* "op" (NULL), "path", "shape", "source" */
    const char *sort;  /* "time" (NULL), "calls", "name" */
    int rows;          /* maximum number of rows; 0: all */
};
enum { KU_PROFILE_TRACED_RANKS = 8 };

struct ku_profile;
/*
 * Create a profile for a run of the steps after first_step up to end_step. A resumed run leaves out
 * the steps that it has done.
 *
 *   first_step   steps done before; above 0: the run was resumed
 *   p            out: NULL: it has done all steps of the profile
 *
 * Errors: KUMI_EINVAL, ENOMEM.
 */
KU_STATUS ku_profile_create(const struct ku_profile_opts *o, const struct ku_trainer *t,
                            int64_t first_step, int64_t end_step, struct ku_profile **p);
void ku_profile_destroy(struct ku_profile *p); /* NULL is allowed */
/* Called before and after each step, counted from 0. `p` may be NULL, here and below. */
void ku_profile_before(struct ku_profile *p, int64_t step);
void ku_profile_after(struct ku_profile *p, int64_t step);
/*
 * Record work outside the step's program. Steps that are not profiled are ignored.
 */
enum ku_profile_what { KU_PROFILE_DATA, KU_PROFILE_CHECKPOINT, KU_PROFILE_N };
void ku_profile_note(struct ku_profile *p, int64_t step, enum ku_profile_what what,
                     int64_t begin_ns, int64_t end_ns);
/*
 * Write the files into dir once all steps are done. If they cannot be written, a warning is logged,
 * and the end of the run writes them.
 *
 *   is_over   the run ends: write the steps done so far
 *
 * Collective. Errors: KUMI_ENOMEM; ESTORAGE, if is_over.
 */
KU_STATUS ku_profile_write(struct ku_profile *p, const char *dir, int is_over);

#endif
