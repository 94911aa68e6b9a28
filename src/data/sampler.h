/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_SAMPLER_H
#define KU_DATA_SAMPLER_H

#include <stdint.h>

/*
 * Which sample stands at a position of a step's global batch: a function of (step, position), in
 * O(1) time and memory. Ranks do not occur in it, so who reads a sample never changes the batch.
 *
 * An epoch is a seeded permutation of the n samples (or their order), cut into batches of B. Its
 * last batch:
 *
 *     drop    left out             n/B steps, rounded down
 *     wrap    filled up from the epoch's beginning, as DistributedSampler does      n/B steps,
 * rounded up short   has n mod B positions (B if none is left over)                        n/B
 * steps, rounded up
 */
enum ku_last_batch { KU_LAST_DROP, KU_LAST_WRAP, KU_LAST_SHORT };
int ku_last_batch_parse(const char *name, enum ku_last_batch *out); /* KUMI_EINVAL with the list */

struct ku_sampler {
    int64_t n_samples, global_batch, steps_per_epoch;
    int64_t
        epoch_positions; /* valid positions of an epoch: the step of `number` from epoch to epoch */
    uint64_t seed;
    enum ku_last_batch last;
    int shuffle;
};

/* n_samples, global_batch >= 1. Errors: EINVAL when drop would leave nothing of an epoch. */
int ku_sampler_init(struct ku_sampler *s, int64_t n_samples, int64_t global_batch,
                    enum ku_last_batch last, int shuffle, uint64_t seed);
/* Steps of so many epochs. Errors: EINVAL when they do not fit 63 bits. */
int ku_sampler_steps(const struct ku_sampler *s, int64_t n_epochs, int64_t *n_steps);
static inline int64_t ku_sampler_epoch(const struct ku_sampler *s, int64_t step)
{
    return step / s->steps_per_epoch;
}
/* Positions of this step that hold a sample: global_batch, or fewer in a short batch. They come
 * first. */
int64_t ku_sampler_batch(const struct ku_sampler *s, int64_t step);
/* The sample at a position of a step, or -1 behind the end of a short batch. 0 <= position <
 * global_batch. */
int64_t ku_sampler_at(const struct ku_sampler *s, int64_t step, int64_t position);
/* The number of that draw over the concatenation of epochs, each draw once: what augmentation
 * counts by. -1 as above. */
int64_t ku_sampler_number(const struct ku_sampler *s, int64_t step, int64_t position);

#endif
