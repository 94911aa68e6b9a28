/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_RUN_METRICS_H
#define KU_RUN_METRICS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kumi/run.h"

/*
 * Output of a run: DIR/metrics.jsonl, progress lines on the terminal, and the medians for
 * DIR/summary.json. Used by rank 0 only.
 *
 *   metrics.jsonl   {"step":10,"epoch":0.1,"loss":..,"tps":..}       one line per logged step
 *                   {"step":10,"epoch":0.1,"val_loss":..}            one line per evaluation
 *
 * A number that is not finite is null.
 */
struct ku_metrics_line {
    int64_t step, n_steps,
        tokens; /* steps done; last step of this call; valid tokens of this step */
    double epoch, loss, grad_norm, lr, step_ms, data_ms;
    double flops; /* model FLOP of the step's program, forward and backward; 0: unknown */
    double exposed_ms, wait_ms, optimizer_ms;  /* of a logged step, mean over ranks */
    double offload_ms;                         /* likewise; 0: no waits for offload */
    int64_t held_bytes;                        /* memory of all ranks, if logged; 0: unknown */
    double loss_scale;                         /* of the next step; NaN: no loss scaler */
    int64_t n_skipped;                         /* updates skipped so far by the loss scaler */
    bool is_by_samples;                        /* the loss counts samples: so do `tokens` */
    const struct kumi_result_metrics *metrics; /* of a logged step */
};
struct ku_metrics;
/*
 * Open DIR/metrics.jsonl.
 *
 *   dir          the run's directory
 *   first_step   step that the run continues from; 0: a new run. What follows the last line of
 *                a step up to it moves to the end of DIR/metrics.cut.jsonl, after a line
 *                {"cut_at_step":first_step}: lines of later steps, and an incomplete line
 *   peak_flops   FLOP/s of the job's cores at the run's precision; 0: unknown, mfu is null
 *
 * Errors: KUMI_ESTORAGE.
 */
KU_STATUS ku_metrics_open(const char *dir, int64_t first_step, double peak_flops,
                          struct ku_metrics **m);
void ku_metrics_close(struct ku_metrics *m); /* NULL is allowed */
/*
 * Record the throughput of a step; called for every step. is_logged: write the line. A line that
 * cannot be written is left out, with one warning for lines that fail one after the other.
 */
void ku_metrics_step(struct ku_metrics *m, const struct ku_metrics_line *line, int is_logged);
/* Write the line of an evaluation, at most once per step. */
void ku_metrics_eval(struct ku_metrics *m, int64_t step, double epoch, double val_loss,
                     const struct kumi_result_metrics *val);
/* Medians over all steps except the first three. */
double ku_metrics_median_tps(const struct ku_metrics *m);
double ku_metrics_median_step_ms(const struct ku_metrics *m);
/* The same of model FLOP/s, divided by the peak; NaN: unknown. */
double ku_metrics_median_mfu(const struct ku_metrics *m);
/*
 * Whether DIR/metrics.jsonl has an evaluation of this step. false: it has none, or cannot be read.
 */
bool ku_metrics_file_has_eval(const char *dir, int64_t step);
/* Whether the last evaluation is of this step, finite or not. */
bool ku_metrics_has_eval(const struct ku_metrics *m, int64_t step);
/*
 * Points (step, val_loss and, for classifiers, val_accuracy) so far, as a JSON array of arrays. The
 * caller owns it.
 */
json_t *ku_metrics_curve(const struct ku_metrics *m);

#endif
