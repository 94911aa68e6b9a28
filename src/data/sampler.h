/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_SAMPLER_H
#define KU_DATA_SAMPLER_H

#include <stdint.h>

/*
 * Maps a position of a step's global batch to a sample: a function of (step, position), in O(1)
 * time and memory. Ranks are not an argument, so the parallel layout never changes a batch.
 *
 * An epoch is a permutation of the n samples by seed and epoch, or their plain order. It is cut
 * into batches of B; the last batch depends on the mode:
 *
 *     mode    last batch                                              steps per epoch
 *     drop    left out                                                floor(n / B)
 *     wrap    filled from the epoch's start, as DistributedSampler    ceil(n / B)
 *     short   n mod B positions (B if B divides n)                    ceil(n / B)
 *
 * Example, n = 10, B = 4, no shuffle:
 *
 *     drop    0 1 2 3 | 4 5 6 7
 *     wrap    0 1 2 3 | 4 5 6 7 | 8 9 0 1
 *     short   0 1 2 3 | 4 5 6 7 | 8 9
 */
enum ku_last_batch { KU_LAST_DROP, KU_LAST_WRAP, KU_LAST_SHORT };
int ku_last_batch_parse(const char *name, enum ku_last_batch *out); /* EINVAL with the list */

struct ku_sampler {
    int64_t n_samples, global_batch, steps_per_epoch;
    int64_t epoch_positions; /* valid positions of an epoch; `number` advances by it */
    uint64_t seed;
    enum ku_last_batch last;
    int shuffle;
};

/*
 * n_samples, global_batch >= 1. Errors: EINVAL if drop leaves no batch.
 */
int ku_sampler_init(struct ku_sampler *s, int64_t n_samples, int64_t global_batch,
                    enum ku_last_batch last, int shuffle, uint64_t seed);
/*
 * Number of steps in n_epochs. Errors: EINVAL if it does not fit 63 bits.
 */
int ku_sampler_steps(const struct ku_sampler *s, int64_t n_epochs, int64_t *n_steps);
static inline int64_t ku_sampler_epoch(const struct ku_sampler *s, int64_t step)
{
    return step / s->steps_per_epoch;
}
/*
 * Number of positions of this step that hold a sample: global_batch, or fewer in a short batch.
 * They are the first ones.
 */
int64_t ku_sampler_batch(const struct ku_sampler *s, int64_t step);
/*
 * The sample at a position of a step, 0 <= position < global_batch; -1 after the end of a short
 * batch.
 */
int64_t ku_sampler_at(const struct ku_sampler *s, int64_t step, int64_t position);
/*
 * The number of that draw over all epochs in sequence; each draw has its own number, which
 * augmentation uses as a random counter. -1 as above.
 */
int64_t ku_sampler_number(const struct ku_sampler *s, int64_t step, int64_t position);

#endif
