/* SPDX-License-Identifier: Apache-2.0 */
#include "base/random.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

/*
 * Normals are made in batches of N_BLOCKS Philox blocks, by plain loops over arrays that the
 * compiler vectorizes, once per instruction set.
 *
 * The code uses only IEEE +, -, *, /, sqrt and integer operations without contraction, and no
 * library log or sin. Every instruction set and every build therefore gives the same bits
 * (docs/internals/numerics.md). The lanes of a batch are independent.
 */
enum { N_BLOCKS = 64, N_ELEMENTS = 4 * N_BLOCKS };

static inline __attribute__((always_inline)) double as_double(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, 8);
    return x;
}
static inline __attribute__((always_inline)) uint64_t as_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}
/* Exact conversion of an integer below 2^32 to double: the low bits of 2^52 + i, minus 2^52. */
static inline __attribute__((always_inline)) double from_u32(uint64_t i)
{
    return as_double(i | UINT64_C(0x4330000000000000)) - 0x1p52;
}

/*
 * log(x) for normal x > 0, error below 1 ulp. Coefficients of R: FreeBSD's e_log.c (minimax).
 *
 *     x = 2^k m, sqrt(1/2) <= m < sqrt(2);  f = m - 1;  s = f / (2 + f)
 *     log(m) = f - f*f/2 + s*(f*f/2 + R(s*s))
 */
#define ONE  (UINT64_C(0x3ff00000) << 32)
#define ROOT (UINT64_C(0x3fe6a09e) << 32) /* sqrt(1/2), rounded down */
static inline __attribute__((always_inline)) double log_of(double x)
{
    uint64_t shifted = as_bits(x) + (ONE - ROOT);
    double k = from_u32(shifted >> 52) - 1023;
    double f = as_double((shifted & UINT64_C(0x000fffffffffffff)) + ROOT) - 1;
    double half = 0.5 * f * f, s = f / (2 + f), z = s * s, w = z * z;
    double odd = w * (3.999999999940941908e-01 +
                      w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    double even = z * (6.666666666666735130e-01 +
                       w * (2.857142874366239149e-01 +
                            w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    return k * 6.93147180369123816490e-01 -
           ((half - (s * (half + (odd + even)) + k * 1.90821492927058770002e-10)) - f);
}

/* sin and cos on [-pi/4, pi/4]: FreeBSD's k_sin.c and k_cos.c. */
static inline __attribute__((always_inline)) double sin_of(double x)
{
    double z = x * x;
    double r = 8.33333333332248946124e-03 +
               z * (-1.98412698298579493134e-04 +
                    z * (2.75573137070700676789e-06 +
                         z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)));
    return x + z * x * (-1.66666666666666324348e-01 + z * r);
}
static inline __attribute__((always_inline)) double cos_of(double x)
{
    double z = x * x, half = 0.5 * z, one_less = 1 - half;
    double r =
        z * (4.16666666666666019037e-02 +
             z * (-1.38888888888741095749e-03 +
                  z * (2.48015872894767294178e-05 +
                       z * (-2.75573143513906633035e-07 +
                            z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)))));
    return one_less + (((1 - one_less) - half) + z * r);
}

/*
 * Box & Muller 1958: two words give two normals, radius * (cos, sin) of the angle b / 2^32 turns.
 *
 *   radius  sqrt(-2 log u), u = (a + 1/2) / 2^32
 *   angle   split exactly into the nearest quarter turn and a remainder x; the quarter swaps sine
 *           and cosine and sets their signs
 */
static inline __attribute__((always_inline)) void normal_pair(uint32_t a, uint32_t b, float *even,
                                                              float *odd)
{
    double radius = sqrt(-2 * log_of((from_u32(a) + 0.5) * 0x1p-32));
    uint32_t turn = b + (UINT32_C(1) << 29), quarter = turn >> 30;
    double x = (from_u32(turn & 0x3fffffffu) - 0x1p29) * (1.57079632679489661923 * 0x1p-30);
    uint64_t s = as_bits(radius * sin_of(x)), c = as_bits(radius * cos_of(x));
    uint64_t swap = (uint64_t)0 - (quarter & 1), either = (s ^ c) & swap;
    uint64_t c_sign = (uint64_t)((quarter + 1) >> 1 & 1) << 63;
    uint64_t s_sign = (uint64_t)(quarter >> 1) << 63;
    *even = (float)as_double(c ^ either ^ c_sign);
    *odd = (float)as_double(s ^ either ^ s_sign);
}

/* Fills out with the normals of Philox blocks [block, block + N_BLOCKS). */
static inline __attribute__((always_inline)) void
batch_body(uint64_t seed, uint32_t step, uint32_t stream, uint64_t block, float *out)
{
    uint32_t word[4][N_BLOCKS];
    float z[4][N_BLOCKS];
    for (int i = 0; i < N_BLOCKS; i++) {
        struct ku_philox p = ku_philox(seed, step, stream, block + (uint64_t)i);
        for (int w = 0; w < 4; w++)
            word[w][i] = p.word[w];
    }
    for (int w = 0; w < 4; w += 2)
        for (int i = 0; i < N_BLOCKS; i++)
            normal_pair(word[w][i], word[w + 1][i], &z[w][i], &z[w + 1][i]);
    for (int i = 0; i < N_BLOCKS; i++)
        for (int w = 0; w < 4; w++)
            out[4 * i + w] = z[w][i];
}

typedef void batch_fn(uint64_t seed, uint32_t step, uint32_t stream, uint64_t block, float *out);
static void batch_base(uint64_t seed, uint32_t step, uint32_t stream, uint64_t block, float *out)
{
    batch_body(seed, step, stream, block, out);
}
#if defined(__x86_64__)
__attribute__((target("avx2"))) static void batch_avx2(uint64_t seed, uint32_t step,
                                                       uint32_t stream, uint64_t block, float *out)
{
    batch_body(seed, step, stream, block, out);
}
__attribute__((target("avx512f,avx512dq,avx512vl"))) static void
batch_avx512(uint64_t seed, uint32_t step, uint32_t stream, uint64_t block, float *out)
{
    batch_body(seed, step, stream, block, out);
}
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

void ku_random_normals(uint64_t seed, uint32_t step, uint32_t stream, uint64_t first, int64_t count,
                       float *out)
{
    batch_fn *batch = batch_here();
    for (int64_t done = 0, n; done < count; done += n) {
        float some[N_ELEMENTS];
        uint64_t index = first + (uint64_t)done, lane = index & 3;
        n = N_ELEMENTS - (int64_t)lane;
        n = n < count - done ? n : count - done;
        int is_whole = n == N_ELEMENTS;
        batch(seed, step, stream, index >> 2, is_whole ? out + done : some);
        if (!is_whole)
            memcpy(out + done, some + lane, (size_t)n * sizeof *out);
    }
}

float ku_random_normal(uint64_t seed, uint32_t step, uint32_t stream, uint64_t index)
{
    struct ku_philox block = ku_philox(seed, step, stream, index >> 2);
    int pair = (int)(index & 2);
    float z[2];
    normal_pair(block.word[pair], block.word[pair + 1], &z[0], &z[1]);
    return z[index & 1];
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
