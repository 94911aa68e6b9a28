/* SPDX-License-Identifier: Apache-2.0 */
/*
 * linear of a few rows: what generates a token. Bound by reading the weight, it packs nothing; the
 * bits are those of the product in tiles (linear.c). Tiles are runs of columns, whose width no bit
 * depends on.
 */
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"

enum {
    STEP_COLS = 64,          /* whole lines */
    MAX_COLS = 512,          /* of 8 rows: 16 KiB of sums */
    MAX_COPY_COUNT = 1 << 15 /* units of a row of x that is copied; 8 of them: 1 MiB */
};
_Static_assert((KU_THIN_ROWS * (MAX_COPY_COUNT + MAX_COLS) + MAX_COLS) * 4 <= KU_CPU_SCRATCH_BYTES,
               "x, sums and bias fit the thread's scratch");

static int has_pairs(const struct ku_kernel *k)
{
    return k->product.dtype == KUMI_BF16 && k->cpu->gemm_bf16 != NULL;
}
static const struct ku_gemm_micro *micro_of(const struct ku_kernel *k)
{
    return has_pairs(k) ? k->cpu->gemm_bf16 : &k->cpu->ops->gemm;
}
/* Rows of x are units where they lie: f32, or whole pairs. */
static int is_in_place(const struct ku_kernel *k)
{
    return has_pairs(k) ? k->product.k % 2 == 0 : k->product.dtype == KUMI_F32;
}

int ku_cpu_is_thin(const struct ku_kernel *k)
{
    return k->product.m <= KU_THIN_ROWS && micro_of(k)->thin != NULL &&
           (is_in_place(k) || k->product.k < MAX_COPY_COUNT);
}

/* x in units. */
static void place_rows(const struct ku_kernel *k, struct ku_gemm_thin *t, float *copy)
{
    const struct ku_cpu_product *p = &k->product;
    const int pairs = has_pairs(k);
    const int64_t n_units = pairs ? (p->k + 1) / 2 : p->k;
    t->n_rows = (int)p->m;
    t->ld_x = n_units;
    t->x = p->a;
    if (is_in_place(k))
        return;
    t->x = copy;
    for (int64_t r = 0; r < p->m; r++) {
        if (n_units)
            copy[(r + 1) * n_units - 1] = 0; /* the second half of an odd last pair */
        k->cpu->ops->cast(copy + r * n_units, pairs ? KUMI_BF16 : KUMI_F32,
                          ku_cpu_at(&k->call.in[0], r * p->k), p->dtype, p->k);
    }
}

static void tile_thin(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_cpu_product *p = &k->product;
    const struct ku_call *c = &k->call;
    const int64_t j = tile * k->per_tile, n = p->n - j < k->per_tile ? p->n - j : k->per_tile;
    float *sum = ku_cpu_scratch(k, thread), *bias = sum + (int64_t)KU_THIN_ROWS * MAX_COLS;
    struct ku_gemm_thin t = {.w = ku_cpu_at(&c->in[1], j * p->b_col),
                             .ld_w = p->b_col == 1 ? p->b_row : p->b_col,
                             .dtype = p->dtype,
                             .by_rows = p->b_col == 1,
                             .n_k = p->k,
                             .n_cols = n,
                             .sum = sum,
                             .ld_sum = MAX_COLS};
    place_rows(k, &t, bias + MAX_COLS);
    if (p->bias)
        k->cpu->ops->cast(bias, KUMI_F32, ku_cpu_at(&c->in[2], j), p->bias_dtype, n);
    micro_of(k)->thin(&t);
    const struct ku_finish f = {.out = ku_cpu_at(&c->out[0], j),
                                .raw = c->n_out == 2 ? ku_cpu_at(&c->out[1], j) : NULL,
                                .ld = p->n,
                                .n = n,
                                .bias = p->bias ? bias : NULL,
                                .dtype = c->out[0].dtype,
                                .act = (int)k->attr.act};
    k->cpu->ops->finish_rows(&f, p->m, sum, MAX_COLS);
    ku_pool_poll(k->cpu->pool, thread);
}

/* The same number of tiles for each thread, as wide as sums allow: long runs of memory. */
void ku_cpu_bind_thin(struct ku_kernel *k)
{
    const int64_t n = k->product.n, n_threads = ku_pool_n_threads(k->cpu->pool);
    const int64_t n_tiles = n_threads * ku_cpu_tiles(n, n_threads * MAX_COLS);
    k->per_tile = ku_cpu_tiles(ku_cpu_tiles(n, n_tiles), STEP_COLS) * STEP_COLS;
    ku_cpu_phase(k, tile_thin, ku_cpu_tiles(n, k->per_tile));
}
