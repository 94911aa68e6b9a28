/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stochastic rounding. Included once per instruction set after dropout_body.h (isa_*.c).
 */
#include "tensor/dtype.h"

/* The random numbers of blocks block .. block + 15: element 4 block + i has word[i]. */
INLINE void words_64(const struct ku_dropout *d, uint64_t block, uint32_t word[64])
{
#if defined(__AVX512F__)
    __m512i w[4];
    philox_words(d, block, w);
    for (int i = 0; i < 4; i++)
        _mm512_storeu_si512(word + 16 * i, w[i]);
#else
    const vu add = (vu)lane_index();
    vu c0 = (uint32_t)block + add, w[4];
    vu c1 = (uint32_t)(block >> 32) - (vu)(c0 < add); /* carry: the comparison is -1 */
    philox_lanes(d->seed, d->step, d->stream, c0, c1, w);
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++)
            word[4 * l + i] = w[i][l];
#endif
}

/* ku_round_random with the random numbers of elements from `first` on. */
KERNEL void stochastic_round(void *dst, enum kumi_dtype t, const float *x, int64_t n,
                             const struct ku_dropout *d, uint64_t first)
{
    uint32_t word[64];
    for (int64_t at = 0, some; at < n; at += some) {
        const uint64_t index = first + (uint64_t)at;
        const int64_t skip = (int64_t)(index % 4);
        some = n - at < 64 - skip ? n - at : 64 - skip;
        words_64(d, index / 4, word);
        uint16_t *to = (uint16_t *)dst + at;
        if (t == KUMI_BF16 && some == 64)
            for (int i = 0; i < 64; i++)
                to[i] = ku_bf16_from_f32_random(x[at + i], word[i]);
        else
            ku_round_random(to, t, x + at, word + skip, some);
    }
}
