/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_APP_BENCH_SCALING_H
#define KU_APP_BENCH_SCALING_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"

enum { KU_SCALING_MAX_RANKS = 512 };

/*
 * A timed run on n_ranks. Times are medians over its steps without the first few, in ms.
 */
struct ku_scaling {
    int n_ranks, n_threads, n_steps;
    int n_together;                 /* ranks of the fullest machine */
    int is_by_samples;              /* items are samples instead of tokens */
    double items, tps;              /* items: loss positions per step, all ranks; tps: per second */
    double step_ms, p10_ms, p90_ms; /* step_ms: of rank 0 */
    double comm_ms;                 /* mean over ranks: transfers not hidden by computation */
    double wait_ms;                 /* mean over ranks: waits for ranks that had not arrived */
    double rank_wait_ms[KU_SCALING_MAX_RANKS]; /* [n_ranks] */
};
/*
 * Add the step times of rank `rank` (exec/step_times.h), an object of its file. Errors:
 * KUMI_EINPUT.
 */
KU_STATUS ku_scaling_add_rank(struct ku_scaling *s, int rank, const json_t *times);

/*
 * Splits a step's time beyond the ideal into causes. The ideal is the step of `base` divided among
 * more ranks (strong scaling), or the same step (weak scaling). All in ms:
 *
 *   step_ms = ideal + comm + wait + cores + kernels
 *
 *   comm, wait   above base's own share of them
 *   cores        more threads than cores of a machine; at most what comm and wait leave
 *   kernels      the rest: kernels on smaller shapes, shared memory bandwidth; < 0 if the ranks
 *                gain, for example from caches
 */
struct ku_scaling_split {
    double ideal_ms, efficiency, comm_ms, wait_ms, cores_ms, kernels_ms;
};
struct ku_scaling_split ku_scaling_split(const struct ku_scaling *base, const struct ku_scaling *s,
                                         int is_weak, int n_cores);

#endif
