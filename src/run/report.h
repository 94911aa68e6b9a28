/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_RUN_REPORT_H
#define KU_RUN_REPORT_H

#include "base/err.h"
#include "kumi/run.h"
#include "sim/roofline.h"
#include "run/metrics.h"
#include "run/profile.h"
#include "exec/step_times.h"
#include "train/session.h"

/*
 * What a run says about itself: the lines on the terminal, metrics.jsonl, the profile, the times of
 * a timed run, summary.json and the result of kumi_train. The loop (run.c) calls it and never reads
 * it.
 *
 *     init ── prepare ── announce ──┬── open, once the first step is done
 *                                   ├── per step: before, after, step; eval; checkpoint; profile
 *                                   └── finish or complete ── fini
 *
 * A function works on every rank; files and lines are those of rank 0.
 */
struct ku_run_report {
    const struct kumi_train_options *o;
    struct kumi_train_result *result;
    struct ku_job *job;
    struct ku_session *s;
    struct ku_metrics *metrics;  /* rank 0 */
    struct ku_limits limits;     /* rank 0: of its machine */
    int n_cores;                 /* of the job, on all machines */
    double peak_flops;           /* of these, for the matrix dtype; 0: unknown */
    struct ku_profile *profile;  /* NULL: not requested */
    struct ku_step_times *trial; /* NULL: not a timed run */
    double loss;                 /* of the last step, NaN before the first */
    int64_t end;                 /* the last step of this call */
    int64_t pss_bytes, pss_ns;   /* memory of this rank, and when it was read */
    int64_t update_ns; /* of a server: time since the update before; 0: the time of the step */
};
/* Where a run stands before its first step. */
struct ku_run_report_start {
    const char *dir, *found; /* run directory; checkpoint that was resumed, "": none */
    int64_t step, end;
    int is_complete; /* nothing is left to do or to write */
};

void ku_run_report_init(struct ku_run_report *r, struct ku_job *job, struct ku_session *s,
                        const struct kumi_train_options *o, struct kumi_train_result *result);
/*
 * Check the options of the profile, allocate what steps record, and determine the machine's limits
 * for mfu: rank 0 measures while the other ranks wait for the first step. Collective. Errors:
 * KUMI_EINVAL, ENOMEM.
 */
KU_STATUS ku_run_report_prepare(struct ku_run_report *r, const struct ku_run_report_start *at);
void ku_run_report_announce(const struct ku_run_report *r, const struct ku_run_report_start *at);
KU_STATUS ku_run_report_open(struct ku_run_report *r, const char *dir,
                             int64_t step); /* rank 0: metrics.jsonl */

/* Around a step, whose data took from begin_ns until now. */
void ku_run_report_before(struct ku_run_report *r, int64_t step, int64_t begin_ns);
void ku_run_report_after(struct ku_run_report *r, int64_t step);
/*
 * Record a step.
 *
 *   step     steps that are done, this one included
 *   numbers  the trainer's report
 *
 * Collective on logged steps, whose line has sums over all ranks.
 */
KU_STATUS ku_run_report_step(struct ku_run_report *r, int64_t step, const double *numbers,
                             int64_t data_ns);
void ku_run_report_eval(struct ku_run_report *r, int64_t step, double loss);
void ku_run_report_checkpoint(struct ku_run_report *r, int64_t step, int64_t begin_ns);
/* Write the profile when its last step is done (ku_profile_write). Collective. */
KU_STATUS ku_run_report_profile(struct ku_run_report *r, int is_over);

/*
 * Fill in the result and write summary.json.
 *
 *   checkpoint   path of the last one; "": none
 *
 * Collective. Errors: KUMI_ESTORAGE, ENOMEM.
 */
KU_STATUS ku_run_report_finish(struct ku_run_report *r, const char *dir, int64_t step,
                               const char *checkpoint);
/*
 * The same for a run that did no step, because it was complete or was stopped: the contents of its
 * checkpoint. Collective.
 */
KU_STATUS ku_run_report_complete(struct ku_run_report *r, int64_t step, const char *checkpoint);
void ku_run_report_fini(struct ku_run_report *r);

#endif
