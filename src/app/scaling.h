/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_APP_SCALING_H
#define KU_APP_SCALING_H

#include <jansson.h>
#include <stdint.h>

enum { KU_SCALING_MAX_RANKS = 512 };

/* A training of so many ranks. Times are medians over its steps behind the first few, in ms. */
struct ku_scaling {
    int n_ranks, n_threads, n_steps;
    int is_by_samples; /* items are samples, not tokens */
    double items, tps; /* of a step, all ranks: what its loss counts; and of a second */
    double step_ms, p10_ms, p90_ms; /* step_ms: of rank 0 */
    double comm_ms;                 /* mean of ranks: bytes moved while nothing computed */
    double wait_ms;                 /* mean of ranks: nothing moved, others were not there */
    double rank_wait_ms[KU_SCALING_MAX_RANKS]; /* [n_ranks] */
};
/* Adds rank `rank` of a training from what it left (train/step_times.h). KUMI_EINPUT. */
int ku_scaling_add_rank(struct ku_scaling *s, int rank, const json_t *times);

/*
 * Where the time of a step goes beyond the ideal, which is the step of `base` spread over more
 * ranks (strong) or the same step (weak). All in ms; step_ms = ideal + comm + wait + cores +
 * kernels.
 *
 *   comm, wait   beyond what base's part of them is
 *   cores        there are more threads than cores; part of the waits if these are longer
 *   kernels      what remains: kernels of smaller shapes, memory bandwidth that ranks share. < 0
 *                where the ranks gain, as by caches
 */
struct ku_scaling_split {
    double ideal_ms, efficiency, comm_ms, wait_ms, cores_ms, kernels_ms;
};
struct ku_scaling_split ku_scaling_split(const struct ku_scaling *base, const struct ku_scaling *s,
                                         int is_weak, int n_cores);

#endif
