/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loop of matrix products, included once per instruction set and unit. The includer
 * defines GEMM_BYTES (of a vector), GEMM_MR (rows), GEMM_UNIT (float, or int32_t for bf16 pairs),
 * GEMM_DEPTH (products per lane: 1 or 2), GEMM_MADD(acc, unit, b), GEMM_PEAK_MADD(acc, b), and
 * GEMM_VECTORS (width in vectors) if it is not 2. All accumulators, the vectors of b and one
 * broadcast fit the registers (AVX-512: 14 x 2 + 2 + 1 = 31 of 32, or 28 x 1 + 1 + 1).
 */
#if !defined(GEMM_VECTORS)
#define GEMM_VECTORS 2
#endif
enum { GEMM_VL = GEMM_BYTES / 4, GEMM_NR = GEMM_VECTORS * GEMM_VL };
typedef float gemm_v __attribute__((vector_size(GEMM_BYTES)));
typedef float gemm_vmem __attribute__((vector_size(GEMM_BYTES), aligned(4), may_alias));
typedef GEMM_UNIT gemm_unit __attribute__((aligned(2), may_alias)); /* bf16: 2-byte aligned */
enum { GEMM_BASES = GEMM_MR > 16 ? 7 : 4 };
/*
 * rows is a constant in each copy that micro_parts() selects. narrow_rows: rs == 1, else cs == 1.
 */
static inline __attribute__((always_inline)) void
micro_rows(const int rows, const int narrow_rows, const struct ku_gemm_part *part, int64_t n_parts,
           int64_t rs, int64_t cs, float *c, int64_t ldc, int load, const char *next,
           int64_t next_bytes)
{
    gemm_v acc[GEMM_MR][GEMM_VECTORS];
    if (next == NULL)
        next = part->a, next_bytes = 0; /* a line in L1: cheaper than a branch in the loop */
    UNROLL
    for (int e = 0; e < rows * GEMM_VECTORS; e++) {
        const int i = e / GEMM_VECTORS, v = e % GEMM_VECTORS;
        acc[i][v] = (gemm_v){0};
        if (load)
            acc[i][v] = *(const gemm_vmem *)(c + i * ldc + v * GEMM_VL);
    }
    do {
        const gemm_unit *a = part->a;
        const float *b = part->b;
        /* one base per four rows, with offsets rs, 2 rs, 3 rs: few address registers */
        const gemm_unit *base[GEMM_BASES];
        UNROLL
        for (int q = 0; q < GEMM_BASES; q++)
            base[q] = a + 4 * q * rs;
        const int64_t n_units = part->n_units;
        for (int64_t k = 0; k < n_units; k++) {
            gemm_v w[GEMM_VECTORS];
            UNROLL
            for (int v = 0; v < GEMM_VECTORS; v++)
                w[v] = *(const gemm_vmem *)(b + v * GEMM_VL);
            UNROLL
            for (int i = 0; i < rows; i++) {
                gemm_unit x = narrow_rows ? a[i] : base[i / 4][i % 4 * rs];
                UNROLL
                for (int v = 0; v < GEMM_VECTORS; v++)
                    acc[i][v] = GEMM_MADD(acc[i][v], x, w[v]);
            }
            /* one cache line per iteration: 16 iterations fetch what 16 iterations will read */
            __builtin_prefetch(next + (k & 15) * next_bytes + (k >> 4) * 64, 0, 2);
            b += GEMM_NR;
            a += cs;
            UNROLL
            for (int q = 0; q < GEMM_BASES; q++)
                base[q]++;
        }
        part++;
    } while (--n_parts > 0);
    UNROLL
    for (int e = 0; e < rows * GEMM_VECTORS; e++) {
        const int i = e / GEMM_VECTORS, v = e % GEMM_VECTORS;
        *(gemm_vmem *)(c + i * ldc + v * GEMM_VL) = acc[i][v];
    }
}

#define MICRO_CASE(n)                                                                              \
    case n:                                                                                        \
        if (n > GEMM_MR)                                                                           \
            break;                                                                                 \
        if (rs == 1)                                                                               \
            micro_rows(n > GEMM_MR ? 1 : n, 1, part, n_parts, rs, cs, c, ldc, load, next,          \
                       next_bytes);                                                                \
        else                                                                                       \
            micro_rows(n > GEMM_MR ? 1 : n, 0, part, n_parts, rs, cs, c, ldc, load, next,          \
                       next_bytes);                                                                \
        break
static void micro_parts(int rows, const struct ku_gemm_part *part, int64_t n_parts, int64_t rs,
                        int64_t cs, float *c, int64_t ldc, int load, const void *next,
                        int64_t next_bytes)
{
    switch (rows) {
        MICRO_CASE(1);
        MICRO_CASE(2);
        MICRO_CASE(3);
        MICRO_CASE(4);
        MICRO_CASE(5);
        MICRO_CASE(6);
        MICRO_CASE(7);
        MICRO_CASE(8);
        MICRO_CASE(9);
        MICRO_CASE(10);
        MICRO_CASE(11);
        MICRO_CASE(12);
        MICRO_CASE(13);
        MICRO_CASE(14);
#if GEMM_VECTORS == 1
        MICRO_CASE(15);
        MICRO_CASE(16);
        MICRO_CASE(17);
        MICRO_CASE(18);
        MICRO_CASE(19);
        MICRO_CASE(20);
        MICRO_CASE(21);
        MICRO_CASE(22);
        MICRO_CASE(23);
        MICRO_CASE(24);
        MICRO_CASE(25);
        MICRO_CASE(26);
        MICRO_CASE(27);
        MICRO_CASE(28);
#endif
    default:
        __builtin_unreachable();
    }
}
KERNEL void micro(int rows, int64_t n_units, const void *a, int64_t rs, int64_t cs, const void *b,
                  float *c, int64_t ldc, int load, const void *next, int64_t next_bytes)
{
    const struct ku_gemm_part whole = {a, b, n_units};
    micro_parts(rows, &whole, 1, rs, cs, c, ldc, load, next, next_bytes);
}

/* The members of struct ku_gemm_micro that this file defines. */
#define GEMM_MICRO                                                                                 \
    .mr = GEMM_MR, .nr = GEMM_NR, .step = 1, .run_parts = micro_parts, .run = micro, .peak = peak, \
    .peak_flops = GEMM_PEAK_FLOPS

/* The limit of the instruction: chains of multiply-adds in registers only. */
enum { GEMM_CHAINS = 12, GEMM_UNROLLED = 4 };
#define GEMM_PEAK_FLOPS (2.0 * GEMM_DEPTH * (int)GEMM_VL * GEMM_CHAINS * GEMM_UNROLLED)
KERNEL void peak(int64_t n_rounds, float *sink)
{
    gemm_v acc[GEMM_CHAINS], b = *(const gemm_vmem *)sink;
    UNROLL
    for (int i = 0; i < GEMM_CHAINS; i++)
        acc[i] = b * (float)i; /* all different, so that the compiler cannot merge them */
    for (int64_t n = 0; n < n_rounds; n++) {
        UNROLL
        for (int u = 0; u < GEMM_UNROLLED; u++) {
            UNROLL
            for (int i = 0; i < GEMM_CHAINS; i++)
                acc[i] = GEMM_PEAK_MADD(acc[i], b);
        }
    }
    for (int i = 1; i < GEMM_CHAINS; i++)
        acc[0] += acc[i];
    *(gemm_vmem *)sink = acc[0];
}
