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
 * Sums down the columns of [rows][width]. Rows are cut into slices by their number alone. A tile
 * sums one slice into the workspace; a second phase adds the slices in order.
 */
enum { SLICE_ROWS = 64, MAX_SLICES = 64, FINISH_COLS = 1024 };
static int64_t slice_rows(int64_t n_rows)
{
    int64_t rows = ku_cpu_tiles(n_rows, MAX_SLICES);
    return rows < SLICE_ROWS ? SLICE_ROWS : rows;
}
static size_t slices_bytes(int64_t n_rows, int64_t width, int n_sums)
{
    return (size_t)(ku_cpu_tiles(n_rows, slice_rows(n_rows)) * width * n_sums) * sizeof(float);
}
size_t ku_cpu_workspace_slices(const struct ku_op_case *c)
{
    const struct ku_shape *s = &c->in[0].shape;
    int cols = c->op == KU_OP_linear_db ? (int)c->attr->outs : 1;
    return slices_bytes(ku_cpu_extent(s, 0, s->ndim - cols),
                        ku_cpu_extent(s, s->ndim - cols, s->ndim),
                        c->op == KU_OP_layer_norm_dgb ? 2 : 1);
}

static float *slice_sum(const struct ku_kernel *k, int64_t slice, int sum)
{
    return (float *)k->call.workspace + (sum * k->n_slices + slice) * k->width;
}
static void tile_finish(const struct ku_kernel *k, int64_t tile, int thread)
{
    float *total = ku_cpu_scratch(k, thread);
    int64_t from = tile * FINISH_COLS;
    int64_t n = k->width - from < FINISH_COLS ? k->width - from : FINISH_COLS;
    for (int s = 0; s < k->call.n_out; s++) {
        memset(total, 0, (size_t)n * sizeof *total);
        for (int64_t slice = 0; slice < k->n_slices; slice++)
            k->cpu->ops->sum_into(total, slice_sum(k, slice, s) + from, KUMI_F32, n);
        k->cpu->ops->finish(ku_cpu_at(&k->call.out[s], from), k->call.out[s].dtype, total,
                            k->call.accumulate, n);
    }
}
static void bind_slices(struct ku_kernel *k, ku_cpu_tile_fn *fn)
{
    k->per_tile = slice_rows(k->count);
    k->n_slices = ku_cpu_tiles(k->count, k->per_tile);
    ku_cpu_phase(k, fn, k->n_slices);
    ku_cpu_phase(k, tile_finish, ku_cpu_tiles(k->width, FINISH_COLS));
}

static void tile_linear_db(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *dy = &k->call.in[0];
    float *sum = slice_sum(k, tile, 0);
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    memset(sum, 0, (size_t)k->width * sizeof *sum);
    for (int64_t r = from; r < from + n; r++)
        k->cpu->ops->sum_into(sum, ku_cpu_at(dy, r * k->width), dy->dtype, k->width);
}
int ku_cpu_bind_linear_db(struct ku_kernel *k)
{
    const struct ku_shape *s = &k->call.in[0].shape;
    int lead = s->ndim - (int)k->attr.outs;
    KU_TRY(ku_cpu_check_all(k));
    k->count = ku_cpu_extent(s, 0, lead);
    k->width = ku_cpu_extent(s, lead, s->ndim);
    bind_slices(k, tile_linear_db);
    return KUMI_OK;
}

static void tile_layer_norm_dgb(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *dy = &k->call.in[0], *x = &k->call.in[1];
    const float *mean = k->call.in[2].data, *rstd = k->call.in[3].data;
    float *dgain = slice_sum(k, tile, 0), *dbias = slice_sum(k, tile, 1);
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    memset(dgain, 0, (size_t)k->width * sizeof *dgain);
    memset(dbias, 0, (size_t)k->width * sizeof *dbias);
    for (int64_t r = from; r < from + n; r++) {
        const void *dy_row = ku_cpu_at(dy, r * k->width);
        k->cpu->ops->prod_into(dgain, dy_row, ku_cpu_at(x, r * k->width), dy->dtype, mean[r],
                               rstd[r], k->width);
        k->cpu->ops->sum_into(dbias, dy_row, dy->dtype, k->width);
    }
}
int ku_cpu_bind_layer_norm_dgb(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "x", &k->call.in[1], k->call.in[0].dtype));
    KU_TRY(ku_cpu_check(k, "mean", &k->call.in[2], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "rstd", &k->call.in[3], KUMI_F32));
    set_rows(k, &k->call.in[0]);
    bind_slices(k, tile_layer_norm_dgb);
    return KUMI_OK;
}

static void tile_rms_norm_dg(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *dy = &k->call.in[0], *x = &k->call.in[1];
    const float *rstd = k->call.in[2].data;
    float *dgain = slice_sum(k, tile, 0);
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    memset(dgain, 0, (size_t)k->width * sizeof *dgain);
    for (int64_t r = from; r < from + n; r++)
        k->cpu->ops->prod_into(dgain, ku_cpu_at(dy, r * k->width), ku_cpu_at(x, r * k->width),
                               dy->dtype, 0, rstd[r], k->width);
}
int ku_cpu_bind_rms_norm_dg(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "x", &k->call.in[1], k->call.in[0].dtype));
    KU_TRY(ku_cpu_check(k, "rstd", &k->call.in[2], KUMI_F32));
    set_rows(k, &k->call.in[0]);
    bind_slices(k, tile_rms_norm_dg);
    return KUMI_OK;
}
