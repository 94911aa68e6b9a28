/* SPDX-License-Identifier: Apache-2.0 */
#include "data/sampler.h"

#include "base/err.h"
#include "base/math/random.h"
#include "base/str.h"

int ku_last_batch_parse(const char *name, enum ku_last_batch *out)
{
    int i = ku_str_find_word("drop wrap short", name);
    if (i < 0)
        return KU_ERR(KUMI_EINVAL, "last batch: data.last_batch: '%s'; give drop, wrap or short",
                      name);
    *out = (enum ku_last_batch)i;
    return KUMI_OK;
}

int ku_sampler_init(struct ku_sampler *s, int64_t n_samples, int64_t global_batch,
                    enum ku_last_batch last, int shuffle, uint64_t seed)
{
    KU_ASSERT(n_samples >= 1 && global_batch >= 1);
    if (last == KU_LAST_DROP && n_samples < global_batch)
        return KU_ERR(KUMI_EINVAL,
                      "batch: train.global_batch: %lld, but only %lld samples, so data.last_batch "
                      "drop leaves no batch; give at most %lld, or wrap or short",
                      (long long)global_batch, (long long)n_samples, (long long)n_samples);
    int64_t full = n_samples / global_batch, rest = n_samples % global_batch;
    *s = (struct ku_sampler){.n_samples = n_samples,
                             .global_batch = global_batch,
                             .steps_per_epoch = full + (rest > 0 && last != KU_LAST_DROP),
                             .seed = seed,
                             .last = last,
                             .shuffle = shuffle};
    s->epoch_positions = n_samples;
    if (last != KU_LAST_SHORT &&
        __builtin_mul_overflow(s->steps_per_epoch, global_batch, &s->epoch_positions))
        return KU_ERR(KUMI_EINVAL,
                      "batch: train.global_batch: %lld: an epoch does not fit 63 bits; give less",
                      (long long)global_batch);
    return KUMI_OK;
}

int ku_sampler_steps(const struct ku_sampler *s, int64_t n_epochs, int64_t *n_steps)
{
    int64_t steps;
    if (n_epochs < 0 || __builtin_mul_overflow(n_epochs, s->steps_per_epoch, &steps))
        return KU_ERR(KUMI_EINVAL, "epochs: train.epochs: %lld of %lld steps each; give fewer",
                      (long long)n_epochs, (long long)s->steps_per_epoch);
    *n_steps = steps;
    return KUMI_OK;
}

int64_t ku_sampler_batch(const struct ku_sampler *s, int64_t step)
{
    int64_t first = step % s->steps_per_epoch * s->global_batch;
    int64_t left = s->epoch_positions - first;
    return left < s->global_batch ? left : s->global_batch;
}

/* Index of the position in its epoch, or -1. */
static int64_t in_epoch(const struct ku_sampler *s, int64_t step, int64_t position)
{
    KU_ASSERT(step >= 0 && position >= 0 && position < s->global_batch);
    int64_t at = step % s->steps_per_epoch * s->global_batch;
    return position < s->epoch_positions - at ? at + position : -1;
}

int64_t ku_sampler_at(const struct ku_sampler *s, int64_t step, int64_t position)
{
    int64_t at = in_epoch(s, step, position);
    if (at < 0)
        return -1;
    at %= s->n_samples; /* KU_LAST_WRAP: start again at the epoch's beginning */
    if (!s->shuffle)
        return at;
    struct ku_permutation order;
    ku_permutation_init(&order, (uint64_t)s->n_samples, s->seed,
                        (uint64_t)ku_sampler_epoch(s, step));
    return (int64_t)ku_permutation_at(&order, (uint64_t)at);
}

int64_t ku_sampler_number(const struct ku_sampler *s, int64_t step, int64_t position)
{
    int64_t at = in_epoch(s, step, position);
    return at < 0 ? -1 : ku_sampler_epoch(s, step) * s->epoch_positions + at;
}
