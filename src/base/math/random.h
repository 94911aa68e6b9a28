/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_MATH_RANDOM_H
#define KU_BASE_MATH_RANDOM_H

#include <stdint.h>

/*
 * Random numbers are a pure function of (seed, step, stream, global element index), so that every
 * parallel layout draws the same numbers and a checkpoint needs no generator state.
 *
 * Generator: Philox-4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).
 *
 *     key      {seed low, seed high}
 *     counter  {index/4 low, index/4 high, step, stream}
 *     result   4 words of 32 bits; element `index` takes word index % 4
 */
#define KU_PHILOX_M0 0xD2511F53u /* multipliers */
#define KU_PHILOX_M1 0xCD9E8D57u
#define KU_PHILOX_W0 0x9E3779B9u /* what a round adds to the key */
#define KU_PHILOX_W1 0xBB67AE85u
struct ku_philox {
    uint32_t word[4];
};
static inline struct ku_philox ku_philox(uint64_t seed, uint32_t step, uint32_t stream,
                                         uint64_t block)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = step, c3 = stream;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)KU_PHILOX_M0 * c0, p1 = (uint64_t)KU_PHILOX_M1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
        k0 += KU_PHILOX_W0, k1 += KU_PHILOX_W1;
    }
    return (struct ku_philox){{c0, c1, c2, c3}};
}
static inline uint32_t ku_random_u32(uint64_t seed, uint32_t step, uint32_t stream, uint64_t index)
{
    return ku_philox(seed, step, stream, index >> 2).word[index & 3];
}
/* Uniform in [0, 1): the upper 24 bits, exact in f32. */
static inline float ku_random_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}
/*
 * Standard normal (Box-Muller in f64, rounded to f32). Elements 2j and 2j+1 use words 2j and 2j+1.
 */
float ku_random_normal(uint64_t seed, uint32_t step, uint32_t stream, uint64_t index);
/*
 * mean + std * z of the elements [first, first + count) of the same sequence: computed in f64 from
 * z in f32, and rounded to f32.
 */
struct ku_normals {
    uint64_t seed;
    uint32_t step, stream;
    double mean, std;
};
void ku_random_normals(const struct ku_normals *of, uint64_t first, int64_t count, float *out);

/*
 * Seeded permutation of [0, n) in O(1) memory: a balanced Feistel network over the next even power
 * of two, applied repeatedly until the value is below n. A bijection for every n >= 1. The key
 * depends on seed and epoch.
 */
struct ku_permutation {
    uint64_t n, key;
    int half_bits;
};
void ku_permutation_init(struct ku_permutation *p, uint64_t n, uint64_t seed, uint64_t epoch);
uint64_t ku_permutation_at(const struct ku_permutation *p, uint64_t i); /* i < n */

#endif
