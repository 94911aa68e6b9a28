/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Normals, included by random.c once per instruction set. No include guard.
 *
 *   LANES      numbers side by side in a vector; 1: scalars
 *   NAME(x)    x with the instruction set in its name
 *   TARGET     attribute of functions
 *   ROOT(x)    square roots
 *   WIDE(a, b) LANES > 1: products of the low halves of the 64-bit lanes of a and b
 *   TO_REAL(x) LANES > 1: floats as doubles
 *   STORE(z, to) LANES > 1: stores z[0][i], z[1][i], z[2][i], z[3][i] for each lane i
 *
 * The code uses only IEEE +, -, *, /, sqrt and integer operations without contraction, and no
 * library log or sin. Every instruction set and every build therefore gives the same bits
 * (docs/internals/numerics.md).
 */
#if LANES == 1
typedef uint64_t NAME(bits);
typedef double NAME(real);
typedef float NAME(single);
#define TO_SINGLE(x) ((float)(x))
#else
typedef uint64_t NAME(bits) __attribute__((vector_size(8 * LANES)));
typedef double NAME(real) __attribute__((vector_size(8 * LANES)));
typedef float NAME(single) __attribute__((vector_size(4 * LANES)));
#define TO_SINGLE(x) __builtin_convertvector(x, NAME(single))
#endif
#define INLINE static inline __attribute__((always_inline)) TARGET

INLINE NAME(real) NAME(as_real)(NAME(bits) from)
{
    NAME(real) x;
    memcpy(&x, &from, sizeof x);
    return x;
}
INLINE NAME(bits) NAME(as_bits)(NAME(real) x)
{
    NAME(bits) to;
    memcpy(&to, &x, sizeof to);
    return to;
}
/*
 * The low half of i, minus `less`, a multiple of 1/2 of magnitude below 2^32. Exact: the low bits
 * of 2^52 + i, minus (2^52 + less).
 */
INLINE NAME(real) NAME(from_u32)(NAME(bits) i, double less)
{
    return NAME(as_real)((i & UINT32_MAX) | UINT64_C(0x4330000000000000)) - (0x1p52 + less);
}

/*
 * log(x) for normal x > 0, error below 1 ulp. Coefficients of R: FreeBSD's e_log.c (minimax).
 *
 *     x = 2^k m, sqrt(1/2) <= m < sqrt(2);  f = m - 1;  s = f / (2 + f)
 *     log(m) = f - f*f/2 + s*(f*f/2 + R(s*s))
 */
INLINE NAME(real) NAME(log_of)(NAME(real) x)
{
    const uint64_t one = UINT64_C(0x3ff00000) << 32;
    const uint64_t root = UINT64_C(0x3fe6a09e) << 32; /* sqrt(1/2), rounded down */
    NAME(bits) shifted = NAME(as_bits)(x) + (one - root);
    NAME(real) k = NAME(from_u32)(shifted >> 52, 1023);
    NAME(real) f = NAME(as_real)((shifted & UINT64_C(0x000fffffffffffff)) + root) - 1;
    NAME(real) half = 0.5 * f * f, s = f / (2 + f), z = s * s, w = z * z;
    NAME(real)
    odd = w * (3.999999999940941908e-01 +
               w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    NAME(real)
    even = z * (6.666666666666735130e-01 +
                w * (2.857142874366239149e-01 +
                     w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    return k * 6.93147180369123816490e-01 -
           ((half - (s * (half + (odd + even)) + k * 1.90821492927058770002e-10)) - f);
}

/* sin and cos on [-pi/4, pi/4]: FreeBSD's k_sin.c and k_cos.c. */
INLINE NAME(real) NAME(sin_of)(NAME(real) x)
{
    NAME(real) z = x * x;
    NAME(real)
    r = 8.33333333332248946124e-03 +
        z * (-1.98412698298579493134e-04 +
             z * (2.75573137070700676789e-06 +
                  z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)));
    return x + z * x * (-1.66666666666666324348e-01 + z * r);
}
INLINE NAME(real) NAME(cos_of)(NAME(real) x)
{
    NAME(real) z = x * x, half = 0.5 * z, one_less = 1 - half;
    NAME(real)
    r = z * (4.16666666666666019037e-02 +
             z * (-1.38888888888741095749e-03 +
                  z * (2.48015872894767294178e-05 +
                       z * (-2.75573143513906633035e-07 +
                            z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)))));
    return one_less + (((1 - one_less) - half) + z * r);
}

/*
 * Box & Muller 1958: two words give two normals, radius * (cos, sin) of the angle b / 2^32 turns.
 * The high halves of a and b are ignored.
 *
 *   radius  sqrt(-2 log u), u = (a + 1/2) / 2^32
 *   angle   split exactly into the nearest quarter turn and a remainder x; the quarter, in bits 30
 *           and 31 of turn, swaps sine and cosine and sets their signs
 */
INLINE NAME(real) NAME(radius_of)(NAME(bits) a)
{
    return ROOT(-2 * NAME(log_of)(NAME(from_u32)(a, -0.5) * 0x1p-32));
}
INLINE void NAME(normal_pair)(NAME(real) radius, NAME(bits) b, NAME(single) * even,
                              NAME(single) * odd)
{
    const uint64_t sign = UINT64_C(1) << 63;
    const double unit = 1.57079632679489661923 * 0x1p-30;
    NAME(bits) turn = b + (UINT32_C(1) << 29);
    NAME(real) x = NAME(from_u32)(turn & 0x3fffffffu, 0x1p29) * unit;
    NAME(bits) s = NAME(as_bits)(radius * NAME(sin_of)(x));
    NAME(bits) c = NAME(as_bits)(radius * NAME(cos_of)(x));
    NAME(bits) either = (s ^ c) & -(turn >> 30 & 1);
    NAME(bits) c_sign = (turn + (UINT32_C(1) << 30)) << 32 & sign, s_sign = turn << 32 & sign;
    *even = TO_SINGLE(NAME(as_real)(c ^ either ^ c_sign));
    *odd = TO_SINGLE(NAME(as_real)(s ^ either ^ s_sign));
}

#if LANES > 1
/* mean + std z, z rounded to f32 before. */
INLINE NAME(single) NAME(scaled)(const struct ku_normals *of, NAME(single) z)
{
    return TO_SINGLE(of->mean + of->std * (NAME(real))TO_REAL(z));
}

/* Philox blocks, one per lane. The words are in the low halves; the high halves are not cleared. */
INLINE void NAME(philox)(const struct ku_normals *of, NAME(bits) block, NAME(bits) word[4])
{
    const NAME(bits) none = {0};
    uint32_t k0 = (uint32_t)of->seed, k1 = (uint32_t)(of->seed >> 32);
    NAME(bits) c0 = block, c1 = block >> 32, c2 = none + of->step, c3 = none + of->stream;
    for (int round = 0; round < 10; round++) {
        NAME(bits) p0 = WIDE(c0, none + KU_PHILOX_M0), p1 = WIDE(c2, none + KU_PHILOX_M1);
        c0 = p1 >> 32 ^ c1 ^ (uint64_t)k0;
        c2 = p0 >> 32 ^ c3 ^ (uint64_t)k1;
        c1 = p1, c3 = p0;
        k0 += KU_PHILOX_W0, k1 += KU_PHILOX_W1;
    }
    word[0] = c0, word[1] = c1, word[2] = c2, word[3] = c3;
}

/*
 * A batch (random.c). A loop for each stage: the chain of one vector through all of them is longer
 * than what a processor looks ahead.
 */
TARGET static void NAME(batch)(const struct ku_normals *of, uint64_t block, float *out)
{
    enum { N = N_BLOCKS / LANES };
    static const uint64_t lane_numbers[] = {0, 1, 2, 3, 4, 5, 6, 7};
    NAME(bits) lane, word[N][4];
    NAME(real) radius[N][2];
    memcpy(&lane, lane_numbers, sizeof lane);
    for (int i = 0; i < N; i++)
        NAME(philox)(of, lane + (block + (uint64_t)(LANES * i)), word[i]);
    for (int i = 0; i < N; i++)
        for (int pair = 0; pair < 2; pair++)
            radius[i][pair] = NAME(radius_of)(word[i][2 * pair]);
    for (int i = 0; i < N; i++) {
        NAME(single) z[4];
        for (int w = 0; w < 4; w += 2)
            NAME(normal_pair)(radius[i][w / 2], word[i][w + 1], &z[w], &z[w + 1]);
        for (int w = 0; w < 4; w++)
            z[w] = NAME(scaled)(of, z[w]);
        STORE(z, out + 4 * LANES * i);
    }
}
#endif
#undef LANES
#undef NAME
#undef TARGET
#undef ROOT
#undef WIDE
#undef TO_REAL
#undef STORE
#undef TO_SINGLE
#undef INLINE
