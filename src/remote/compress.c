/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/compress.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/math/random.h"
#include "tensor/blocks.h"

enum { MAX_Q = 127 };

/* The largest magnitude; NaN or infinity if one element is. */
static float largest(const float *a, int64_t n)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) { /* magnitudes compare as integers, NaN above infinity */
        uint32_t bits;
        memcpy(&bits, &a[i], sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    float x;
    memcpy(&x, &most, sizeof x);
    return x;
}

/* -- int8 ------------------------------------------------------------------------------------- */

static float clamp(float q)
{
    return q > MAX_Q ? MAX_Q : q < -MAX_Q ? -MAX_Q : q;
}

static void round_nearest(const float *a, int64_t n, float scale, int8_t *q)
{
    for (int64_t i = 0; i < n; i++)
        q[i] = (int8_t)clamp(rintf(a[i] / scale));
}

/* Up with a probability that is the fraction. */
static void round_randomly(const struct ku_compress_draw *d, const float *a, int64_t n, float scale,
                           int8_t *q)
{
    struct ku_philox r = {{0}};
    for (int64_t i = 0; i < n; i++) {
        const uint64_t index = d->first + (uint64_t)i;
        if (i == 0 || index % 4 == 0)
            r = ku_philox(d->seed, d->step, d->stream, index / 4);
        q[i] = (int8_t)clamp(floorf(a[i] / scale + ku_random_uniform(r.word[index % 4])));
    }
}

static void to_int8(const struct ku_remote_entry *x, const struct ku_compress_draw *draw, int64_t n,
                    const float *a, unsigned char *record)
{
    const float scale = largest(a, n) / MAX_Q;
    int8_t *q = (int8_t *)(record + sizeof scale);
    memcpy(record, &scale, sizeof scale);
    memset(q, 0, ku_remote_record_bytes(x, n) - sizeof scale);
    if (!(scale > 0 && scale <= FLT_MAX))
        return;
    if (x->form == KU_REMOTE_INT8)
        round_nearest(a, n, scale, q);
    else
        round_randomly(draw, a, n, scale, q);
}

/* -- topk ------------------------------------------------------------------------------------- */

static uint32_t magnitude(float a)
{
    uint32_t bits;
    memcpy(&bits, &a, sizeof bits);
    return bits & 0x7fffffff;
}

/*
 * The k-th largest magnitude by radix selection, 3 passes of 11 bits, highest first; *n_above: how
 * many are larger.
 */
static uint32_t kth_largest(const float *a, int64_t n, int64_t k, int64_t *n_above)
{
    enum { BITS = 11, BINS = 1 << BITS };
    uint32_t prefix = 0, mask = 0;
    int64_t left = k;
    *n_above = 0;
    for (int shift = 2 * BITS; shift >= 0; shift -= BITS) {
        uint32_t count[BINS] = {0};
        for (int64_t i = 0; i < n; i++) {
            const uint32_t m = magnitude(a[i]);
            count[m >> shift & (BINS - 1)] += (m & mask) == prefix;
        }
        uint32_t bin = BINS - 1;
        for (; count[bin] < left; bin--)
            left -= count[bin];
        prefix |= bin << shift;
        mask |= (uint32_t)(BINS - 1) << shift;
    }
    for (int64_t i = 0; i < n; i++)
        *n_above += magnitude(a[i]) > prefix;
    return prefix;
}

/* Of equal magnitudes those with the lowest indices. */
static void to_topk(const struct ku_remote_entry *x, int64_t n, const float *a,
                    unsigned char *record)
{
    const int64_t k = ku_remote_topk(x, n);
    float *value = (float *)(void *)record;
    uint16_t *index = (uint16_t *)(void *)(record + (size_t)k * sizeof *value);
    int64_t n_above, at = 0;
    const uint32_t min = kth_largest(a, n, k, &n_above);
    int64_t ties = k - n_above;
    memset(record, 0, ku_remote_record_bytes(x, n));
    for (int64_t i = 0; i < n && at < k; i++) {
        const uint32_t m = magnitude(a[i]);
        if (m < min || (m == min && ties == 0))
            continue;
        ties -= m == min;
        value[at] = a[i];
        index[at++] = (uint16_t)i;
    }
    KU_ASSERT(at == k);
}

static void from_topk(const struct ku_remote_entry *x, int64_t n, const unsigned char *record,
                      float *out)
{
    const int64_t k = ku_remote_topk(x, n);
    const float *value = (const float *)(const void *)record;
    const uint16_t *index = (const uint16_t *)(const void *)(record + (size_t)k * sizeof *value);
    memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < k; i++)
        out[index[i]] = value[i];
}

/* -- both ------------------------------------------------------------------------------------- */

void ku_compress_decode(const struct ku_remote_entry *x, int64_t n, const void *record, float *out)
{
    const unsigned char *at = record;
    float scale;
    if (x->form == KU_REMOTE_TOPK) {
        from_topk(x, n, at, out);
        return;
    }
    memcpy(&scale, at, sizeof scale);
    const int8_t *q = (const int8_t *)(at + sizeof scale);
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)q[i] * scale;
}

bool ku_compress_is_valid(const struct ku_remote_entry *x, int64_t n, const void *record)
{
    if (x->form != KU_REMOTE_TOPK)
        return true;
    const int64_t k = ku_remote_topk(x, n);
    const unsigned char *at = (const unsigned char *)record + (size_t)k * sizeof(float);
    int64_t last = -1;
    for (int64_t i = 0; i < k; i++) {
        uint16_t index;
        memcpy(&index, at + (size_t)i * sizeof index, sizeof index);
        if (index <= last || index >= n)
            return false;
        last = index;
    }
    return true;
}

void ku_compress_chunk(const struct ku_remote_entry *x, const struct ku_compress_draw *draw,
                       int64_t n, const float *g, const float *before, void *record, float *after)
{
    float a[KU_BLOCK_COUNT], said[KU_BLOCK_COUNT];
    KU_ASSERT(n >= 1 && n <= KU_BLOCK_COUNT && x->form != KU_REMOTE_DENSE);
    for (int64_t i = 0; i < n; i++)
        a[i] = g[i] + before[i];
    if (x->form == KU_REMOTE_TOPK)
        to_topk(x, n, a, record);
    else
        to_int8(x, draw, n, a, record);
    if (!(largest(a, n) <= FLT_MAX)) {
        memcpy(after, before, (size_t)n * sizeof *after);
        return;
    }
    ku_compress_decode(x, n, record, said);
    for (int64_t i = 0; i < n; i++)
        after[i] = a[i] - said[i];
}
