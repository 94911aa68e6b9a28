/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products: linear, linear_dx, linear_dw (few rows: linear_thin.c).
 *
 *     out[m, n]   tiles of up to 840 x 64 to 384 (tiling.h); for each chunk of the contraction:
 *     b           columns of the tile -> panels [n_units][nr], packed once per chunk, stay in L2
 *     a           group of mr rows x panel -> mr x nr sums in registers -> f32 sums of the tile
 *
 * After the last chunk bias, activation and rounding run while the rows are in L1. During the
 * product the tile prefetches what it packs next, and with vectors the lines of its results (with
 * AMX that made products up to 13 % slower). Results too large for the last cache are written with
 * non-temporal stores.
 *
 * Rows of a are read in place, with three exceptions: dtypes that need widening (copied group by
 * group), strides that collide in L1 (copied once to the workspace with a padded stride), and
 * weight gradients, whose a is stored by columns (packed once to the workspace). Kernels with a
 * step above 1 (AMX) get zeros up to the next step.
 *
 * Each element is one chain of multiply-adds over the contraction in ascending order, independent
 * of tiles and threads. With attr slices it is one chain per slice; sums of two neighbours are
 * added as soon as both are complete, so a tile has at most log2(slices) + 1 of them
 * (op/slices.h). One core of an EPYC Genoa: 115 of 118 GFLOP/s in f32 inside a tile, 232 of 236 in
 * bf16.
 */
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"

enum {
    MAX_MR = 32,
    MAX_STEP = 16,
    BIAS_COLS = 1 << 16, /* of a bias, and of a row of sums, at once in f32 */
    LINE_BYTES = 64,
    COPY_PAD_UNITS = 16, /* rows of the copy start a cache line apart, modulo the cache's size */
    /* units of panels, and sums, of the largest tile that the tiling may choose */
    MAX_PANELS = KU_TILE_COLS * KU_TILE_CHUNK,
    MAX_SUMS = KU_TILE_ROWS * KU_TILE_WIDE_COLS
};
_Static_assert(2 * BIAS_COLS * 4 <= KU_CPU_SCRATCH_BYTES, "bias and row fit the scratch");
_Static_assert(
    (MAX_PANELS + MAX_SUMS + KU_TILE_WIDE_COLS + MAX_MR * (KU_TILE_CHUNK + COPY_PAD_UNITS)) * 4 <=
        KU_CPU_SCRATCH_BYTES,
    "the tile's parts fit the thread's scratch");

/*
 * Zeroes the units after the n_k packed elements, up to the kernel's step; each unit row is `width`
 * wide.
 */
static void pad_units(const struct ku_kernel *k, float *panel, int64_t width, int64_t n_k)
{
    int64_t packed = ku_cpu_has_pairs(k) ? (n_k + 1) / 2 : n_k, n = ku_cpu_units(k, n_k);
    memset(panel + packed * width, 0, (size_t)((n - packed) * width) * sizeof *panel);
}
static const void *offset(const struct ku_cpu_product *p, const void *x, int64_t i)
{
    return (const char *)x + i * (int64_t)kumi_dtype_bytes(p->dtype);
}

/*
 * Packs an a that is stored by columns into groups of mr rows. A tile of the phase is PACK_GROUPS
 * groups.
 */
enum { PACK_GROUPS = 8, PACK_K = 128 };
static void tile_pack_a(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_cpu_product *p = &k->product;
    const struct ku_gemm_micro *micro = ku_cpu_micro(k);
    const int pairs = ku_cpu_has_pairs(k), mr = micro->mr;
    int64_t i0 = tile * PACK_GROUPS * mr;
    (void)thread;
    for (int64_t k0 = 0; k0 < p->k; k0 += PACK_K) {
        int64_t n_k = p->k - k0 < PACK_K ? p->k - k0 : PACK_K;
        for (int64_t i = i0; i < i0 + PACK_GROUPS * mr && i < p->m; i += mr) {
            float *panel = (float *)k->call.workspace + i * p->n_units + k0 / (pairs ? 2 : 1) * mr;
            k->cpu->ops->pack_rows(panel, mr, offset(p, p->a, k0 * p->a_col + i), p->dtype,
                                   p->a_col, n_k, p->m - i < mr ? p->m - i : mr, pairs);
            pad_units(k, panel, mr, n_k);
            if (micro->regroup)
                micro->regroup(panel, ku_cpu_units(k, n_k));
        }
    }
}

/*
 * Rows of a whose stride is a multiple of 4 KiB map to the same set of L1, which has fewer ways
 * than a group has rows. They are copied once, with a stride one cache line longer.
 */
enum { COPY_ROWS = 32 };
static bool has_colliding_rows(int64_t k, enum kumi_dtype dtype)
{
    return k * (int64_t)kumi_dtype_bytes(dtype) % 4096 == 0;
}
static int64_t spread_row(int64_t k, enum kumi_dtype dtype)
{
    return k + LINE_BYTES / (int64_t)kumi_dtype_bytes(dtype);
}
static void tile_spread_a(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_cpu_product *p = &k->product;
    (void)thread;
    for (int64_t i = tile * COPY_ROWS; i < (tile + 1) * COPY_ROWS && i < p->m; i++)
        k->cpu->ops->cast((char *)k->call.workspace +
                              i * p->a_row * (int64_t)kumi_dtype_bytes(p->dtype),
                          p->dtype, ku_cpu_at(&k->call.in[0], i * p->k), p->dtype, p->k);
}

/* Position and buffers of one tile. */
struct tile {
    int64_t row, n_rows, col, n_cols, k0, n_k;
    int64_t slice, end;                /* of the contraction; end of the run that k0 is in */
    bool goes_on, is_last;             /* adds to sums; these are then complete */
    float *panels, *sum, *copy, *bias; /* copy: rows of a of one group; bias: in f32 */
};

static int64_t sum_ld(const struct ku_kernel *k)
{
    return k->product.tiling.cols;
}

static void pack_b(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_cpu_product *p = &k->product;
    const struct ku_isa_ops *ops = k->cpu->ops;
    const int pairs = ku_cpu_has_pairs(k), nr = ku_cpu_micro(k)->nr;
    int64_t n_units = ku_cpu_units(k, t->n_k);
    for (int64_t j = 0; j < t->n_cols; j += nr) {
        const void *b = offset(p, p->b, t->k0 * p->b_row + (t->col + j) * p->b_col);
        int64_t n = t->n_cols - j < nr ? t->n_cols - j : nr;
        if (p->b_col == 1)
            ops->pack_rows(t->panels + j * n_units, nr, b, p->dtype, p->b_row, t->n_k, n, pairs);
        else
            ops->pack_cols(t->panels + j * n_units, nr, b, p->dtype, p->b_col, t->n_k, n, pairs);
        pad_units(k, t->panels + j * n_units, nr, t->n_k);
    }
}

/* Address and strides of a group of rows for the micro kernel. */
struct place {
    const void *at;
    int64_t rs, cs;
};
static const void *a_address(const struct ku_kernel *k, const struct tile *t, int64_t i)
{
    const struct ku_cpu_product *p = &k->product;
    const int mr = ku_cpu_micro(k)->mr;
    if (p->a_col != 1)
        return (const float *)k->call.workspace + i / mr * mr * p->n_units +
               t->k0 / (ku_cpu_has_pairs(k) ? 2 : 1) * mr;
    return offset(p, p->a, i * p->a_row + t->k0);
}
static struct place place_a(const struct ku_kernel *k, const struct tile *t, int64_t i,
                            int64_t rows)
{
    const struct ku_cpu_product *p = &k->product;
    const int pairs = ku_cpu_has_pairs(k), step = ku_cpu_micro(k)->step;
    const int64_t per_unit = pairs ? 2 : 1;
    const void *at = a_address(k, t, i);
    if (p->a_col != 1)
        return (struct place){at, step, ku_cpu_micro(k)->mr};
    if ((pairs || p->dtype == KUMI_F32) && p->a_row % per_unit == 0 &&
        t->n_k % (per_unit * step) == 0)
        return (struct place){at, p->a_row / per_unit, 1};
    int64_t n_units = ku_cpu_units(k, t->n_k), stride = n_units + COPY_PAD_UNITS;
    for (int64_t r = 0; r < rows; r++) {
        float *to = t->copy + r * stride;
        for (int64_t u = t->n_k / per_unit; u < n_units; u++)
            to[u] = 0; /* the second half of an odd last pair, and up to the kernel's step */
        k->cpu->ops->cast(to, pairs ? KUMI_BF16 : KUMI_F32, offset(p, at, r * p->a_row), p->dtype,
                          t->n_k);
    }
    return (struct place){t->copy, stride, 1};
}

/*
 * Whether results are written with non-temporal stores: f32 weight gradients, and logits larger
 * than the cache.
 */
static bool is_streamed(const struct ku_kernel *k)
{
    const struct ku_view *out = &k->call.out[0];
    if (k->call.accumulate)
        return 0;
    if (k->call.op == KU_OP_linear_dw || k->call.op == KU_OP_conv2d_dw)
        return out->dtype == KUMI_F32;
    return k->call.op == KU_OP_linear && k->call.n_in == 2 && k->call.n_out == 1 &&
           k->attr.act == KU_ACT_NONE &&
           ku_shape_count(&out->shape) * (int64_t)kumi_dtype_bytes(out->dtype) >
               ku_stream_bytes(&k->cpu->caches);
}
/* Destination and epilogue of the group of rows at i: bias, activation, rounding, accumulation. */
static struct ku_finish finish_of(const struct ku_kernel *k, const struct tile *t, int64_t i)
{
    const struct ku_cpu_product *p = &k->product;
    const struct ku_call *c = &k->call;
    const int64_t at = i * p->n + t->col;
    const int is_linear = c->op == KU_OP_linear;
    return (struct ku_finish){.out = ku_cpu_at(&c->out[0], at),
                              .raw = is_linear && c->n_out == 2 ? ku_cpu_at(&c->out[1], at) : NULL,
                              .ld = p->n,
                              .n = t->n_cols,
                              .bias = p->bias ? t->bias : NULL,
                              .dtype = c->out[0].dtype,
                              .act = is_linear ? (int)k->attr.act : KU_ACT_NONE,
                              .accumulate = c->accumulate,
                              .stream = is_streamed(k)};
}
/* Prefetches the lines that a group's results in columns [col, col + cols) are written to. */
static void fetch_results(const struct ku_finish *f, int64_t rows, int64_t col, int64_t cols)
{
    const int64_t bytes = (int64_t)kumi_dtype_bytes(f->dtype),
                  n = f->n - col < cols ? f->n - col : cols;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t at = (r * f->ld + col) * bytes, end = at + n * bytes; at < end;
             at += LINE_BYTES) {
            __builtin_prefetch((char *)f->out + at, 1);
            if (f->raw)
                __builtin_prefetch((char *)f->raw + at, 1);
        }
}

/* Writes a finished tile of out[n, m]: its columns become rows. */
static void finish_transposed(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_cpu_product *p = &k->product;
    struct ku_finish f = {.out = ku_cpu_at(&k->call.out[0], t->col * p->m + t->row),
                          .ld = p->m,
                          .n = t->n_cols,
                          .dtype = k->call.out[0].dtype,
                          .accumulate = k->call.accumulate,
                          .stream = is_streamed(k)};
    k->cpu->ops->finish_cols(&f, t->n_rows, t->sum, sum_ld(k));
}

/*
 * The operand that the tile packs next: rows of b, row_bytes long, `stride` bytes apart, prefetched
 * in order.
 */
struct ahead {
    const char *row;
    int64_t n_rows, row_bytes, stride, at;
};
static struct ahead look_ahead(const struct ku_kernel *k, const struct tile *t)
{
    const struct ku_cpu_product *p = &k->product;
    const int64_t bytes = (int64_t)kumi_dtype_bytes(p->dtype);
    const int by_rows = p->b_col == 1;
    return (struct ahead){.row = offset(p, p->b, t->k0 * p->b_row + t->col * p->b_col),
                          .n_rows = by_rows ? t->n_k : t->n_cols,
                          .row_bytes = (by_rows ? t->n_cols : t->n_k) * bytes,
                          .stride = (by_rows ? p->b_row : p->b_col) * bytes};
}
static int64_t lines_of(const struct ahead *a)
{
    return a->n_rows * ((a->row_bytes + LINE_BYTES - 1) / LINE_BYTES);
}
static void fetch_ahead(struct ahead *a, int64_t n_lines)
{
    for (; n_lines > 0 && a->n_rows > 0; n_lines--) {
        __builtin_prefetch(a->row + a->at, 0, 2);
        a->at += LINE_BYTES;
        if (a->at >= a->row_bytes)
            a->row += a->stride, a->at = 0, a->n_rows--;
    }
}

static void run_chunk(const struct ku_kernel *k, const struct tile *t, struct ahead *ahead,
                      int thread)
{
    const struct ku_cpu_product *p = &k->product;
    const struct ku_gemm_micro *micro = ku_cpu_micro(k);
    const int64_t n_units = ku_cpu_units(k, t->n_k), ld = sum_ld(k);
    const int64_t a_bytes = p->a_row * (int64_t)kumi_dtype_bytes(p->dtype);
    const int64_t n_calls = ku_cpu_tiles(t->n_rows, micro->mr) * ku_cpu_tiles(t->n_cols, micro->nr);
    const int64_t n_lines = lines_of(ahead) / n_calls + 1;
    const int last = t->is_last && !p->is_transposed, whole = last && !t->goes_on;
    const int is_fetched = micro->step == 1 && !is_streamed(k);
    for (int64_t i = 0; i < t->n_rows; i += micro->mr) {
        int rows = (int)(t->n_rows - i < micro->mr ? t->n_rows - i : micro->mr);
        struct place a = place_a(k, t, t->row + i, rows);
        struct ku_finish to = finish_of(k, t, t->row + i);
        float *sum = whole ? t->sum : t->sum + i * ld; /* whole: sums stay in L1 */
        const char *next = i + rows < t->n_rows ? a_address(k, t, t->row + i + rows) : a.at;
        if (p->tiling.keeps_a)
            next = NULL;
        int64_t next_bytes = p->a_col == 1 ? a_bytes : n_units * 4;
        for (int64_t j = 0; j < t->n_cols; j += micro->nr) {
            fetch_ahead(ahead, n_lines);
            if (last && is_fetched)
                fetch_results(&to, rows, j, micro->nr);
            micro->run(rows, n_units, a.at, a.rs, a.cs, t->panels + j * n_units, sum + j, ld,
                       t->goes_on, j == 0 ? next : NULL, next_bytes);
        }
        if (last)
            k->cpu->ops->finish_rows(&to, rows, sum, ld);
        ku_pool_poll(k->cpu->pool, thread);
    }
}

/* Consecutive tiles share a part of the larger operand, which then comes from memory once. */
static void tile_place(const struct ku_cpu_product *p, int64_t tile, struct tile *t)
{
    const int64_t rows = p->tiling.rows, cols = p->tiling.cols;
    const int64_t n_col_tiles = ku_cpu_tiles(p->n, cols);
    t->row = (p->m > p->n ? tile / n_col_tiles : tile % p->n_row_tiles) * rows;
    t->col = (p->m > p->n ? tile % n_col_tiles : tile / p->n_row_tiles) * cols;
    t->n_rows = p->m - t->row < rows ? p->m - t->row : rows;
    t->n_cols = p->n - t->col < cols ? p->n - t->col : cols;
}
/* Enters the run at k0, or its next chunk. */
static void tile_chunk(const struct ku_kernel *k, int64_t k0, int64_t end, struct tile *t)
{
    const int64_t chunk = k->product.tiling.chunk_units * (ku_cpu_has_pairs(k) ? 2 : 1);
    t->k0 = k0, t->end = end;
    t->n_k = end - k0 < chunk ? end - k0 : chunk;
    t->is_last = k->product.slices.n == 0 && k0 + t->n_k == end;
}
static void first_chunk(const struct ku_kernel *k, struct tile *t)
{
    t->slice = 0;
    t->goes_on = false;
    tile_chunk(k, 0, k->product.slices.n ? k->product.slices.run : k->product.k, t);
}
/* The next chunk of the run, of the slice, of the contraction; false: it was the last one. */
static bool next_chunk(const struct ku_kernel *k, struct tile *t)
{
    const struct ku_slices *s = &k->product.slices;
    const int64_t k0 = t->k0 + t->n_k;
    t->goes_on = true;
    if (k0 < t->end || s->n == 0) {
        tile_chunk(k, k0, t->end, t);
        return t->n_k > 0;
    }
    int64_t run = t->k0 / s->run + s->n; /* of the same slice */
    if (run >= s->outer * s->n)
        run = ++t->slice, t->goes_on = false;
    tile_chunk(k, run * s->run, (run + 1) * s->run, t);
    return t->slice < s->n;
}

/* The sums of t's slice are complete: adds sums of neighbours, and leaves room for the next. */
static void fold_slice(const struct ku_kernel *k, struct tile *t)
{
    const int64_t ld = sum_ld(k), each = k->product.tiling.rows * ld;
    for (int n = ku_slices_folds(k->product.slices.n, t->slice); n > 0; n--) {
        t->sum -= each;
        for (int64_t i = 0; i < t->n_rows; i++)
            for (int64_t j = 0; j < t->n_cols; j++)
                t->sum[i * ld + j] += t->sum[each + i * ld + j];
    }
    t->sum += each;
}
static void finish_slices(const struct ku_kernel *k, const struct tile *t, const float *sum)
{
    for (int64_t i = 0; i < t->n_rows; i += MAX_MR) {
        const struct ku_finish to = finish_of(k, t, t->row + i);
        k->cpu->ops->finish_rows(&to, t->n_rows - i < MAX_MR ? t->n_rows - i : MAX_MR,
                                 sum + i * sum_ld(k), sum_ld(k));
    }
}

/* What the thread packs after t: its next chunk, or the first one of its next tile. */
static struct ahead chunk_ahead(const struct ku_kernel *k, const struct tile *t, int64_t tile)
{
    const struct ku_cpu_product *p = &k->product;
    const int64_t after = tile + ku_pool_n_threads(k->cpu->pool); /* likely this thread's next */
    struct tile next = *t;
    if (next_chunk(k, &next))
        return look_ahead(k, &next);
    if (after >= k->phase[k->n_phases - 1].n_tiles)
        return (struct ahead){0};
    tile_place(p, after, &next);
    first_chunk(k, &next);
    return next.col != t->col || p->k > next.n_k ? look_ahead(k, &next) : (struct ahead){0};
}

static void tile_product(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_cpu_product *p = &k->product;
    struct tile t;
    bool goes_on;
    tile_place(p, tile, &t);
    t.panels = ku_cpu_scratch(k, thread);
    float *const sums = t.sum = t.panels + MAX_PANELS;
    t.copy = t.sum + MAX_SUMS;
    t.bias = t.copy + MAX_MR * (KU_TILE_CHUNK + COPY_PAD_UNITS);
    if (p->bias)
        k->cpu->ops->cast(t.bias, KUMI_F32,
                          (const char *)p->bias + t.col * (int64_t)kumi_dtype_bytes(p->bias_dtype),
                          p->bias_dtype, t.n_cols);
    first_chunk(k, &t);
    do {
        struct ahead ahead = chunk_ahead(k, &t, tile);
        struct tile done = t;
        pack_b(k, &t);
        run_chunk(k, &t, &ahead, thread);
        goes_on = next_chunk(k, &t);
        if (p->slices.n && !t.goes_on) {
            fold_slice(k, &done);
            t.sum = done.sum;
        }
    } while (goes_on);
    if (p->slices.n)
        finish_slices(k, &t, sums);
    if (p->is_transposed)
        finish_transposed(k, &t);
    if (is_streamed(k))
        ku_cpu_fence();
}

static void choose_tiling(struct ku_kernel *k)
{
    struct ku_cpu_product *p = &k->product;
    const struct ku_gemm_micro *micro = ku_cpu_micro(k);
    const struct ku_product_shape s = {.m = p->m,
                                       .n = p->n,
                                       .n_units = p->n_units,
                                       .mr = micro->mr,
                                       .step = micro->step,
                                       .n_threads = ku_pool_n_threads(k->cpu->pool),
                                       .result_bytes =
                                           p->m * p->n * k->call.n_out *
                                           (int64_t)kumi_dtype_bytes(k->call.out[0].dtype)};
    p->tiling = ku_product_tiling(&k->cpu->caches, &s);
    int64_t n_sums = 1; /* of the tile at once */
    for (int64_t n = p->slices.n; n > 1; n /= 2)
        n_sums++;
    const int64_t most = MAX_SUMS / n_sums / p->tiling.cols;
    if (p->tiling.rows > most)
        p->tiling.rows = most / micro->mr * micro->mr;
    KU_ASSERT(p->tiling.cols * p->tiling.chunk_units <= MAX_PANELS &&
              p->tiling.cols * p->tiling.rows <= MAX_SUMS &&
              p->tiling.chunk_units <= KU_TILE_CHUNK);
    p->n_row_tiles = ku_cpu_tiles(p->m, p->tiling.rows);
}

int ku_cpu_bind_product(struct ku_kernel *k)
{
    struct ku_cpu_product *p = &k->product;
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "second operand", &k->call.in[1], k->call.in[0].dtype));
    if (k->call.op == KU_OP_linear || k->call.op == KU_OP_linear_dx)
        KU_TRY(ku_slices_of(k->call.op, &k->attr, &k->call.in[1].shape, &p->slices));
    p->dtype = k->call.in[0].dtype;
    p->n_units = ku_cpu_units(k, p->k);
    choose_tiling(k);
    if (p->m == 0 || p->n == 0)
        return KUMI_OK;
    if ((k->call.op == KU_OP_linear || k->call.op == KU_OP_linear_dx) && p->slices.n == 0 &&
        ku_cpu_is_thin(k)) {
        p->tiling = (struct ku_product_tiling){0}; /* a tile is a run of columns */
        ku_cpu_bind_thin(k);
        return KUMI_OK;
    }
    /* One row collides with none; as the gradient of a weight it is of in[1]. */
    if (p->a_col == 1 && p->m > 1 && has_colliding_rows(p->k, p->dtype) &&
        (p->dtype == KUMI_F32 || ku_cpu_has_pairs(k))) {
        KU_ASSERT(p->a == k->call.in[0].data);
        p->a = k->call.workspace, p->a_row = spread_row(p->k, p->dtype);
        ku_cpu_phase(k, tile_spread_a, ku_cpu_tiles(p->m, COPY_ROWS));
    }
    if (p->a_col != 1)
        ku_cpu_phase(k, tile_pack_a,
                     ku_cpu_tiles(p->m, (int64_t)PACK_GROUPS * ku_cpu_micro(k)->mr));
    ku_cpu_phase(k, tile_product, p->n_row_tiles * ku_cpu_tiles(p->n, p->tiling.cols));
    return KUMI_OK;
}

int ku_cpu_bind_linear(struct ku_kernel *k)
{
    const struct ku_view *x = &k->call.in[0], *w = &k->call.in[1];
    int contract = (int)k->attr.contract, lead = x->shape.ndim - contract;
    struct ku_cpu_product *p = &k->product;
    p->m = ku_cpu_extent(&x->shape, 0, lead);
    p->k = ku_cpu_extent(&x->shape, lead, x->shape.ndim);
    p->n = ku_cpu_extent(&k->call.out[0].shape, lead, k->call.out[0].shape.ndim);
    p->a = x->data, p->a_row = p->k, p->a_col = 1;
    p->b = w->data;
    p->b_row = k->attr.trans ? 1 : p->n, p->b_col = k->attr.trans ? p->k : 1;
    if (k->call.n_in == 3) {
        KU_TRY(ku_cpu_check_float(k, "bias", &k->call.in[2]));
        p->bias = k->call.in[2].data, p->bias_dtype = k->call.in[2].dtype;
    }
    if (k->call.n_out == 2)
        KU_TRY(ku_cpu_check(k, "second result", &k->call.out[1], k->call.out[0].dtype));
    return ku_cpu_bind_product(k);
}

/* The epilogue of linear alone. Columns come in parts: bias and, of a narrow sum, a row in f32. */
static void tile_bias_add(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0], *y = &k->call.out[0];
    float *bias = ku_cpu_scratch(k, thread), *row = bias + BIAS_COLS;
    int64_t from, n_rows;
    ku_cpu_range(k, tile, &from, &n_rows);
    for (int64_t at = 0; at < k->width; at += BIAS_COLS) {
        struct ku_finish f = {.out = ku_cpu_at(y, from * k->width + at),
                              .ld = k->width,
                              .n = k->width - at < BIAS_COLS ? k->width - at : BIAS_COLS,
                              .dtype = y->dtype};
        if (k->call.n_in == 2) {
            const struct ku_view *b = &k->call.in[1];
            k->cpu->ops->cast(bias, KUMI_F32, ku_cpu_at(b, at), b->dtype, f.n);
            f.bias = bias;
        }
        if (x->dtype == KUMI_F32)
            k->cpu->ops->finish_rows(&f, n_rows, ku_cpu_at(x, from * k->width + at), k->width);
        for (int64_t r = from; r < from + n_rows && x->dtype != KUMI_F32; r++) {
            k->cpu->ops->cast(row, KUMI_F32, ku_cpu_at(x, r * k->width + at), x->dtype, f.n);
            f.out = ku_cpu_at(y, r * k->width + at);
            k->cpu->ops->finish_rows(&f, 1, row, k->width);
        }
    }
}

int ku_cpu_bind_bias_add(struct ku_kernel *k)
{
    const struct ku_shape *s = &k->call.in[0].shape;
    const int lead = s->ndim - (int)k->attr.outs;
    KU_TRY(ku_cpu_check_all(k));
    k->count = ku_cpu_extent(s, 0, lead);
    k->width = ku_cpu_extent(s, lead, s->ndim);
    k->per_tile = k->width && k->width < KU_CPU_TILE_COUNT ? KU_CPU_TILE_COUNT / k->width : 1;
    if (k->width)
        ku_cpu_phase(k, tile_bias_add, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

int ku_cpu_bind_linear_dx(struct ku_kernel *k)
{
    const struct ku_view *dy = &k->call.in[0], *w = &k->call.in[1];
    int outs = (int)k->attr.outs, lead = dy->shape.ndim - outs;
    struct ku_cpu_product *p = &k->product;
    p->m = ku_cpu_extent(&dy->shape, 0, lead);
    p->k = ku_cpu_extent(&dy->shape, lead, dy->shape.ndim);
    p->n = ku_cpu_extent(&k->call.out[0].shape, lead, k->call.out[0].shape.ndim);
    p->a = dy->data, p->a_row = p->k, p->a_col = 1;
    p->b = w->data;
    p->b_row = k->attr.trans ? p->n : 1, p->b_col = k->attr.trans ? 1 : p->k;
    return ku_cpu_bind_product(k);
}

int ku_cpu_bind_linear_dw(struct ku_kernel *k)
{
    const struct ku_view *x = &k->call.in[0], *dy = &k->call.in[1];
    int lead = x->shape.ndim - (int)k->attr.contract;
    struct ku_cpu_product *p = &k->product;
    int64_t n_x = ku_cpu_extent(&x->shape, lead, x->shape.ndim);
    int64_t n_y = ku_cpu_extent(&dy->shape, lead, dy->shape.ndim);
    const int is_y_first = n_y < n_x; /* the shorter operand is packed whole, as a */
    p->k = ku_cpu_extent(&x->shape, 0, lead);
    p->m = is_y_first ? n_y : n_x, p->n = is_y_first ? n_x : n_y;
    p->a = is_y_first ? dy->data : x->data, p->b = is_y_first ? x->data : dy->data;
    p->is_transposed = is_y_first != (k->attr.trans != 0);
    p->a_row = 1, p->a_col = p->m;
    p->b_row = p->n, p->b_col = 1;
    return ku_cpu_bind_product(k);
}

/*
 * linear_dw: the packed a, as f32 units, with room for one more group and step. Others: rows with
 * the padded stride.
 */
size_t ku_cpu_workspace_product(const struct ku_op_case *c)
{
    const struct ku_type *x = &c->in[0], *dy = &c->in[1];
    const int n_last = c->op == KU_OP_linear_dx ? (int)c->attr->outs : (int)c->attr->contract;
    const int lead = x->shape.ndim - n_last;
    int64_t tokens = ku_cpu_extent(&x->shape, 0, lead);
    int64_t n_x = ku_cpu_extent(&x->shape, lead, x->shape.ndim);
    if (c->op != KU_OP_linear_dw && c->op != KU_OP_conv2d_dw) {
        if (!has_colliding_rows(n_x, x->dtype))
            return 0;
        return (size_t)(tokens * spread_row(n_x, x->dtype)) * kumi_dtype_bytes(x->dtype);
    }
    int64_t n_y = ku_cpu_extent(&dy->shape, lead, dy->shape.ndim);
    int64_t m = n_y < n_x ? n_y : n_x;
    return (size_t)((m + MAX_MR) * (tokens + MAX_STEP)) * sizeof(float);
}
