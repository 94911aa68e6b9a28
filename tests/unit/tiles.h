/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix tiles in plain C, for device/cpu/amx_body.h where the machine has none: eight tiles of up
 * to 16 rows of 64 bytes. As the hardware does, it faults on a tile that is not configured and on
 * products of tiles whose sizes do not fit. Source: Intel SDM, TDPBF16PS, LDTILECFG.
 */
#ifndef TESTS_UNIT_TILES_H
#define TESTS_UNIT_TILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "sample.h"

static _Thread_local struct tile_file {
    int rows[8], row_bytes[8];
    unsigned char data[8][16][64];
} tiles;

static void tiles_config(const void *config)
{
    const unsigned char *c = config;
    assert_int_equal(c[0], 1);
    memset(&tiles, 0, sizeof tiles);
    for (int t = 0; t < 8; t++) {
        tiles.rows[t] = c[48 + t];
        tiles.row_bytes[t] = c[16 + 2 * t] | c[17 + 2 * t] << 8;
        assert_true(tiles.rows[t] <= 16 && tiles.row_bytes[t] <= 64);
        assert_int_equal(tiles.rows[t] == 0, tiles.row_bytes[t] == 0);
    }
}
static void tiles_load(int t, const void *at, int64_t stride)
{
    assert_true(tiles.rows[t] > 0);
    memset(tiles.data[t], 0, sizeof tiles.data[t]);
    for (int r = 0; r < tiles.rows[t]; r++)
        memcpy(tiles.data[t][r], (const char *)at + r * stride, (size_t)tiles.row_bytes[t]);
}
static void tiles_store(int t, void *at, int64_t stride)
{
    assert_true(tiles.rows[t] > 0);
    for (int r = 0; r < tiles.rows[t]; r++)
        memcpy((char *)at + r * stride, tiles.data[t][r], (size_t)tiles.row_bytes[t]);
}
/* All elements of a tile, 32 in each row. */
SAMPLE_UNCHECKED static void tiles_widen(int t, float out[16][32])
{
    for (int r = 0; r < 16; r++)
        for (int i = 0; i < 32; i++) {
            const unsigned char *p = tiles.data[t][r] + 2 * i;
            uint32_t bits = (uint32_t)(p[0] | p[1] << 8) << 16;
            memcpy(&out[r][i], &bits, sizeof bits);
        }
}
/* A product of two bf16 is exact in f32, so a sum of it rounds once, as a fused one does. */
SAMPLE_UNCHECKED static void tiles_dp(int c, int a, int b)
{
    float left[16][32], right[16][32], sum[16];
    assert_int_equal(tiles.rows[c], tiles.rows[a]);
    assert_int_equal(tiles.row_bytes[c], tiles.row_bytes[b]);
    assert_int_equal(tiles.row_bytes[a], tiles.rows[b] * 4);
    tiles_widen(a, left);
    tiles_widen(b, right);
    for (int m = 0; m < tiles.rows[c]; m++) {
        memcpy(sum, tiles.data[c][m], sizeof sum);
        for (int k = 0; k < tiles.rows[b]; k++)
            for (int half = 0; half < 2; half++)
                for (int n = 0; n < 16; n++)
                    sum[n] += left[m][2 * k + half] * right[k][2 * n + half];
        memcpy(tiles.data[c][m], sum, (size_t)tiles.row_bytes[c]);
    }
}

#define TILE_CONFIG(c)           tiles_config(c)
#define TILE_RELEASE()           memset(&tiles, 0, sizeof tiles)
#define TILE_ZERO(t)             memset(tiles.data[t], 0, sizeof tiles.data[t])
#define TILE_LOAD(t, at, bytes)  tiles_load(t, at, bytes)
#define TILE_STORE(t, at, bytes) tiles_store(t, at, bytes)
#define TILE_DP(c, a, b)         tiles_dp(c, a, b)

#endif
