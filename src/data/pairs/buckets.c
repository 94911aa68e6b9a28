/* SPDX-License-Identifier: Apache-2.0 */
#include "data/pairs/buckets.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/math/random.h"
#include "data/pairs/bucket_shapes.h"

#include <string.h>

/*
 * The pool of shape i is the remainder of shape i - 1 followed by shape i's own samples in epoch
 * order. It is cut into full batches; the rest goes to the next pool:
 *
 *     pool 0   |batch 0 |batch 1 |rest|
 *     pool 1   |rest + own   |batch 2      |batch 3      |rest|
 *     pool 2   |rest + own       |batch 4          |rest|            <- the incomplete batch
 *
 * The pool sizes are the same in every epoch, so a position of a batch maps to an index of a pool.
 * An index before the pool's own samples maps to the end of the previous pool: at most n_shapes
 * steps.
 */
struct pool {
    int64_t first;       /* index of its own first sample in `order` */
    int64_t n_own;       /* number of own samples */
    int64_t n_before;    /* remainder of the previous shape */
    int64_t first_batch; /* number of its first full batch in the epoch, unshuffled */
    int64_t n_batches;   /* full batches */
    int64_t first_draw;  /* positions in the epoch's batches before it, unshuffled */
};
struct ku_buckets {
    int n_shapes;
    struct ku_bucket_shape shape[KU_SHAPES_MAX];
    struct pool pool[KU_SHAPES_MAX];
    uint32_t *order;        /* samples sorted by shape; NULL: one shape */
    int64_t n_full, n_rest; /* full batches; positions of the incomplete one, 0: none */
    int64_t epoch_positions;
    uint64_t seed;
    int shuffle;
    double padding;
};

static int64_t pool_count(const struct ku_buckets *b, int i)
{
    return b->pool[i].n_before + b->pool[i].n_own;
}

static int check_opts(const struct ku_buckets_opts *o, int64_t n_samples)
{
    KU_ASSERT(o->multiple >= 1 && o->len_multiple >= 0 && n_samples >= 1);
    if (o->n_shapes_max < 1 || o->n_shapes_max > KU_SHAPES_MAX)
        return KU_ERR(KUMI_EINVAL, "batch: %d shapes; give 1 to %d", o->n_shapes_max,
                      KU_SHAPES_MAX);
    if (o->batch_rows < 0 || o->batch_rows % o->multiple != 0)
        return KU_ERR(
            KUMI_EINVAL,
            "batch: %lld rows are not a multiple of virtual shards x micro-batches = %lld",
            (long long)o->batch_rows, (long long)o->multiple);
    if (o->batch_rows == 0 && o->batch_tokens < 1)
        return KU_ERR(KUMI_EINVAL, "batch: %lld tokens; give 1 or more",
                      (long long)o->batch_tokens);
    if (n_samples > UINT32_MAX)
        return KU_ERR(KUMI_EINVAL, "batch: %lld samples; batches by length take at most %u",
                      (long long)n_samples, UINT32_MAX);
    return KUMI_OK;
}

static int64_t len_at(const int32_t *len, int64_t i)
{
    return len ? len[i] : 0;
}

/* The first shape that holds a sample. */
static int shape_of(const struct ku_buckets *b, int64_t src, int64_t tgt)
{
    int i = 0;
    while (src > b->shape[i].src_len || tgt > b->shape[i].tgt_len)
        i++;
    return i;
}

/* Counting sort of the samples by shape. */
static int sort_samples(struct ku_buckets *b, const int32_t *src_len, const int32_t *tgt_len,
                        int64_t n)
{
    int64_t next[KU_SHAPES_MAX], at = 0;
    if (b->n_shapes == 1) {
        b->pool[0].n_own = n;
        return KUMI_OK;
    }
    b->order = ku_malloc((size_t)n * sizeof *b->order);
    if (!b->order)
        return KUMI_ENOMEM;
    for (int64_t i = 0; i < n; i++)
        b->pool[shape_of(b, len_at(src_len, i), len_at(tgt_len, i))].n_own++;
    for (int i = 0; i < b->n_shapes; at += b->pool[i++].n_own)
        b->pool[i].first = next[i] = at;
    for (int64_t i = 0; i < n; i++)
        b->order[next[shape_of(b, len_at(src_len, i), len_at(tgt_len, i))]++] = (uint32_t)i;
    return KUMI_OK;
}

/* Cuts the pools into batches. */
static int cut(struct ku_buckets *b, const struct ku_buckets_opts *o)
{
    int64_t left = 0, draws = 0;
    for (int i = 0; i < b->n_shapes; i++) {
        struct pool *p = &b->pool[i];
        int64_t rows = b->shape[i].rows, count;
        p->n_before = left;
        count = pool_count(b, i);
        p->first_batch = b->n_full;
        p->first_draw = draws;
        p->n_batches = count / rows;
        left = count % rows;
        b->n_full += p->n_batches;
        draws += p->n_batches * rows;
    }
    int64_t rows = b->shape[b->n_shapes - 1].rows;
    if (o->last == KU_LAST_DROP && b->n_full == 0)
        return KU_ERR(KUMI_EINVAL,
                      "batch: %lld rows, but only %lld samples, so data.last_batch drop leaves no "
                      "batch; give smaller batches, or wrap or short",
                      (long long)rows, (long long)left);
    if (left > 0 && o->last != KU_LAST_DROP)
        b->n_rest = o->last == KU_LAST_WRAP ? rows : left;
    b->epoch_positions = draws + b->n_rest;
    return KUMI_OK;
}

/*
 * Compares tokens with and without padding. Samples left out or repeated count with the mean
 * length.
 */
static void count_padding(struct ku_buckets *b, const int32_t *src_len, const int32_t *tgt_len,
                          int64_t n)
{
    double real = 0.0, padded = 0.0;
    for (int64_t i = 0; i < n; i++)
        real += (double)(len_at(src_len, i) + len_at(tgt_len, i));
    for (int i = 0; i < b->n_shapes; i++) {
        int64_t batches = b->pool[i].n_batches + (i + 1 == b->n_shapes && b->n_rest > 0);
        padded += (double)(batches * b->shape[i].rows) *
                  (double)(b->shape[i].src_len + b->shape[i].tgt_len);
    }
    real *= (double)b->epoch_positions / (double)n;
    b->padding = padded > real ? 1.0 - real / padded : 0.0;
}

int ku_buckets_create(const struct ku_buckets_opts *opts, const int32_t *src_len,
                      const int32_t *tgt_len, int64_t n_samples, struct ku_buckets **out)
{
    KU_TRY(check_opts(opts, n_samples));
    struct ku_buckets *b = ku_calloc(1, sizeof *b);
    if (!b)
        return KUMI_ENOMEM;
    b->seed = opts->seed;
    b->shuffle = opts->shuffle;
    int status = ku_buckets_choose(opts, src_len, tgt_len, n_samples, b->shape, &b->n_shapes);
    if (status == KUMI_OK)
        status = sort_samples(b, src_len, tgt_len, n_samples);
    if (status == KUMI_OK)
        status = cut(b, opts);
    if (status < 0) {
        ku_buckets_destroy(b);
        return status;
    }
    count_padding(b, src_len, tgt_len, n_samples);
    *out = b;
    return KUMI_OK;
}

int ku_buckets_of_data(const struct ku_data *d, enum ku_data_split split,
                       const struct ku_buckets_opts *opts, struct ku_buckets **out)
{
    int64_t n = d->n_samples[split];
    KU_ASSERT(n > 0);
    if (!d->ops->lengths)
        return ku_buckets_create(opts, NULL, NULL, n, out);
    int32_t *src_len = ku_calloc((size_t)n, sizeof *src_len),
            *tgt_len = ku_calloc((size_t)n, sizeof *tgt_len);
    int status = src_len && tgt_len ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK) {
        d->ops->lengths(d, split, src_len, tgt_len);
        status = ku_buckets_create(opts, src_len, tgt_len, n, out);
    }
    ku_free(src_len);
    ku_free(tgt_len);
    return status;
}

void ku_buckets_destroy(struct ku_buckets *b)
{
    if (!b)
        return;
    ku_free(b->order);
    ku_free(b);
}

int ku_buckets_n_shapes(const struct ku_buckets *b)
{
    return b->n_shapes;
}

struct ku_bucket_shape ku_buckets_shape(const struct ku_buckets *b, int shape)
{
    KU_ASSERT(shape >= 0 && shape < b->n_shapes);
    return b->shape[shape];
}

int64_t ku_buckets_steps_per_epoch(const struct ku_buckets *b)
{
    return b->n_full + (b->n_rest > 0);
}

/*
 * Permutations: stream KU_SHAPES_MAX for the epoch's batches, stream i for the samples of shape i.
 * With one shape the permutation is that of ku_sampler.
 */
static uint64_t at_permuted(const struct ku_buckets *b, int64_t n, uint64_t stream, int64_t epoch,
                            int64_t i)
{
    if (!b->shuffle)
        return (uint64_t)i;
    struct ku_permutation order;
    uint64_t seed = b->n_shapes == 1 ? b->seed : ku_hash64_mix(b->seed, stream);
    ku_permutation_init(&order, (uint64_t)n, seed, (uint64_t)epoch);
    return ku_permutation_at(&order, (uint64_t)i);
}

/* The unshuffled number of a step's batch; n_full is the incomplete batch. */
static int64_t batch_of(const struct ku_buckets *b, int64_t step)
{
    int64_t per_epoch = ku_buckets_steps_per_epoch(b), i = step % per_epoch;
    KU_ASSERT(step >= 0);
    if (i == b->n_full || b->n_shapes == 1)
        return i;
    return (int64_t)at_permuted(b, b->n_full, KU_SHAPES_MAX, step / per_epoch, i);
}

static int shape_of_batch(const struct ku_buckets *b, int64_t batch)
{
    int i = b->n_shapes - 1;
    while (batch < b->pool[i].first_batch)
        i--;
    return i;
}

int ku_buckets_shape_at(const struct ku_buckets *b, int64_t step)
{
    return shape_of_batch(b, batch_of(b, step));
}

static int64_t valid(const struct ku_buckets *b, int64_t batch, int shape)
{
    return batch == b->n_full ? b->n_rest : b->shape[shape].rows;
}

int64_t ku_buckets_batch(const struct ku_buckets *b, int64_t step)
{
    int64_t batch = batch_of(b, step);
    return valid(b, batch, shape_of_batch(b, batch));
}

/* The sample at an index of a shape's pool. */
static int64_t in_pool(const struct ku_buckets *b, int shape, int64_t epoch, int64_t place)
{
    for (; place < b->pool[shape].n_before; shape--)
        place += pool_count(b, shape - 1) - b->pool[shape].n_before;
    const struct pool *p = &b->pool[shape];
    int64_t own = (int64_t)at_permuted(b, p->n_own, (uint64_t)shape, epoch, place - p->n_before);
    return b->order ? b->order[p->first + own] : own;
}

/* The index, in its shape's batches, of a position of a step; -1: the position is empty. */
static int64_t place_of(const struct ku_buckets *b, int64_t step, int64_t position, int *shape)
{
    int64_t batch = batch_of(b, step);
    *shape = shape_of_batch(b, batch);
    int64_t rows = b->shape[*shape].rows;
    KU_ASSERT(position >= 0 && position < rows);
    return position < valid(b, batch, *shape)
               ? (batch - b->pool[*shape].first_batch) * rows + position
               : -1;
}

int64_t ku_buckets_at(const struct ku_buckets *b, int64_t step, int64_t position)
{
    int shape;
    int64_t place = place_of(b, step, position, &shape),
            epoch = step / ku_buckets_steps_per_epoch(b);
    return place < 0 ? -1 : in_pool(b, shape, epoch, place % pool_count(b, shape));
}

int64_t ku_buckets_number(const struct ku_buckets *b, int64_t step, int64_t position)
{
    int shape;
    int64_t place = place_of(b, step, position, &shape),
            epoch = step / ku_buckets_steps_per_epoch(b);
    return place < 0 ? -1 : epoch * b->epoch_positions + b->pool[shape].first_draw + place;
}

double ku_buckets_padding(const struct ku_buckets *b)
{
    return b->padding;
}

void ku_buckets_print(const struct ku_buckets *b, struct ku_str *out)
{
    ku_str_add(out, "%d shape%s: ", b->n_shapes, b->n_shapes > 1 ? "s" : "");
    for (int i = 0; i < b->n_shapes; i++) {
        int64_t steps = b->pool[i].n_batches + (i + 1 == b->n_shapes && b->n_rest > 0);
        ku_str_add(out, "%s%lld x %lld x %lld (%lld steps)", i ? ", " : "",
                   (long long)b->shape[i].rows, (long long)b->shape[i].src_len,
                   (long long)b->shape[i].tgt_len, (long long)steps);
    }
    ku_str_add(out, "; %.1f %% padding", 100.0 * b->padding);
}
