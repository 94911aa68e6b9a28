/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tile instructions of Intel AMX. Tile numbers are literals. A test that runs the bodies on
 * machines without AMX defines an emulation of all of them beforehand.
 */
#ifndef KU_DEVICE_CPU_GEMM_AMX_TILES_H
#define KU_DEVICE_CPU_GEMM_AMX_TILES_H

#include <stdint.h>

#if !defined(TILE_DP)
#include <immintrin.h>
/*
 * gcc 12 declares only eight of the 64 bytes of a configuration as read, and none of those that a
 * load reads; without the barriers it may drop or delay the stores of the others.
 */
#define TILE_BARRIER(at) __asm__ volatile("" : : "r"(at) : "memory")
#define TILE_CONFIG(c)                                                                             \
    do {                                                                                           \
        TILE_BARRIER(c);                                                                           \
        _tile_loadconfig(c);                                                                       \
    } while (0)
#define TILE_RELEASE() _tile_release()
#define TILE_ZERO(t)   _tile_zero(t)
#define TILE_LOAD(t, at, bytes)                                                                    \
    do {                                                                                           \
        TILE_BARRIER(at);                                                                          \
        _tile_loadd(t, at, bytes);                                                                 \
    } while (0)
#define TILE_STORE(t, at, bytes) _tile_stored(t, at, bytes)
#define TILE_DP(c, a, b)         _tile_dpbf16ps(c, a, b)
#endif

enum { AMX_SIDE = 16 /* rows of a tile, units of a tile row */ };

struct amx_config { /* the operand of ldtilecfg */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct amx_config) == 64, "as ldtilecfg reads it");

/*
 * Tiles 0 .. 3: sums, 4 and 5: left factors, 6 and 7: right factors (amx_body.h). upper, lower:
 * rows of tiles 0, 1, 4 and of 2, 3, 5. A tile without rows is not configured.
 */
static inline void amx_configure(int upper, int lower)
{
    struct amx_config c = {.palette = 1};
    const int rows[8] = {upper, upper, lower, lower, upper, lower, AMX_SIDE, AMX_SIDE};
    for (int t = 0; t < 8; t++) {
        c.rows[t] = (uint8_t)rows[t];
        c.row_bytes[t] = rows[t] ? AMX_SIDE * 4 : 0;
    }
    TILE_CONFIG(&c);
}

#endif
