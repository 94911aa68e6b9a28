/* SPDX-License-Identifier: Apache-2.0 */
/* Ops on rows: layer norm, RMS norm, and sums over rows in fixed slices. */
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"

static void set_rows(struct ku_kernel *k, const struct ku_view *x)
{
    k->width = x->shape.ndim ? x->shape.dim[x->shape.ndim - 1].count : 1;
    k->count = ku_cpu_extent(&x->shape, 0, x->shape.ndim - 1);
    k->per_tile = k->width < KU_CPU_TILE_COUNT ? KU_CPU_TILE_COUNT / (k->width ? k->width : 1) : 1;
}

static void tile_layer_norm(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    float *mean = c->out[1].data, *rstd = c->out[2].data;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from; r < from + n; r++)
        k->cpu->ops->layer_norm(ku_cpu_at(&c->out[0], r * k->width), &mean[r], &rstd[r],
                                ku_cpu_at(&c->in[0], r * k->width), c->in[0].dtype, c->in[1].data,
                                c->in[2].data, c->in[1].dtype, k->width, k->attr.eps);
}
int ku_cpu_bind_layer_norm(struct ku_kernel *k)
{
    const struct ku_call *c = &k->call;
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "y", &c->out[0], c->in[0].dtype));
    KU_TRY(ku_cpu_check(k, "bias", &c->in[2], c->in[1].dtype));
    KU_TRY(ku_cpu_check(k, "mean", &c->out[1], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "rstd", &c->out[2], KUMI_F32));
    set_rows(k, &c->in[0]);
    if (k->width)
        ku_cpu_phase(k, tile_layer_norm, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

static void tile_layer_norm_dx(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const float *mean = c->in[3].data, *rstd = c->in[4].data;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from; r < from + n; r++)
        k->cpu->ops->layer_norm_dx(ku_cpu_at(&c->out[0], r * k->width),
                                   ku_cpu_at(&c->in[0], r * k->width),
                                   ku_cpu_at(&c->in[1], r * k->width), c->in[0].dtype,
                                   c->in[2].data, c->in[2].dtype, mean[r], rstd[r], k->width);
}
int ku_cpu_bind_layer_norm_dx(struct ku_kernel *k)
{
    const struct ku_call *c = &k->call;
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "x", &c->in[1], c->in[0].dtype));
    KU_TRY(ku_cpu_check(k, "dx", &c->out[0], c->in[0].dtype));
    KU_TRY(ku_cpu_check(k, "mean", &c->in[3], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "rstd", &c->in[4], KUMI_F32));
    set_rows(k, &c->in[0]);
    if (k->width)
        ku_cpu_phase(k, tile_layer_norm_dx, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

static void tile_rms_norm(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    float *rstd = c->out[1].data;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from; r < from + n; r++)
        k->cpu->ops->rms_norm(ku_cpu_at(&c->out[0], r * k->width), &rstd[r],
                              ku_cpu_at(&c->in[0], r * k->width), c->in[0].dtype, c->in[1].data,
                              c->in[1].dtype, k->width, k->attr.eps);
}
int ku_cpu_bind_rms_norm(struct ku_kernel *k)
{
    const struct ku_call *c = &k->call;
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "y", &c->out[0], c->in[0].dtype));
    KU_TRY(ku_cpu_check(k, "rstd", &c->out[1], KUMI_F32));
    set_rows(k, &c->in[0]);
    ku_cpu_phase(k, tile_rms_norm, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

static void tile_rms_norm_dx(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const float *rstd = c->in[3].data;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from; r < from + n; r++)
        k->cpu->ops->rms_norm_dx(ku_cpu_at(&c->out[0], r * k->width),
                                 ku_cpu_at(&c->in[0], r * k->width),
                                 ku_cpu_at(&c->in[1], r * k->width), c->in[0].dtype, c->in[2].data,
                                 c->in[2].dtype, rstd[r], k->width);
}
int ku_cpu_bind_rms_norm_dx(struct ku_kernel *k)
{
    const struct ku_call *c = &k->call;
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "x", &c->in[1], c->in[0].dtype));
    KU_TRY(ku_cpu_check(k, "dx", &c->out[0], c->in[0].dtype));
    KU_TRY(ku_cpu_check(k, "rstd", &c->in[3], KUMI_F32));
    set_rows(k, &c->in[0]);
    ku_cpu_phase(k, tile_rms_norm_dx, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

/*
 * Sums down the columns of [rows][width]. Rows are cut into parts by their number alone. A tile
 * sums one part into the workspace; a second phase adds the parts in order. With attr slices the
 * rows of each slice (ku_slices_of_tokens) are such a sum, and the slices add up by their tree.
 */
enum { PART_ROWS = 64, MAX_PARTS = 64, FINISH_COLS = 1024 };
static int64_t part_rows(int64_t n_rows)
{
    int64_t rows = ku_cpu_tiles(n_rows, MAX_PARTS);
    return rows < PART_ROWS ? PART_ROWS : rows;
}
static int64_t n_parts(int64_t n_rows, const struct ku_slices *s)
{
    n_rows = s->n ? s->outer * s->run : n_rows; /* of a slice */
    return (s->n ? s->n : 1) * ku_cpu_tiles(n_rows, part_rows(n_rows));
}
size_t ku_cpu_workspace_slices(const struct ku_op_case *c)
{
    const struct ku_shape *s = &c->in[0].shape;
    const int cols = c->op == KU_OP_linear_db ? (int)c->attr->outs : 1;
    struct ku_slices slices;
    if (ku_slices_of_tokens(c->op, c->attr, s, &slices) < 0) /* bind refuses it */
        return 0;
    return (size_t)(n_parts(ku_cpu_extent(s, 0, s->ndim - cols), &slices) *
                    ku_cpu_extent(s, s->ndim - cols, s->ndim) *
                    (c->op == KU_OP_layer_norm_dgb ? 2 : 1)) *
           sizeof(float);
}

static float *part_sum(const struct ku_kernel *k, int64_t part, int sum)
{
    return (float *)k->call.workspace + (sum * k->n_slices + part) * k->width;
}
/* The sum of a slice's parts, of columns from `from` on. */
static void add_parts(const struct ku_kernel *k, int64_t slice, int sum, int64_t from, int64_t n,
                      float *total)
{
    const struct ku_slices *s = &k->product.slices;
    const int64_t each = k->n_slices / (s->n ? s->n : 1);
    memset(total, 0, (size_t)n * sizeof *total);
    for (int64_t i = slice * each; i < (slice + 1) * each; i++)
        k->cpu->ops->sum_into(total, part_sum(k, i, sum) + from, KUMI_F32, n);
}
static void tile_finish(const struct ku_kernel *k, int64_t tile, int thread)
{
    float *const total = ku_cpu_scratch(k, thread); /* [KU_SLICES_LEVELS][FINISH_COLS] */
    const int64_t from = tile * FINISH_COLS;
    const int64_t n = k->width - from < FINISH_COLS ? k->width - from : FINISH_COLS;
    for (int o = 0; o < k->call.n_out; o++) {
        float *at = total;
        add_parts(k, 0, o, from, n, at);
        for (int64_t slice = 1; slice < k->product.slices.n; slice++) {
            at = total + ku_slices_node(slice) * FINISH_COLS;
            add_parts(k, slice, o, from, n, at);
            for (int f = ku_slices_folds(k->product.slices.n, slice); f > 0; f--, at -= FINISH_COLS)
                for (int64_t j = 0; j < n; j++)
                    at[j - FINISH_COLS] += at[j];
        }
        k->cpu->ops->finish(ku_cpu_at(&k->call.out[o], from), k->call.out[o].dtype, total,
                            k->call.accumulate, n);
    }
}
static int bind_parts(struct ku_kernel *k, ku_cpu_tile_fn *fn)
{
    struct ku_slices *s = &k->product.slices;
    KU_TRY(ku_slices_of_tokens(k->call.op, &k->attr, &k->call.in[0].shape, s));
    k->per_tile = part_rows(s->n ? s->outer * s->run : k->count);
    k->n_slices = n_parts(k->count, s);
    ku_cpu_phase(k, fn, k->n_slices);
    ku_cpu_phase(k, tile_finish, ku_cpu_tiles(k->width, FINISH_COLS));
    return KUMI_OK;
}
/* Rows [*at, *end) of a part, which row_of turns into rows of the operands. */
static void part_range(const struct ku_kernel *k, int64_t part, int64_t *at, int64_t *end)
{
    const struct ku_slices *s = &k->product.slices;
    const int64_t n_rows = s->n ? s->outer * s->run : k->count;
    const int64_t each = k->n_slices / (s->n ? s->n : 1);
    *at = part % (each ? each : 1) * k->per_tile;
    *end = *at + k->per_tile < n_rows ? *at + k->per_tile : n_rows;
}
static int64_t row_of(const struct ku_kernel *k, int64_t part, int64_t r)
{
    const struct ku_slices *s = &k->product.slices;
    if (s->n == 0)
        return r;
    const int64_t slice = part / (k->n_slices / s->n);
    return (r / s->run * s->n + slice) * s->run + r % s->run;
}

/*
 * After row `row` of a part: a part of many wide rows takes milliseconds. Polls about every
 * KU_CPU_TILE_COUNT elements.
 */
static void poll_after(const struct ku_kernel *k, int64_t row, int thread)
{
    if (row * k->width / KU_CPU_TILE_COUNT != (row + 1) * k->width / KU_CPU_TILE_COUNT)
        ku_pool_poll(k->cpu->pool, thread);
}

static void tile_linear_db(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *dy = &k->call.in[0];
    float *sum = part_sum(k, tile, 0);
    int64_t at, end;
    part_range(k, tile, &at, &end);
    memset(sum, 0, (size_t)k->width * sizeof *sum);
    for (; at < end; at++) {
        k->cpu->ops->sum_into(sum, ku_cpu_at(dy, row_of(k, tile, at) * k->width), dy->dtype,
                              k->width);
        poll_after(k, at, thread);
    }
}
int ku_cpu_bind_linear_db(struct ku_kernel *k)
{
    const struct ku_shape *s = &k->call.in[0].shape;
    int lead = s->ndim - (int)k->attr.outs;
    KU_TRY(ku_cpu_check_all(k));
    k->count = ku_cpu_extent(s, 0, lead);
    k->width = ku_cpu_extent(s, lead, s->ndim);
    return bind_parts(k, tile_linear_db);
}

static void tile_layer_norm_dgb(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *dy = &k->call.in[0], *x = &k->call.in[1];
    const float *mean = k->call.in[2].data, *rstd = k->call.in[3].data;
    float *dgain = part_sum(k, tile, 0), *dbias = part_sum(k, tile, 1);
    int64_t at, end;
    part_range(k, tile, &at, &end);
    memset(dgain, 0, (size_t)k->width * sizeof *dgain);
    memset(dbias, 0, (size_t)k->width * sizeof *dbias);
    for (; at < end; at++) {
        const int64_t r = row_of(k, tile, at);
        const void *dy_row = ku_cpu_at(dy, r * k->width);
        k->cpu->ops->prod_into(dgain, dy_row, ku_cpu_at(x, r * k->width), dy->dtype, mean[r],
                               rstd[r], k->width);
        k->cpu->ops->sum_into(dbias, dy_row, dy->dtype, k->width);
        poll_after(k, at, thread);
    }
}
int ku_cpu_bind_layer_norm_dgb(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "x", &k->call.in[1], k->call.in[0].dtype));
    KU_TRY(ku_cpu_check(k, "mean", &k->call.in[2], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "rstd", &k->call.in[3], KUMI_F32));
    set_rows(k, &k->call.in[0]);
    return bind_parts(k, tile_layer_norm_dgb);
}

static void tile_rms_norm_dg(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *dy = &k->call.in[0], *x = &k->call.in[1];
    const float *rstd = k->call.in[2].data;
    float *dgain = part_sum(k, tile, 0);
    int64_t at, end;
    part_range(k, tile, &at, &end);
    memset(dgain, 0, (size_t)k->width * sizeof *dgain);
    for (; at < end; at++) {
        const int64_t r = row_of(k, tile, at);
        k->cpu->ops->prod_into(dgain, ku_cpu_at(dy, r * k->width), ku_cpu_at(x, r * k->width),
                               dy->dtype, 0, rstd[r], k->width);
        poll_after(k, at, thread);
    }
}
int ku_cpu_bind_rms_norm_dg(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "x", &k->call.in[1], k->call.in[0].dtype));
    KU_TRY(ku_cpu_check(k, "rstd", &k->call.in[2], KUMI_F32));
    set_rows(k, &k->call.in[0]);
    return bind_parts(k, tile_rms_norm_dg);
}
