/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_CPU_TILING_H
#define KU_DEVICE_CPU_TILING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cpu/caches.h"

/*
 * Shapes of tiles as pure functions of the caches, the op's shape, the kernel and the threads. No
 * bit of a result depends on them: an element is one chain of multiply-adds whatever tile it is in.
 *
 * Sizes that bits or planned bytes do depend on are constants beside their op: slices of
 * reductions and what a weight gradient of a convolution processes at a time (both order a sum),
 * key tiles of attention (a running maximum per tile), KU_CPU_TILE_COUNT (workspace per tile).
 */
enum {
    KU_TILE_COLS = 64, /* two panels of 32, four of 16, eight of 8 */
    KU_TILE_WIDE_COLS = 384,
    KU_TILE_ROWS = 840,   /* max; packing a column costs about 1 % of multiplying 512 rows by it */
    KU_TILE_CHUNK = 1024, /* max units; loading and storing the sums once per chunk costs < 1 % */
    KU_TILE_MIN_ROWS = 64,
    KU_TILE_MIN_CHUNK = 128,
    KU_SLIDE_COPY_UNITS = 112 << 10 /* max of the copied source: 448 KiB */
};

/* A product: out[m, n] over n_units of the contraction, by a kernel of mr rows and `step` units. */
struct ku_product_shape {
    int64_t m, n, n_units;
    int mr, step, n_threads;
    int64_t result_bytes; /* of all results */
};
struct ku_product_tiling {
    int64_t rows, cols;  /* of a tile; rows are a multiple of mr */
    int64_t chunk_units; /* of the contraction at a time: a multiple of KU_TILE_MIN_CHUNK */
    bool keeps_a;        /* the tiles' rows of a stay in L2 from one column tile to the next */
};
struct ku_product_tiling ku_product_tiling(const struct ku_caches *c,
                                           const struct ku_product_shape *s);

/* Results of more bytes leave the caches before their reader: non-temporal stores. */
int64_t ku_stream_bytes(const struct ku_caches *c);

/* A tile of a convolution (conv/slide.c): units of the copied source, of the weights at a time. */
struct ku_slide_tiling {
    int64_t copy_units, chunk_units;
};
struct ku_slide_tiling ku_slide_tiling(const struct ku_caches *c);

#endif
