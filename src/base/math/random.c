/* SPDX-License-Identifier: Apache-2.0 */
#include "base/math/random.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

/*
 * Normals are made in batches of N_BLOCKS Philox blocks, once per instruction set. The lanes of a
 * batch are independent.
 */
enum { N_BLOCKS = 64, N_ELEMENTS = 4 * N_BLOCKS };

typedef void batch_fn(const struct ku_normals *of, uint64_t block, float *out);

#define LANES   1
#define NAME(x) x##_base
#define TARGET
#define ROOT(x) sqrt(x)
#include "base/math/random_body.h"

float ku_random_normal(uint64_t seed, uint32_t step, uint32_t stream, uint64_t index)
{
    struct ku_philox block = ku_philox(seed, step, stream, index >> 2);
    int pair = (int)(index & 2);
    float z[2];
    normal_pair_base(radius_of_base(block.word[pair]), block.word[pair + 1], &z[0], &z[1]);
    return z[index & 1];
}

/* Loops that the compiler vectorizes. */
static void batch_base(const struct ku_normals *of, uint64_t block, float *out)
{
    uint32_t word[4][N_BLOCKS];
    float z[4][N_BLOCKS];
    for (int i = 0; i < N_BLOCKS; i++) {
        struct ku_philox p = ku_philox(of->seed, of->step, of->stream, block + (uint64_t)i);
        for (int w = 0; w < 4; w++)
            word[w][i] = p.word[w];
    }
    for (int w = 0; w < 4; w += 2)
        for (int i = 0; i < N_BLOCKS; i++)
            normal_pair_base(radius_of_base(word[w][i]), word[w + 1][i], &z[w][i], &z[w + 1][i]);
    for (int i = 0; i < N_BLOCKS; i++)
        for (int w = 0; w < 4; w++)
            out[4 * i + w] = (float)(of->mean + of->std * (double)z[w][i]);
}

#if defined(__x86_64__)
#include <immintrin.h>

#define LANES      4
#define NAME(x)    x##_avx2
#define TARGET     __attribute__((target("avx2")))
#define ROOT(x)    ((real_avx2)_mm256_sqrt_pd((__m256d)(x)))
#define WIDE(a, b) ((bits_avx2)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#define TO_REAL(x) _mm256_cvtps_pd((__m128)(x))
#define STORE(z, to)                                                                               \
    do {                                                                                           \
        __m128 a = (__m128)(z)[0], b = (__m128)(z)[1], c = (__m128)(z)[2], d = (__m128)(z)[3];     \
        _MM_TRANSPOSE4_PS(a, b, c, d);                                                             \
        _mm_storeu_ps(to, a), _mm_storeu_ps((to) + 4, b);                                          \
        _mm_storeu_ps((to) + 8, c), _mm_storeu_ps((to) + 12, d);                                   \
    } while (0)
#include "base/math/random_body.h"

#define LANES        8
#define NAME(x)      x##_avx512
#define TARGET       __attribute__((target("avx512f,avx512dq,avx512vl")))
#define ROOT(x)      ((real_avx512)_mm512_sqrt_pd((__m512d)(x)))
#define WIDE(a, b)   ((bits_avx512)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#define TO_REAL(x)   _mm512_cvtps_pd((__m256)(x))
#define BESIDE(a, b) _mm512_insertf32x8(_mm512_castps256_ps512((__m256)(a)), (__m256)(b), 1)
#define STORE(z, to)                                                                               \
    do {                                                                                           \
        const __m512i first = _mm512_set_epi64(13, 9, 12, 8, 5, 1, 4, 0);                          \
        const __m512i last = _mm512_set_epi64(15, 11, 14, 10, 7, 3, 6, 2);                         \
        const __m512 even = BESIDE((z)[0], (z)[2]), odd = BESIDE((z)[1], (z)[3]);                  \
        const __m512d low = _mm512_castps_pd(_mm512_unpacklo_ps(even, odd));                       \
        const __m512d high = _mm512_castps_pd(_mm512_unpackhi_ps(even, odd));                      \
        _mm512_storeu_pd(to, _mm512_permutex2var_pd(low, first, high));                            \
        _mm512_storeu_pd((to) + 16, _mm512_permutex2var_pd(low, last, high));                      \
    } while (0)
#include "base/math/random_body.h"

static batch_fn *batch_here(void)
{
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return batch_avx512;
    return __builtin_cpu_supports("avx2") ? batch_avx2 : batch_base;
}
#else
static batch_fn *batch_here(void)
{
    return batch_base;
}
#endif

void ku_random_normals(const struct ku_normals *of, uint64_t first, int64_t count, float *out)
{
    batch_fn *fill = batch_here();
    for (int64_t done = 0, n; done < count; done += n) {
        float some[N_ELEMENTS];
        uint64_t index = first + (uint64_t)done, lane = index & 3;
        n = N_ELEMENTS - (int64_t)lane;
        n = n < count - done ? n : count - done;
        int is_whole = n == N_ELEMENTS;
        fill(of, index >> 2, is_whole ? out + done : some);
        if (!is_whole)
            memcpy(out + done, some + lane, (size_t)n * sizeof *out);
    }
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

/*
 * Eight Feistel rounds. The round function is splitmix64's finalizer over half, round and key.
 */
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
    /*
     * Cycle walking: ends because the network is a bijection of the larger set; below 4 rounds on
     * average.
     */
    while (i >= p->n);
    return i;
}
