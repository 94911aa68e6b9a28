/* SPDX-License-Identifier: Apache-2.0 */
#include "base/random.h"

#include <math.h>

#include "base/err.h"

/* Box & Muller 1958: two words give two normals. */
static void normal_pair(uint32_t a, uint32_t b, float out[2])
{
    double u = ((double)a + 0.5) * 0x1p-32, angle = 6.283185307179586476925 * ((double)b * 0x1p-32);
    double radius = sqrt(-2 * log(u));
    out[0] = (float)(radius * cos(angle));
    out[1] = (float)(radius * sin(angle));
}

void ku_random_normals(uint64_t seed, uint32_t step, uint32_t stream, uint64_t first, int64_t count,
                       float *out)
{
    float four[4];
    for (int64_t i = 0; i < count;) {
        uint64_t index = first + (uint64_t)i;
        struct ku_philox block = ku_philox(seed, step, stream, index >> 2);
        normal_pair(block.word[0], block.word[1], four);
        normal_pair(block.word[2], block.word[3], four + 2);
        for (uint64_t lane = index & 3; lane < 4 && i < count; lane++)
            out[i++] = four[lane];
    }
}

float ku_random_normal(uint64_t seed, uint32_t step, uint32_t stream, uint64_t index)
{
    float x;
    ku_random_normals(seed, step, stream, index, 1, &x);
    return x;
}

void ku_permutation_init(struct ku_permutation *p, uint64_t n, uint64_t seed, uint64_t epoch)
{
    KU_ASSERT(n >= 1);
    int bits = 2;
    while (bits < 64 && ((uint64_t)1 << bits) < n)
        bits += 2;
    struct ku_philox key =
        ku_philox(seed, 0x5045524d, (uint32_t)(epoch >> 32), epoch & 0xffffffffu);
    *p = (struct ku_permutation){n, (uint64_t)key.word[1] << 32 | key.word[0], bits / 2};
}

/* Eight Feistel rounds; the round function is a 64-bit mix (splitmix64's finaliser) of half, round
 * and key. */
static uint64_t feistel(const struct ku_permutation *p, uint64_t x)
{
    uint64_t mask = ((uint64_t)1 << p->half_bits) - 1, left = x >> p->half_bits, right = x & mask;
    for (uint64_t round = 0; round < 8; round++) {
        uint64_t z = right + p->key + round * UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        z ^= z >> 31;
        uint64_t next = (left ^ z) & mask;
        left = right;
        right = next;
    }
    return left << p->half_bits | right;
}

uint64_t ku_permutation_at(const struct ku_permutation *p, uint64_t i)
{
    KU_ASSERT(i < p->n);
    do
        i = feistel(p, i);
    while (i >= p->n); /* a cycle walk: ends, since the permutation of the larger set is a
                          bijection; < 4 rounds on average */
    return i;
}
