/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tile of a product keeps in L2, of which a unit or a sum has four bytes:
 *
 *     1/4   panels of b     cols x chunk_units, read once per group of rows
 *     1/4   sums            rows x cols, read and written once per chunk
 *     1/2   the rest        rows of a that stream through, results, what is prefetched
 *
 *     L2          chunk units    rows, kernels of 14, 6 or 4 rows
 *     256 KiB         256            252
 *     512 KiB         512            504
 *     1 MiB          1024            840
 *
 * Larger caches gain nothing: the max values of tiling.h already amortize packing and sums.
 *
 * L1 bounds neither for vectors: a kernel reads nr units of the panel per mr x nr multiply-adds, 9
 * bytes per cycle with 14 x 32, which L2 delivers. A tile has 64 columns.
 *
 * AMX reads 64 bytes per cycle, more than L2 delivers. So chunks have 128 units: 32 rows of a and a
 * panel of 32 columns are 16 KiB each and stay in L1, unless the contraction has at most two chunks
 * anyway. Rows of a that do not stay in L2 come from L3 once per column tile; for those 64 columns
 * are 16 bytes per cycle, more than L3 delivers, so such tiles have 384 columns, whose sums take
 * half of L2. Results that do not stay in L2 are written in longer rows, by tiles of 192 columns.
 * Times against chunks of 1024 and 512 units and tiles of 64 and 128 columns (GPT-2's
 * products, 512 to 2,048 tokens, L1 of 48 KiB, L2 of 2 MiB): 0.77 to 0.95; 384 against 256 columns
 * 0.90 to 1.00, 192 against 64 0.82 to 1.00.
 */
#include "device/cpu/tiling.h"

enum { UNIT_BYTES = 4, TILES_A_THREAD = 4 /* min, in small products, for load balance */ };

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static int64_t clamp(int64_t x, int64_t min, int64_t max)
{
    return x < min ? min : x > max ? max : x;
}

/* Rows of `cols` units or sums in a quarter of L2. */
static int64_t quarter_of(const struct ku_caches *c, int64_t cols)
{
    return c->l2_bytes / 4 / (cols * UNIT_BYTES);
}
static int64_t chunk_of(int64_t units, int64_t cols)
{
    const int64_t most = KU_TILE_CHUNK * KU_TILE_COLS / cols;
    const int64_t chunk = clamp(units, KU_TILE_MIN_CHUNK, most);
    return chunk - chunk % KU_TILE_MIN_CHUNK;
}

/*
 * Rows of a tile: equal parts of m, in steps that are a multiple of mr (84 for mr = 14, 6 and 4; 96
 * for 32). Fewer rows if there would be too few tiles for the threads.
 */
static int64_t tile_rows(int64_t max_rows, const struct ku_product_shape *s, int64_t cols)
{
    const int wanted = s->n_threads > 1 ? TILES_A_THREAD * s->n_threads : 1;
    const int64_t step = 84 % s->mr ? 3 * s->mr : 84, n_col_tiles = ceil_div(s->n, cols);
    const int64_t most = max_rows > step ? max_rows - max_rows % step : step;
    int64_t parts = ceil_div(s->m, most);
    while (parts * n_col_tiles < wanted && s->m / (parts + 1) >= KU_TILE_MIN_ROWS)
        parts++;
    const int64_t rows = ceil_div(ceil_div(s->m, parts ? parts : 1), step) * step;
    return rows > 0 ? rows : step;
}

/* Rows of a that are read again before the next column tile (the order of tiles: linear.c). */
static bool does_keep_a(const struct ku_caches *c, const struct ku_product_shape *s, int64_t rows)
{
    const int64_t cycle = s->m > s->n && rows < s->m ? rows : s->m;
    return cycle * s->n_units * UNIT_BYTES <= c->l2_bytes / 2;
}

struct ku_product_tiling ku_product_tiling(const struct ku_caches *c,
                                           const struct ku_product_shape *s)
{
    struct ku_product_tiling t = {.cols = KU_TILE_COLS};
    int64_t units = quarter_of(c, t.cols);
    t.rows = tile_rows(clamp(units, KU_TILE_MIN_ROWS, KU_TILE_ROWS), s, t.cols);
    t.keeps_a = does_keep_a(c, s, t.rows);
    const bool is_large = s->result_bytes > 2 * c->l2_bytes;
    if ((!t.keeps_a || is_large) && s->step > 1 && units >= KU_TILE_CHUNK) {
        t.cols = t.keeps_a ? KU_TILE_WIDE_COLS / 2 : KU_TILE_WIDE_COLS;
        units = 2 * quarter_of(c, t.cols);
        t.rows = tile_rows(clamp(units, KU_TILE_MIN_ROWS, KU_TILE_ROWS), s, t.cols);
    }
    const bool is_short =
        s->step > 1 && (!t.keeps_a || is_large || s->n_units > 2 * KU_TILE_MIN_CHUNK);
    t.chunk_units = is_short ? KU_TILE_MIN_CHUNK : chunk_of(units, t.cols);
    return t;
}

/*
 * Half of the last-level cache; the other half holds what else is live. At most 16 MiB: a virtual
 * machine shows the host's whole cache, of which its guests have a part each.
 */
int64_t ku_stream_bytes(const struct ku_caches *c)
{
    const int64_t last = c->l3_bytes ? c->l3_bytes : c->l2_bytes;
    return clamp(last / 2, c->l2_bytes / 2, 16 << 20);
}

/*
 * The copy is read once per 64 columns and per chunk of the weights, whose panels take a quarter of
 * L2.
 */
struct ku_slide_tiling ku_slide_tiling(const struct ku_caches *c)
{
    return (struct ku_slide_tiling){
        .copy_units = clamp(c->l2_bytes / 2 / UNIT_BYTES, 8 << 10, KU_SLIDE_COPY_UNITS),
        .chunk_units = chunk_of(quarter_of(c, KU_TILE_COLS), KU_TILE_COLS)};
}
