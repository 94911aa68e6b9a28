/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batch norm. x is rows of channels. If the channels do not fill the vectors, one row of the
 * kernels is `fold` rows of x, and its columns are their channels side by side:
 *
 *     x, 7 rows of 24 channels, fold 3:   0 1 2 | 3 4 5 | 6     two rows of 72 columns, one of 24
 *
 * Per-column vectors (mean, scale, ..) are computed once into the workspace in the kernels' order
 * (ku_norm_place).
 *
 * Sums over rows use slices, whose number depends on the shape alone. A slice is cut into runs with
 * f32 sums. Runs and slices are added in f64 in order, and last the columns of each channel.
 */
#include "device/norm_channels.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"
#include "tensor/dtype.h"

enum {
    FOLD_COLS = 64, /* min columns: two pairs of vectors */
    RUN_ROWS = 128, /* rows of a kernel call: terms of an f32 sum */
    MAX_SLICES = 64,
    SLICE_ROWS = 256, /* min, so that adding slices costs little beside computing them */
    SLICE_COUNT = 1 << 17,
    FINISH_COLS = 1024, /* a multiple of KU_NORM_PAIR */
    TILE_COUNT = 2 * KU_CPU_TILE_COUNT,
    LEAST_ROWS = 16, /* min rows of a tile: four streams */
    LINE_BYTES = 64,
    CACHE_BYTES = 4 << 20 /* larger results do not stay in a shared cache until they are read */
};
enum { MEAN, SCALE, BIAS, SLOPE, N_VECTORS };

static int64_t fold_of(int64_t width)
{
    return width ? ku_cpu_tiles(FOLD_COLS, width) : 1;
}
/* Columns rounded up to a whole pair. */
static int64_t padded(int64_t width)
{
    return ku_cpu_tiles(fold_of(width) * width, KU_NORM_PAIR) * KU_NORM_PAIR;
}
static int64_t slice_rows(int64_t n_rows, int64_t width)
{
    int64_t rows = ku_cpu_tiles(n_rows, MAX_SLICES),
            wide = width ? ku_cpu_tiles(SLICE_COUNT, width) : 0;
    rows = rows < SLICE_ROWS ? SLICE_ROWS : rows;
    rows = rows < wide ? wide : rows;
    return ku_cpu_tiles(rows, fold_of(width)) * fold_of(width);
}
static int64_t n_slices_of(int64_t n_rows, int64_t width)
{
    return n_rows ? ku_cpu_tiles(n_rows, slice_rows(n_rows, width)) : 1;
}

/*
 * Workspace: vectors [padded] f32; then per slice two sums [padded] f64; then per slice the two f32
 * sums of its current run.
 */
size_t ku_cpu_workspace_norm(const struct ku_op_case *c)
{
    const struct ku_shape *x = &c->in[c->op == KU_OP_batch_norm_dsums].shape;
    const int64_t width = x->dim[x->ndim - 1].count, n_rows = ku_cpu_extent(x, 0, x->ndim - 1);
    const int has_sums = c->op == KU_OP_batch_norm_sums || c->op == KU_OP_batch_norm_dsums;
    size_t bytes = N_VECTORS * sizeof(float);
    if (has_sums)
        bytes += 2 * (size_t)n_slices_of(n_rows, width) * (sizeof(double) + sizeof(float));
    return (size_t)padded(width) * bytes;
}
static float *vector_at(const struct ku_kernel *k, int i)
{
    return (float *)k->call.workspace + i * padded(k->width);
}
static double *slice_sums(const struct ku_kernel *k, int64_t slice)
{
    return (double *)(void *)vector_at(k, N_VECTORS) + 2 * slice * padded(k->width);
}
static float *run_sums(const struct ku_kernel *k, int64_t slice)
{
    return (float *)(void *)slice_sums(k, k->n_slices) + 2 * slice * padded(k->width);
}
static void clear_vectors(const struct ku_kernel *k)
{
    memset(vector_at(k, 0), 0, (size_t)(N_VECTORS * padded(k->width)) * sizeof(float));
}
/* Sets vector i of channel j in all its columns. */
static void set_vector(const struct ku_kernel *k, int i, int64_t j, double value)
{
    const enum kumi_dtype t = k->call.in[0].dtype;
    const float rounded = (float)value;
    for (int64_t at = j, end = fold_of(k->width) * k->width; at < end; at += k->width)
        vector_at(k, i)[ku_norm_place(t, at)] = rounded == rounded ? rounded : NAN;
}

/*
 * Rows of x, which is operand `x`. form, per operand: x the dtype of x, v an f32 vector, d f64
 * sums.
 */
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
    return KUMI_OK;
}
static double rstd_of(const struct ku_kernel *k, const struct ku_view *var, int64_t j)
{
    return 1 / sqrt((double)((const float *)var->data)[j] + k->attr.eps);
}

/*
 * Whether the result is written with non-temporal stores: not in place, aligned, and larger than
 * the cache.
 */
static bool is_streamed(const struct ku_kernel *k, const struct ku_view *out)
{
    const size_t bytes = kumi_dtype_bytes(out->dtype);
    for (int i = 0; i < k->call.n_in; i++)
        if (k->call.in[i].data == out->data)
            return 0;
    return (uintptr_t)out->data % LINE_BYTES == 0 &&
           (size_t)(fold_of(k->width) * k->width) * bytes % LINE_BYTES == 0 &&
           (size_t)(k->count * k->width) * bytes > CACHE_BYTES;
}
/* The kernel arguments for the call's rows from `row` on. */
static struct ku_norm rows_at(const struct ku_kernel *k, int64_t row)
{
    const struct ku_call *c = &k->call;
    const int64_t at = row * k->width;
    const int is_back = c->op == KU_OP_batch_norm_dsums || c->op == KU_OP_batch_norm_dx;
    const int out = c->op == KU_OP_batch_norm_dsums ? 3 : 0;
    struct ku_norm o = {.dtype = c->in[0].dtype,
                        .width = fold_of(k->width) * k->width,
                        .mean = vector_at(k, MEAN),
                        .scale = vector_at(k, SCALE),
                        .bias = vector_at(k, BIAS),
                        .slope = vector_at(k, SLOPE),
                        .act = (int)k->attr.act};
    o.x = ku_cpu_at(&c->in[is_back], at);
    if (is_back)
        o.dy = ku_cpu_at(&c->in[0], at);
    if (c->op == KU_OP_batch_norm_dsums && c->n_in > 4)
        o.y = ku_cpu_at(&c->in[4], at);
    if (c->op == KU_OP_batch_norm && c->n_in > 5)
        o.r = ku_cpu_at(&c->in[5], at);
    if (c->op != KU_OP_batch_norm_sums && c->n_out > out) {
        o.out = ku_cpu_at(&c->out[out], at);
        o.is_streamed = is_streamed(k, &c->out[out]);
    }
    return o;
}
static void (*kernel_of(const struct ku_kernel *k))(const struct ku_norm *)
{
    const struct ku_isa_ops *ops = k->cpu->ops;
    return k->call.op == KU_OP_batch_norm_sums    ? ops->norm_sums
           : k->call.op == KU_OP_batch_norm       ? ops->norm_apply
           : k->call.op == KU_OP_batch_norm_dsums ? ops->norm_dsums
                                                  : ops->norm_dx;
}
/*
 * Runs the kernel over n rows from `from`: whole rows of columns, then the rest of one. sums:
 * [2][padded], or NULL.
 */
static void run_rows(const struct ku_kernel *k, int64_t from, int64_t n, float *sums)
{
    const int64_t fold = fold_of(k->width), rest = n % fold;
    for (int part = 0; part < 2; part++) {
        struct ku_norm o = rows_at(k, part ? from + n - rest : from);
        o.n_rows = part ? 1 : n / fold;
        if (part)
            o.width = rest * k->width, o.is_streamed = 0;
        if (sums)
            o.sum = sums, o.product = sums + padded(k->width);
        if (o.n_rows && o.width)
            kernel_of(k)(&o);
    }
}
static void tile_rows(const struct ku_kernel *k, int64_t tile, int thread)
{
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    run_rows(k, from, n, NULL);
    ku_cpu_fence();
}
static void tile_slice(const struct ku_kernel *k, int64_t tile, int thread)
{
    const int64_t count = 2 * padded(k->width), each = RUN_ROWS * fold_of(k->width);
    float *run = run_sums(k, tile);
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    memset(slice_sums(k, tile), 0, (size_t)count * sizeof(double));
    memset(run, 0, (size_t)count * sizeof *run);
    for (int64_t r = from; r < from + n; r += each) {
        run_rows(k, r, from + n - r < each ? from + n - r : each, run);
        k->cpu->ops->norm_widen(slice_sums(k, tile), run, count);
        ku_pool_poll(k->cpu->pool, thread);
    }
    ku_cpu_fence();
}
static void bind_elements(struct ku_kernel *k, ku_cpu_tile_fn *vectors)
{
    const int64_t rows = k->width ? TILE_COUNT / k->width : 0, fold = fold_of(k->width);
    k->per_tile = rows < LEAST_ROWS ? LEAST_ROWS : ku_cpu_tiles(rows, fold) * fold;
    ku_cpu_phase(k, vectors, 1);
    if (k->width)
        ku_cpu_phase(k, tile_rows, ku_cpu_tiles(k->count, k->per_tile));
}
static void bind_slices(struct ku_kernel *k, ku_cpu_tile_fn *vectors, ku_cpu_tile_fn *finish)
{
    k->per_tile = slice_rows(k->count, k->width);
    k->n_slices = n_slices_of(k->count, k->width);
    ku_cpu_phase(k, vectors, 1);
    ku_cpu_phase(k, tile_slice, k->n_slices);
    ku_cpu_phase(k, finish, ku_cpu_tiles(k->width, FINISH_COLS));
}
/*
 * Adds the sums of all slices to those of the first, for the tile's channels [*from, *from + *n).
 * If a channel has several columns there is only one tile.
 */
static void add_slices(const struct ku_kernel *k, int64_t tile, int64_t *from, int64_t *n)
{
    const int64_t pad = padded(k->width);
    *from = tile * FINISH_COLS;
    *n = k->width - *from < FINISH_COLS ? k->width - *from : FINISH_COLS;
    const int64_t end = pad - *from < FINISH_COLS ? pad : *from + FINISH_COLS;
    for (int64_t slice = 1; slice < k->n_slices; slice++)
        for (int x = 0; x < 2; x++) {
            double *sum = slice_sums(k, 0) + x * pad;
            const double *add = slice_sums(k, slice) + x * pad;
            for (int64_t i = *from; i < end; i++)
                sum[i] += add[i];
        }
}
static double channel_sum(const struct ku_kernel *k, int x, int64_t j)
{
    const double *sum = slice_sums(k, 0) + x * padded(k->width);
    double all = 0;
    for (int64_t at = j, end = fold_of(k->width) * k->width; at < end; at += k->width)
        all += sum[ku_norm_place(k->call.in[0].dtype, at)];
    return all;
}

/* Sums are relative to the first row, a: sum x = n a + s, sum x^2 = n a^2 + 2 a s + q. */
static void tile_about(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0];
    (void)tile, (void)thread;
    clear_vectors(k);
    for (int64_t j = 0; j < k->width && k->count; j++)
        set_vector(k, MEAN, j, ku_load_f64(x->data, x->dtype, j));
}
static void tile_sums_finish(const struct ku_kernel *k, int64_t tile, int thread)
{
    double *out = k->call.out[0].data;
    int64_t from, n;
    (void)thread;
    add_slices(k, tile, &from, &n);
    for (int64_t j = from; j < from + n; j++) {
        const double a = (double)vector_at(k, MEAN)[ku_norm_place(k->call.in[0].dtype, j)];
        const double count = (double)k->count, sum = channel_sum(k, 0, j);
        out[j] = count;
        out[k->width + j] = count * a + sum;
        out[2 * k->width + j] = count * a * a + 2 * a * sum + channel_sum(k, 1, j);
    }
}
int ku_cpu_bind_batch_norm_sums(struct ku_kernel *k)
{
    KU_TRY(bind_rows(k, 0, "xd"));
    bind_slices(k, tile_about, tile_sums_finish);
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

static void tile_scale(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const float *mean = c->in[1].data, *gain = c->in[3].data, *bias = c->in[4].data;
    (void)tile, (void)thread;
    clear_vectors(k);
    for (int64_t j = 0; j < k->width; j++) {
        set_vector(k, MEAN, j, (double)mean[j]);
        set_vector(k, SCALE, j, (double)gain[j] * rstd_of(k, &c->in[2], j));
        set_vector(k, BIAS, j, (double)bias[j]);
    }
}
int ku_cpu_bind_batch_norm(struct ku_kernel *k)
{
    KU_TRY(bind_rows(k, 0, k->call.n_in > 5 ? "xvvvvxx" : "xvvvvx"));
    if (k->attr.act != KU_ACT_NONE && k->attr.act != KU_ACT_RELU)
        return KU_ERR(KUMI_EINVAL, "device cpu: batch_norm: act %s; give none or relu",
                      ku_attr_acts[k->attr.act]);
    bind_elements(k, tile_scale);
    return KUMI_OK;
}

static void tile_mean(const struct ku_kernel *k, int64_t tile, int thread)
{
    const float *mean = k->call.in[2].data;
    (void)tile, (void)thread;
    clear_vectors(k);
    for (int64_t j = 0; j < k->width; j++)
        set_vector(k, MEAN, j, (double)mean[j]);
}
static void tile_dsums_finish(const struct ku_kernel *k, int64_t tile, int thread)
{
    float *gain = k->call.out[0].data, *bias = k->call.out[1].data;
    double *out = k->call.out[2].data;
    int64_t from, n;
    (void)thread;
    add_slices(k, tile, &from, &n);
    for (int64_t j = from; j < from + n; j++) {
        out[j] = (double)k->count;
        out[k->width + j] = channel_sum(k, 0, j);
        out[2 * k->width + j] = channel_sum(k, 1, j) * rstd_of(k, &k->call.in[3], j);
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
    bind_slices(k, tile_mean, tile_dsums_finish);
    return KUMI_OK;
}

/* dx = scale (dz - g - (x - mean) rstd gx), scale = gain rstd */
static void tile_slopes(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const float *mean = c->in[2].data, *gain = c->in[4].data;
    const double *sums = c->in[5].data;
    (void)tile, (void)thread;
    clear_vectors(k);
    for (int64_t j = 0; j < k->width; j++) {
        double rstd = rstd_of(k, &c->in[3], j), scale = (double)gain[j] * rstd;
        set_vector(k, MEAN, j, (double)mean[j]);
        set_vector(k, SCALE, j, scale);
        set_vector(k, SLOPE, j, scale * rstd * (sums[2 * k->width + j] / sums[j]));
        set_vector(k, BIAS, j, scale * (sums[k->width + j] / sums[j]));
    }
}
int ku_cpu_bind_batch_norm_dx(struct ku_kernel *k)
{
    KU_TRY(bind_rows(k, 1, "xxvvvdx"));
    bind_elements(k, tile_slopes);
    return KUMI_OK;
}
