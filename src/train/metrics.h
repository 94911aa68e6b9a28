/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_METRICS_H
#define KU_TRAIN_METRICS_H

#include <jansson.h>
#include <stdint.h>

#include "kumi/run.h"

/*
 * What a run says of itself: DIR/metrics.jsonl, a line now and then for people, DIR/summary.json at
 * the end. By rank 0.
 */
struct ku_metrics_line {
    int64_t step, n_steps, tokens; /* steps done; of the run; valid tokens of this step */
    double epoch, loss, grad_norm, lr, step_ms, data_ms;
    double exposed_ms, wait_ms, optimizer_ms;  /* of a logged step, mean of the ranks */
    double offload_ms;                         /* likewise; 0: nothing was waited for */
    int64_t held_bytes;                        /* by all ranks, of a logged step; 0: unknown */
    double loss_scale;                         /* of the next step; NaN: there is no loss scaler */
    int64_t n_skipped;                         /* steps up to here that it made no update */
    int64_t samples;                           /* of this step where tokens are samples, else 0 */
    const struct kumi_result_metrics *metrics; /* of a logged step */
};
struct ku_metrics;
/*
 *   dir              of the run
 *   first_step       that the run continues from; 0: it begins. Lines of later steps, and what is
 *                    not a whole line, move to the end of DIR/metrics.cut.jsonl, after a line
 *                    {"cut_at_step":first_step}
 *   flops_per_token  model FLOP of one token, forward and backward
 *   peak_flops       FLOP/s of the job's cores at the run's precision; 0: unknown, mfu is null
 *
 * Errors: KUMI_ESTORAGE.
 */
int ku_metrics_open(const char *dir, int64_t first_step, double flops_per_token, double peak_flops,
                    struct ku_metrics **m);
void ku_metrics_close(struct ku_metrics *m); /* NULL is fine */
/* Every step: notes throughput; is_logged writes the line. A full disk is said once and stops the
 * file, not the run. */
void ku_metrics_step(struct ku_metrics *m, const struct ku_metrics_line *line, int is_logged);
/* The line of an evaluation, once for each step. */
void ku_metrics_eval(struct ku_metrics *m, int64_t step, double epoch, double val_loss,
                     const struct kumi_result_metrics *val);
/* Medians over all steps but the first three. */
double ku_metrics_median_tps(const struct ku_metrics *m);
double ku_metrics_median_step_ms(const struct ku_metrics *m);
/* Model FLOP/s over the peak at so many tokens/s; NaN: unknown. */
double ku_metrics_mfu(const struct ku_metrics *m, double tps);
/* Whether the newest evaluation is of this step. */
int ku_metrics_has_eval(const struct ku_metrics *m, int64_t step);
/* The points (step, val_loss and, of classifiers, val_accuracy) so far, as a JSON array of arrays.
 * Owned by the caller. */
json_t *ku_metrics_curve(const struct ku_metrics *m);

#endif
