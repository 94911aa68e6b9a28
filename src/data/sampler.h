/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_SAMPLER_H
#define KU_DATA_SAMPLER_H

#include <stdint.h>

#include "base/err.h"

/*
 * Maps a position of a step's global batch to a sample: a function of (step, position), in O(1)
 * time and memory. Ranks are not an argument, so the parallel layout never changes a batch.
 *
 * An epoch is a permutation of the n samples by seed and epoch, or their plain order. It is cut
 * into batches of B; the mode decides the last batch:
 *
 *     mode    steps per epoch    example: n = 10, B = 4, no shuffle
 *     drop    floor(n / B)       0 1 2 3 | 4 5 6 7
 *     wrap    ceil(n / B)        0 1 2 3 | 4 5 6 7 | 8 9 0 1      (as DistributedSampler)
 *     short   ceil(n / B)        0 1 2 3 | 4 5 6 7 | 8 9
 */
enum ku_last_batch { KU_LAST_DROP, KU_LAST_WRAP, KU_LAST_SHORT };
KU_STATUS ku_last_batch_parse(const char *name, enum ku_last_batch *out); /* EINVAL with the list */

struct ku_sampler {
    int64_t n_samples, global_batch, steps_per_epoch;
    int64_t epoch_positions; /* valid positions of an epoch; `number` advances by it */
    uint64_t seed;
    enum ku_last_batch last;
    int shuffle;
};

/* n_samples, global_batch >= 1; errors: EINVAL if drop leaves no batch. */
KU_STATUS ku_sampler_init(struct ku_sampler *s, int64_t n_samples, int64_t global_batch,
                          enum ku_last_batch last, int shuffle, uint64_t seed);
/* Number of steps in n_epochs; errors: EINVAL if it does not fit 63 bits. */
KU_STATUS ku_sampler_steps(const struct ku_sampler *s, int64_t n_epochs, int64_t *n_steps);
static inline int64_t ku_sampler_epoch(const struct ku_sampler *s, int64_t step)
{
    return step / s->steps_per_epoch;
}
/* Number of leading positions that hold a sample: global_batch, or fewer in a short batch. */
int64_t ku_sampler_batch(const struct ku_sampler *s, int64_t step);
/* The sample at position 0 to global_batch - 1 of a step; -1 after the end of a short batch. */
int64_t ku_sampler_at(const struct ku_sampler *s, int64_t step, int64_t position);
/* The number of that draw, unique over all epochs, a counter for augmentation; -1 as above. */
int64_t ku_sampler_number(const struct ku_sampler *s, int64_t step, int64_t position);

#endif
