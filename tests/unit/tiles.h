/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix tiles in plain C, for device/cpu/amx_body.h where the machine has none: eight tiles of up
 * to 16 rows of 64 bytes. As the hardware does, it faults on a tile that is not configured and on
 * products of tiles whose sizes do not fit. Source: Intel SDM, TDPBF16PS, LDTILECFG.
 */
#ifndef TESTS_UNIT_TILES_H
#define TESTS_UNIT_TILES_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

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
static float tiles_bf16(const unsigned char *p)
{
    uint32_t bits = (uint32_t)(p[0] | p[1] << 8) << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static void tiles_dp(int c, int a, int b)
{
    assert_int_equal(tiles.rows[c], tiles.rows[a]);
    assert_int_equal(tiles.row_bytes[c], tiles.row_bytes[b]);
    assert_int_equal(tiles.row_bytes[a], tiles.rows[b] * 4);
    for (int m = 0; m < tiles.rows[c]; m++)
        for (int n = 0; n < tiles.row_bytes[c] / 4; n++) {
            float sum;
            memcpy(&sum, tiles.data[c][m] + 4 * n, sizeof sum);
            for (int k = 0; k < tiles.rows[b]; k++)
                for (int half = 0; half < 2; half++)
                    sum = fmaf(tiles_bf16(tiles.data[a][m] + 4 * k + 2 * half),
                               tiles_bf16(tiles.data[b][k] + 4 * n + 2 * half), sum);
            memcpy(tiles.data[c][m] + 4 * n, &sum, sizeof sum);
        }
}

#define TILE_CONFIG(c)           tiles_config(c)
#define TILE_RELEASE()           memset(&tiles, 0, sizeof tiles)
#define TILE_ZERO(t)             memset(tiles.data[t], 0, sizeof tiles.data[t])
#define TILE_LOAD(t, at, bytes)  tiles_load(t, at, bytes)
#define TILE_STORE(t, at, bytes) tiles_store(t, at, bytes)
#define TILE_DP(c, a, b)         tiles_dp(c, a, b)

#endif
