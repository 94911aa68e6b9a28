/* SPDX-License-Identifier: Apache-2.0 */
/*
 * linear and linear_dx of few rows, as in token generation. The time is that of reading the weight,
 * so nothing is packed. Bits equal those of linear.c. A tile is a run of columns; no bit depends on
 * its width.
 */
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"

enum {
    MAX_IN_PLACE = 8, /* ways of L1 */
    LINE_UNITS = 16,
    /* rows for which transposing the product pays off, and max lanes without a row */
    MIN_TURNED = 8,
    MAX_IDLE = 12,
    MAX_ZIPPED = 40, /* max rows of x for a bf16 weight by rows, interleaved on the fly */
    STEP_COLS = 64,  /* whole cache lines */
    MAX_COLS = 4096,
    MAX_TALL_COLS = 512,     /* of a weight by columns */
    NEAR_SUMS = 6144,        /* 24 KiB: they stay in L1 */
    MAX_SUMS = 16384,        /* 64 KiB */
    MAX_COPY_COUNT = 3 << 17 /* units of x where it is copied: 1.5 MiB */
};
_Static_assert((MAX_COPY_COUNT + 2 * MAX_SUMS + MAX_COLS) * 4 <= KU_CPU_SCRATCH_BYTES,
               "x, sums and bias fit the thread's scratch");

static bool has_pairs(const struct ku_kernel *k)
{
    return k->product.dtype == KUMI_BF16 && k->cpu->gemm_bf16 != NULL;
}
static const struct ku_gemm_micro *micro_of(const struct ku_kernel *k)
{
    return has_pairs(k) ? k->cpu->gemm_bf16 : &k->cpu->ops->gemm;
}
/* Units of a row of x, in whole steps of the kernel. */
static int64_t units_of(const struct ku_kernel *k)
{
    const int64_t n_units = has_pairs(k) ? (k->product.k + 1) / 2 : k->product.k;
    return ku_cpu_tiles(n_units, micro_of(k)->step) * micro_of(k)->step;
}
/* Whether the kernel computes columns of a weight by columns as rows, from a turned copy of x. */
static bool has_turned_kernel(const struct ku_kernel *k)
{
    return micro_of(k)->is_thin_turned && k->product.b_col != 1 && k->product.m > 1;
}
/*
 * Whether rows of x are used in place: they are units as stored (f32, or whole pairs) in whole
 * steps of the kernel, and too few to collide in L1. Copies have a stride of an odd number of cache
 * lines.
 */
static bool is_in_place(const struct ku_kernel *k)
{
    return k->product.m <= MAX_IN_PLACE && !has_turned_kernel(k) &&
           (has_pairs(k) ? k->product.k % (2 * micro_of(k)->step) == 0
                         : k->product.dtype == KUMI_F32);
}
static int64_t copy_stride(const struct ku_kernel *k)
{
    return (ku_cpu_tiles(units_of(k), LINE_UNITS) | 1) * LINE_UNITS;
}

bool ku_cpu_is_thin(const struct ku_kernel *k)
{
    const struct ku_cpu_product *p = &k->product;
    const int is_zipped = has_pairs(k) && p->b_col == 1, most = micro_of(k)->thin_rows;
    return micro_of(k)->thin != NULL &&
           p->m <= (is_zipped && most > MAX_ZIPPED ? MAX_ZIPPED : most) &&
           (is_in_place(k) || p->m * copy_stride(k) <= MAX_COPY_COUNT);
}

/* Sets t's rows of x in units: in place, or copied. */
static void place_rows(const struct ku_kernel *k, struct ku_gemm_thin *t, float *copy)
{
    const struct ku_cpu_product *p = &k->product;
    const int pairs = has_pairs(k);
    const int64_t n_units = units_of(k);
    t->n_rows = (int)p->m;
    t->ld_x = is_in_place(k) ? n_units : copy_stride(k);
    t->x = is_in_place(k) ? p->a : copy;
    if (is_in_place(k))
        return;
    for (int64_t r = 0; r < p->m; r++) {
        for (int64_t u = pairs ? p->k / 2 : p->k; u < n_units; u++)
            copy[r * t->ld_x + u] = 0; /* the second half of an odd last pair, and up to the step */
        k->cpu->ops->cast(copy + r * t->ld_x, pairs ? KUMI_BF16 : KUMI_F32,
                          ku_cpu_at(&k->call.in[0], r * p->k), p->dtype, p->k);
    }
}

/* Sets t's rows of x as columns of units. */
static void turn_rows(const struct ku_kernel *k, struct ku_gemm_thin *t, float *copy)
{
    const struct ku_cpu_product *p = &k->product;
    const int64_t n_pairs = (p->k + 1) / 2;
    t->n_rows = (int)p->m;
    t->x = copy;
    t->ld_x = p->m;
    t->ld_sum = ku_cpu_tiles(p->m, LINE_UNITS) * LINE_UNITS;
    k->cpu->ops->pack_cols(copy, p->m, ku_cpu_at(&k->call.in[0], 0), p->dtype, p->k, p->k, p->m, 1);
    memset(copy + n_pairs * p->m, 0, (size_t)((units_of(k) - n_pairs) * p->m) * sizeof *copy);
}

/* Layout of a thread's scratch. */
struct thin_scratch {
    float *sum, *turned, *bias, *x;
};
static struct thin_scratch scratch_of(const struct ku_kernel *k, int thread)
{
    float *at = ku_cpu_scratch(k, thread);
    return (struct thin_scratch){at, at + MAX_SUMS, at + 2 * MAX_SUMS,
                                 at + 2 * MAX_SUMS + MAX_COLS};
}
/* Writes columns [j, j + n) of the result from rows of sums. */
static void finish(const struct ku_kernel *k, int64_t j, int64_t n, const float *sum,
                   int64_t ld_sum, float *bias)
{
    const struct ku_cpu_product *p = &k->product;
    const struct ku_call *c = &k->call;
    if (p->bias)
        k->cpu->ops->cast(bias, KUMI_F32, ku_cpu_at(&c->in[2], j), p->bias_dtype, n);
    const struct ku_finish f = {.out = ku_cpu_at(&c->out[0], j),
                                .raw = c->n_out == 2 ? ku_cpu_at(&c->out[1], j) : NULL,
                                .ld = p->n,
                                .n = n,
                                .bias = p->bias ? bias : NULL,
                                .dtype = c->out[0].dtype,
                                .act = c->op == KU_OP_linear ? (int)k->attr.act : KU_ACT_NONE};
    k->cpu->ops->finish_rows(&f, p->m, sum, ld_sum);
}
static int64_t cols_of(const struct ku_kernel *k, int64_t j)
{
    return k->product.n - j < k->per_tile ? k->product.n - j : k->per_tile;
}

static void tile_thin(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_cpu_product *p = &k->product;
    const struct thin_scratch s = scratch_of(k, thread);
    const int64_t j = tile * k->per_tile, n = cols_of(k, j);
    struct ku_gemm_thin t = {.w = ku_cpu_at(&k->call.in[1], j * p->b_col),
                             .ld_w = p->b_col == 1 ? p->b_row : p->b_col,
                             .dtype = p->dtype,
                             .by_rows = p->b_col == 1,
                             .n_k = p->k,
                             .n_cols = n,
                             .sum = s.sum,
                             .ld_sum = k->per_tile};
    if (has_turned_kernel(k)) {
        turn_rows(k, &t, s.x);
        micro_of(k)->thin(&t);
        const struct ku_finish turn = {
            .out = s.turned, .ld = k->per_tile, .n = p->m, .dtype = KUMI_F32};
        k->cpu->ops->finish_cols(&turn, n, s.sum, t.ld_sum);
    } else {
        place_rows(k, &t, s.x);
        if (micro_of(k)->is_thin_turned && !t.by_rows) /* a row is a column of its elements */
            t.ld_x = t.ld_sum = 1;
        micro_of(k)->thin(&t);
    }
    finish(k, j, n, has_turned_kernel(k) ? s.turned : s.sum, k->per_tile, s.bias);
    ku_pool_poll(k->cpu->pool, thread);
}

/*
 * A weight stored by columns need not be transposed if the rows of x nearly fill vectors. Then the
 * product is transposed: the weight's columns, in place, are the rows of the inner loop, x is
 * packed into its panels, and the sums are transposed at the end. Each element is the same chain.
 */
static const struct ku_gemm_micro *slim_of(const struct ku_kernel *k)
{
    return has_pairs(k) ? k->cpu->slim_bf16 : k->cpu->slim_f32;
}
static bool is_turned(const struct ku_kernel *k)
{
    const struct ku_cpu_product *p = &k->product;
    const int64_t lanes = ku_cpu_tiles(p->m, LINE_UNITS) * LINE_UNITS;
    const int64_t n_units = has_pairs(k) ? p->k / 2 : p->k;
    return p->m >= MIN_TURNED && lanes - p->m <= MAX_IDLE && p->b_col != 1 && slim_of(k) != NULL &&
           (has_pairs(k) ? p->k % 2 == 0 : p->dtype == KUMI_F32) && n_units > 0 &&
           (lanes + LINE_UNITS) * n_units <= MAX_COPY_COUNT;
}
static void tile_turned(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_cpu_product *p = &k->product;
    const struct ku_gemm_micro *wide = micro_of(k), *slim = slim_of(k);
    const struct thin_scratch s = scratch_of(k, thread);
    const int pairs = has_pairs(k);
    const int64_t j = tile * k->per_tile, n = cols_of(k, j), ld = p->b_col;
    const int64_t n_units = pairs ? p->k / 2 : p->k;
    const int64_t ld_sum = ku_cpu_tiles(p->m, LINE_UNITS) * LINE_UNITS;
    const int64_t ld_bytes = ld * (int64_t)kumi_dtype_bytes(p->dtype);
    const int at_once = MAX_IN_PLACE - 1; /* one way of L1 remains for the panel */
    for (int64_t r = 0; r < p->m; r += wide->nr) {
        const int width = p->m - r > slim->nr ? wide->nr : slim->nr;
        k->cpu->ops->pack_cols(s.x + r * n_units, width, ku_cpu_at(&k->call.in[0], r * p->k),
                               p->dtype, p->k, p->k, p->m - r < width ? p->m - r : width, pairs);
    }
    for (int64_t i = 0; i < n; i += at_once) {
        const int rows = (int)(n - i < at_once ? n - i : at_once);
        const void *w = ku_cpu_at(&k->call.in[1], (j + i) * ld);
        const void *next = ku_cpu_at(&k->call.in[1], (j + (i + rows < n ? i + rows : i)) * ld);
        for (int64_t r = 0; r < p->m; r += wide->nr)
            (p->m - r > slim->nr ? wide : slim)
                ->run(rows, n_units, w, pairs ? ld / 2 : ld, 1, s.x + r * n_units,
                      s.sum + i * ld_sum + r, ld_sum, 0, next, ld_bytes);
        ku_pool_poll(k->cpu->pool, thread);
    }
    const struct ku_finish turn = {
        .out = s.turned, .ld = k->per_tile, .n = p->m, .dtype = KUMI_F32};
    k->cpu->ops->finish_cols(&turn, n, s.sum, ld_sum);
    finish(k, j, n, s.turned, k->per_tile, s.bias);
}

/*
 * The same number of tiles for each thread, as wide as the sums allow: long contiguous reads. A
 * weight by columns is contiguous at any width.
 */
void ku_cpu_bind_thin(struct ku_kernel *k)
{
    const int64_t n = k->product.n, n_threads = ku_pool_n_threads(k->cpu->pool);
    const bool by_rows = k->product.b_col == 1;
    const int64_t m = by_rows ? k->product.m : ku_cpu_tiles(k->product.m, LINE_UNITS) * LINE_UNITS;
    const int64_t fit = (is_turned(k) ? MAX_SUMS : NEAR_SUMS) / m / STEP_COLS * STEP_COLS;
    const int64_t cap = by_rows ? MAX_COLS : MAX_TALL_COLS;
    const int64_t most = fit < cap ? fit : cap;
    const int64_t n_tiles = n_threads * ku_cpu_tiles(n, n_threads * most);
    k->per_tile = ku_cpu_tiles(ku_cpu_tiles(n, n_tiles), STEP_COLS) * STEP_COLS;
    ku_cpu_phase(k, is_turned(k) ? tile_turned : tile_thin, ku_cpu_tiles(n, k->per_tile));
}
