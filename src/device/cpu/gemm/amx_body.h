/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loop of bf16 products on Intel AMX. A call computes 32 x 32 sums in four tiles of 16 x
 * 16:
 *
 *               b: tile 6   tile 7
 *     a: tile 4    tile 0   tile 1     rows  0 .. 15
 *        tile 5    tile 2   tile 3     rows 16 .. 31
 *
 * so four products need four loads. A tile of a is 16 rows of 16 units in place; a packed group of
 * a is therefore blocks of [mr][16 units]. A tile of b is 16 units of a panel.
 */
#include "device/cpu/gemm/amx_tiles.h"

enum { AMX_MR = 32, AMX_NR = 32 };

/*
 * Rows that this thread's tiles are configured for; 0: released. A call configures only where they
 * differ: ldtilecfg takes as long as several tile products, and a call may have few.
 */
static _Thread_local int amx_configured;

static void amx_configure_rows(int n_rows)
{
    const int upper = n_rows < AMX_SIDE ? n_rows : AMX_SIDE;
    amx_configure(upper, n_rows - upper);
    amx_configured = n_rows;
}
static void amx_end(void)
{
    if (amx_configured)
        TILE_RELEASE();
    amx_configured = 0;
}

/* lower: there are more than 16 rows. It and `next` == NULL are constants in each copy. */
static inline __attribute__((always_inline)) void
amx_rows(const int lower, const struct ku_gemm_part *part, int64_t n_parts, int64_t row_bytes,
         int64_t block_bytes, float *c, int64_t ldc, int load, const char *next, int64_t next_bytes)
{
    float *c2 = c + AMX_SIDE * ldc;
    const int64_t c_bytes = ldc * 4;
    TILE_ZERO(0);
    TILE_ZERO(1);
    if (load) {
        TILE_LOAD(0, c, c_bytes);
        TILE_LOAD(1, c + AMX_SIDE, c_bytes);
    }
    if (lower) {
        TILE_ZERO(2);
        TILE_ZERO(3);
        if (load) {
            TILE_LOAD(2, c2, c_bytes);
            TILE_LOAD(3, c2 + AMX_SIDE, c_bytes);
        }
    }
    do {
        const char *a = part->a, *b = part->b;
        const int64_t n_units = part->n_units;
        for (int64_t k = 0; k < n_units; k += AMX_SIDE) {
            TILE_LOAD(6, b, AMX_NR * 4);
            TILE_LOAD(7, b + AMX_SIDE * 4, AMX_NR * 4);
            TILE_LOAD(4, a, row_bytes);
            TILE_DP(0, 4, 6);
            TILE_DP(1, 4, 7);
            if (lower) {
                TILE_LOAD(5, a + AMX_SIDE * row_bytes, row_bytes);
                TILE_DP(2, 5, 6);
                TILE_DP(3, 5, 7);
            }
            if (next)
                for (int i = 0; i < AMX_SIDE << lower; i++)
                    __builtin_prefetch(next + i * next_bytes + k * 4, 0, 2);
            a += block_bytes;
            b += AMX_SIDE * AMX_NR * 4;
        }
        part++;
    } while (--n_parts > 0);
    TILE_STORE(0, c, c_bytes);
    TILE_STORE(1, c + AMX_SIDE, c_bytes);
    if (lower) {
        TILE_STORE(2, c2, c_bytes);
        TILE_STORE(3, c2 + AMX_SIDE, c_bytes);
    }
}

static void amx_parts(int rows, const struct ku_gemm_part *part, int64_t n_parts, int64_t rs,
                      int64_t cs, float *c, int64_t ldc, int load, const void *next,
                      int64_t next_bytes)
{
    const int64_t block_bytes = cs * AMX_SIDE * 4;
    if (amx_configured != rows)
        amx_configure_rows(rows);
    if (rows > AMX_SIDE && next)
        amx_rows(1, part, n_parts, rs * 4, block_bytes, c, ldc, load, next, next_bytes);
    else if (rows > AMX_SIDE)
        amx_rows(1, part, n_parts, rs * 4, block_bytes, c, ldc, load, NULL, 0);
    else if (next)
        amx_rows(0, part, n_parts, rs * 4, block_bytes, c, ldc, load, next, next_bytes);
    else
        amx_rows(0, part, n_parts, rs * 4, block_bytes, c, ldc, load, NULL, 0);
}
static void amx_micro(int rows, int64_t n_units, const void *a, int64_t rs, int64_t cs,
                      const void *b, float *c, int64_t ldc, int load, const void *next,
                      int64_t next_bytes)
{
    const struct ku_gemm_part whole = {a, b, n_units};
    amx_parts(rows, &whole, 1, rs, cs, c, ldc, load, next, next_bytes);
}

/* [16 units][32] -> [32][16 units], block by block, in place. */
static void amx_regroup(void *group, int64_t n_units)
{
    for (int64_t k = 0; k < n_units; k += AMX_SIDE) {
        uint32_t *block = (uint32_t *)group + k * AMX_MR;
        vu half[2][AMX_SIDE];
        for (int h = 0; h < 2; h++) {
            for (int u = 0; u < AMX_SIDE; u++)
                half[h][u] = *(const vu_mem *)(block + u * AMX_MR + h * AMX_SIDE);
            transpose_16(half[h]);
        }
        for (int i = 0; i < AMX_MR; i++)
            *(vu_mem *)(block + i * AMX_SIDE) = half[i / AMX_SIDE][i % AMX_SIDE];
    }
}

enum { AMX_UNROLLED = 4 };
#define AMX_PEAK_FLOPS (2.0 * AMX_SIDE * AMX_SIDE * 2 * AMX_SIDE * 4 * AMX_UNROLLED)
static void amx_peak(int64_t n_rounds, float *sink)
{
    amx_configure_rows(AMX_MR);
    TILE_LOAD(4, sink, 0); /* the same row sixteen times */
    TILE_LOAD(5, sink, 0);
    TILE_LOAD(6, sink, 0);
    TILE_LOAD(7, sink, 0);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t n = 0; n < n_rounds * AMX_UNROLLED; n++) {
        TILE_DP(0, 4, 6);
        TILE_DP(1, 4, 7);
        TILE_DP(2, 5, 6);
        TILE_DP(3, 5, 7);
    }
    TILE_STORE(0, sink, 0);
    amx_end();
}
