/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batch norm. x is rows of channels. Sums over rows: slices, a function of the number of rows
 * alone, each in chunks whose sums are f32; chunks and slices add up in f64, in their order. What
 * is per channel is computed once, into the workspace.
 */
#include "device/norm.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"
#include "tensor/dtype.h"

enum { MAX_CHUNK_ROWS = 128, MAX_SLICES = 64, FINISH_COLS = 1024 };

static int64_t slice_rows(int64_t n_rows)
{
    int64_t rows = ku_cpu_tiles(n_rows, MAX_SLICES);
    return rows < MAX_CHUNK_ROWS ? MAX_CHUNK_ROWS : rows;
}
/*
 * Rows that a call of a kernel takes. It does 64 columns of all of them, then the next 64: rows of
 * up to 64 channels are read in order, wider ones only if they come one by one, and memory out of
 * order is half as fast. Statistics pay for each call with additions in f64, which is more than
 * order is worth where there is nothing else to do. Not a function of what is fused: bits.
 */
static int64_t chunk_rows(const struct ku_kernel *k)
{
    if (k->width <= 64)
        return MAX_CHUNK_ROWS;
    if (k->call.op != KU_OP_batch_norm_sums)
        return 1;
    return k->width < 512 ? 4096 / k->width : 8;
}

/* scale, slope, bias [width] f32; then the slices' two sums [width] f64. */
size_t ku_cpu_workspace_norm(const struct ku_op_case *c)
{
    const struct ku_shape *x = &c->in[c->op == KU_OP_batch_norm_dsums].shape;
    int64_t width = x->dim[x->ndim - 1].count, n_rows = ku_cpu_extent(x, 0, x->ndim - 1);
    int has_sums = c->op == KU_OP_batch_norm_sums || c->op == KU_OP_batch_norm_dsums;
    int64_t n_sums = has_sums ? 2 * ku_cpu_tiles(n_rows, slice_rows(n_rows)) : 0;
    return (size_t)((n_sums + 2) * width) * sizeof(double);
}
static float *vector_at(const struct ku_kernel *k, int i)
{
    return (float *)k->call.workspace + i * k->width;
}
static double *slice_sum(const struct ku_kernel *k, int64_t slice, int sum)
{
    return (double *)k->call.workspace + (2 + 2 * slice + sum) * k->width;
}

/* Rows of x, which is operand `x`; every float operand behind it but f64 sums is of `form`: x like
 * x, v a vector. */
static int bind_rows(struct ku_kernel *k, int x, const char *form)
{
    const struct ku_call *c = &k->call;
    const struct ku_shape *s = &c->in[x].shape;
    static const char *const name[] = {"x", "y", "vector", "sums"};
    KU_TRY(ku_cpu_check_float(k, name[0], &c->in[x]));
    for (int i = 0; i < c->n_in + c->n_out; i++) {
        const struct ku_view *v = i < c->n_in ? &c->in[i] : &c->out[i - c->n_in];
        if (form[i] == 'x')
            KU_TRY(ku_cpu_check(k, name[1], v, c->in[x].dtype));
        else
            KU_TRY(ku_cpu_check(k, name[form[i] == 'v' ? 2 : 3], v,
                                form[i] == 'v' ? KUMI_F32 : KUMI_F64));
    }
    k->width = s->dim[s->ndim - 1].count;
    k->count = ku_cpu_extent(s, 0, s->ndim - 1);
    k->per_tile = k->width < KU_CPU_TILE_COUNT ? KU_CPU_TILE_COUNT / (k->width ? k->width : 1) : 1;
    return KUMI_OK;
}
static double rstd_of(const struct ku_kernel *k, const struct ku_view *var, int64_t j)
{
    return 1 / sqrt((double)((const float *)var->data)[j] + k->attr.eps);
}
static void finish_pair(const struct ku_kernel *k, int64_t tile, int64_t *from, int64_t *n)
{
    *from = tile * FINISH_COLS;
    *n = k->width - *from < FINISH_COLS ? k->width - *from : FINISH_COLS;
}

/* -- statistics ---------------------------------------------------------------------------- */

static void tile_sums(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0];
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    memset(slice_sum(k, tile, 0), 0, 2 * (size_t)k->width * sizeof(double));
    for (int64_t r = from, each = chunk_rows(k); r < from + n; r += each) {
        int64_t rows = from + n - r < each ? from + n - r : each;
        k->cpu->ops->norm_sums(slice_sum(k, tile, 0), slice_sum(k, tile, 1),
                               ku_cpu_at(x, r * k->width), ku_cpu_at(x, from * k->width), x->dtype,
                               rows, k->width);
        ku_pool_poll(k->cpu->pool, thread);
    }
}
/* A slice's sums were about its first row a: sum x = n a + s, sum x^2 = n a^2 + 2 a s + q. */
static void tile_sums_finish(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0];
    double *out = k->call.out[0].data;
    int64_t from, n;
    (void)thread;
    finish_pair(k, tile, &from, &n);
    for (int64_t j = from; j < from + n; j++)
        out[j] = (double)k->count, out[k->width + j] = out[2 * k->width + j] = 0;
    for (int64_t slice = 0; slice < k->n_slices; slice++) {
        int64_t first, rows;
        const double *sum = slice_sum(k, slice, 0), *squares = slice_sum(k, slice, 1);
        ku_cpu_range(k, slice, &first, &rows);
        for (int64_t j = from; j < from + n; j++) {
            double a = ku_load_f64(x->data, x->dtype, first * k->width + j);
            out[k->width + j] += (double)rows * a + sum[j];
            out[2 * k->width + j] += (double)rows * a * a + 2 * a * sum[j] + squares[j];
        }
    }
}
static void bind_slices(struct ku_kernel *k, ku_cpu_tile_fn *fn, ku_cpu_tile_fn *finish)
{
    k->per_tile = slice_rows(k->count);
    k->n_slices = ku_cpu_tiles(k->count, k->per_tile);
    ku_cpu_phase(k, fn, k->n_slices);
    ku_cpu_phase(k, finish, ku_cpu_tiles(k->width, FINISH_COLS));
}
int ku_cpu_bind_batch_norm_sums(struct ku_kernel *k)
{
    KU_TRY(bind_rows(k, 0, "xd"));
    bind_slices(k, tile_sums, tile_sums_finish);
    return KUMI_OK;
}

static void tile_moments(const struct ku_kernel *k, int64_t tile, int thread)
{
    (void)tile, (void)thread;
    ku_norm_moments(&k->call);
}
int ku_cpu_bind_batch_norm_moments(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check(k, "sums", &k->call.in[0], KUMI_F64));
    for (int i = 0; i < 3; i++)
        KU_TRY(ku_cpu_check_float(k, "statistics", &k->call.out[i]));
    ku_cpu_phase(k, tile_moments, 1);
    return KUMI_OK;
}

static void tile_track(const struct ku_kernel *k, int64_t tile, int thread)
{
    (void)tile, (void)thread;
    ku_norm_track(&k->call);
}
int ku_cpu_bind_batch_norm_track(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check_all(k));
    ku_cpu_phase(k, tile_track, 1);
    return KUMI_OK;
}

static void tile_count_up(const struct ku_kernel *k, int64_t tile, int thread)
{
    int64_t n = ku_cpu_count(&k->call.out[0]), *x = k->call.out[0].data;
    (void)tile, (void)thread;
    for (int64_t i = 0; i < n; i++)
        x[i] += k->attr.words;
}
int ku_cpu_bind_count_up(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check(k, "x", &k->call.in[0], KUMI_I64));
    ku_cpu_phase(k, tile_count_up, 1);
    return KUMI_OK;
}

/* -- forward ------------------------------------------------------------------------------- */

static void tile_scale(const struct ku_kernel *k, int64_t tile, int thread)
{
    const float *gain = k->call.in[3].data;
    float *scale = vector_at(k, 0);
    (void)tile, (void)thread;
    for (int64_t j = 0; j < k->width; j++)
        scale[j] = (float)((double)gain[j] * rstd_of(k, &k->call.in[2], j));
}
static void tile_apply(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from, each = chunk_rows(k); r < from + n; r += each) {
        int64_t rows = from + n - r < each ? from + n - r : each, at = r * k->width;
        struct ku_norm o = {.dtype = c->in[0].dtype,
                            .width = k->width,
                            .x = ku_cpu_at(&c->in[0], at),
                            .r = c->n_in > 5 ? ku_cpu_at(&c->in[5], at) : NULL,
                            .out = ku_cpu_at(&c->out[0], at),
                            .mean = c->in[1].data,
                            .scale = vector_at(k, 0),
                            .bias = c->in[4].data,
                            .act = (int)k->attr.act};
        k->cpu->ops->norm_apply(&o, rows);
    }
}
int ku_cpu_bind_batch_norm(struct ku_kernel *k)
{
    KU_TRY(bind_rows(k, 0, k->call.n_in > 5 ? "xvvvvxx" : "xvvvvx"));
    if (k->attr.act != KU_ACT_NONE && k->attr.act != KU_ACT_RELU)
        return KU_ERR(KUMI_EINVAL, "device cpu: batch_norm: act %s; none or relu",
                      ku_attr_acts[k->attr.act]);
    ku_cpu_phase(k, tile_scale, 1);
    if (k->width)
        ku_cpu_phase(k, tile_apply, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

/* -- backward ------------------------------------------------------------------------------ */

static void tile_rstd(const struct ku_kernel *k, int64_t tile, int thread)
{
    float *rstd = vector_at(k, 0);
    (void)tile, (void)thread;
    for (int64_t j = 0; j < k->width; j++)
        rstd[j] = (float)rstd_of(k, &k->call.in[3], j);
}
static void tile_dsums(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    memset(slice_sum(k, tile, 0), 0, 2 * (size_t)k->width * sizeof(double));
    for (int64_t r = from, each = chunk_rows(k); r < from + n; r += each) {
        int64_t rows = from + n - r < each ? from + n - r : each, at = r * k->width;
        struct ku_norm o = {.dtype = c->in[1].dtype,
                            .width = k->width,
                            .dy = ku_cpu_at(&c->in[0], at),
                            .x = ku_cpu_at(&c->in[1], at),
                            .y = c->n_in > 4 ? ku_cpu_at(&c->in[4], at) : NULL,
                            .out = c->n_out > 3 ? ku_cpu_at(&c->out[3], at) : NULL,
                            .mean = c->in[2].data,
                            .scale = vector_at(k, 0)};
        k->cpu->ops->norm_dsums(&o, slice_sum(k, tile, 0), slice_sum(k, tile, 1), rows);
        ku_pool_poll(k->cpu->pool, thread);
    }
}
static void tile_dsums_finish(const struct ku_kernel *k, int64_t tile, int thread)
{
    float *gain = k->call.out[0].data, *bias = k->call.out[1].data;
    double *out = k->call.out[2].data;
    int64_t from, n;
    (void)thread;
    finish_pair(k, tile, &from, &n);
    for (int64_t j = from; j < from + n; j++)
        out[j] = (double)k->count, out[k->width + j] = out[2 * k->width + j] = 0;
    for (int64_t slice = 0; slice < k->n_slices; slice++)
        for (int64_t j = from; j < from + n; j++) {
            out[k->width + j] += slice_sum(k, slice, 0)[j];
            out[2 * k->width + j] += slice_sum(k, slice, 1)[j];
        }
    for (int64_t j = from; j < from + n; j++) {
        bias[j] = (float)out[k->width + j];
        gain[j] = (float)out[2 * k->width + j];
    }
}
int ku_cpu_bind_batch_norm_dsums(struct ku_kernel *k)
{
    static const char *const form[2][2] = {{"xxvvvvd", "xxvvvvdx"}, {"xxvvxvvd", "xxvvxvvdx"}};
    KU_TRY(bind_rows(k, 1, form[k->call.n_in > 4][k->call.n_out > 3]));
    if (k->call.n_out > 3 && k->call.n_in < 5)
        return KU_ERR(KUMI_EINVAL, "device cpu: batch_norm_dsums: a fourth result needs y");
    ku_cpu_phase(k, tile_rstd, 1);
    bind_slices(k, tile_dsums, tile_dsums_finish);
    return KUMI_OK;
}

/* scale (dz - g - (x - mean) rstd gx), scale = gain rstd */
static void tile_slopes(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const float *gain = c->in[4].data;
    const double *sums = c->in[5].data;
    (void)tile, (void)thread;
    for (int64_t j = 0; j < k->width; j++) {
        double rstd = rstd_of(k, &c->in[3], j), scale = (double)gain[j] * rstd;
        vector_at(k, 0)[j] = (float)scale;
        vector_at(k, 1)[j] = (float)(scale * rstd * (sums[2 * k->width + j] / sums[j]));
        vector_at(k, 2)[j] = (float)(scale * (sums[k->width + j] / sums[j]));
    }
}
static void tile_dx(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from, each = chunk_rows(k); r < from + n; r += each) {
        int64_t rows = from + n - r < each ? from + n - r : each, at = r * k->width;
        struct ku_norm o = {.dtype = c->in[1].dtype,
                            .width = k->width,
                            .dy = ku_cpu_at(&c->in[0], at),
                            .x = ku_cpu_at(&c->in[1], at),
                            .out = ku_cpu_at(&c->out[0], at),
                            .mean = c->in[2].data,
                            .scale = vector_at(k, 0),
                            .slope = vector_at(k, 1),
                            .bias = vector_at(k, 2)};
        k->cpu->ops->norm_dx(&o, rows);
    }
}
int ku_cpu_bind_batch_norm_dx(struct ku_kernel *k)
{
    KU_TRY(bind_rows(k, 1, "xxvvvdx"));
    ku_cpu_phase(k, tile_slopes, 1);
    if (k->width)
        ku_cpu_phase(k, tile_dx, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}
