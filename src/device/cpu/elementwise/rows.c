/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops on rows: layer norm, RMS norm, softmax cross-entropy, top_k, and sums over rows in fixed
 * slices.
 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"
#include "tensor/dtype.h"

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

/* The number of logits without the padding of the vocabulary. */
static int64_t seen_width(const struct ku_view *x)
{
    return x->shape.dim[x->shape.ndim - 1].seen;
}
static bool is_ignored(const struct ku_kernel *k, int32_t target)
{
    return target < 0 || target == k->attr.ignore;
}

/* The expected logit under the (smoothed) target distribution. */
static double smoothed_logit(const struct ku_kernel *k, const void *row, const struct ku_view *x,
                             int32_t target)
{
    const double s = k->attr.smoothing, logit = ku_load_f64(row, x->dtype, target);
    const int64_t seen = seen_width(x);
    return s != 0 ? (1 - s) * logit + s * k->cpu->ops->sum(row, x->dtype, seen) / (double)seen
                  : logit;
}

static void tile_softmax_xent(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0];
    const int32_t *target = k->call.in[1].data;
    float *loss = k->call.out[0].data, *lse = k->call.out[1].data;
    int64_t from, n, seen = seen_width(x);
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from; r < from + n; r++) {
        const void *row = ku_cpu_at(x, r * k->width);
        lse[r] = k->cpu->ops->log_sum_exp(row, x->dtype, seen);
        if (is_ignored(k, target[r]))
            loss[r] = 0;
        else if (target[r] >= seen) /* the loader rejects such tokens: a NaN is visible */
            loss[r] = NAN;
        else
            loss[r] = (float)((double)lse[r] - smoothed_logit(k, row, x, target[r]));
        ku_pool_poll(k->cpu->pool, thread);
    }
}
static int check_xent(struct ku_kernel *k, const struct ku_view *x, const struct ku_view *target)
{
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "targets", target, KUMI_I32));
    if (x->shape.dim[x->shape.ndim - 1].count != x->logical[x->shape.ndim - 1])
        return KU_ERR(KUMI_EINVAL,
                      "device cpu: %s: logits are split along the vocabulary; gather "
                      "them first",
                      ku_ops[k->call.op].name);
    set_rows(k, x);
    k->per_tile = 4 * KU_CPU_TILE_COUNT / (k->width ? k->width : 1);
    k->per_tile = k->per_tile ? k->per_tile : 1;
    return KUMI_OK;
}
int ku_cpu_bind_softmax_xent(struct ku_kernel *k)
{
    KU_TRY(check_xent(k, &k->call.in[0], &k->call.in[1]));
    KU_TRY(ku_cpu_check(k, "loss", &k->call.out[0], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "log-sum-exp", &k->call.out[1], KUMI_F32));
    ku_cpu_phase(k, tile_softmax_xent, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

/* dlogits = dloss (softmax - smoothed one-hot target), in place if the memory planner chose so. */
static void tile_softmax_xent_dx(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[1], *dx = &k->call.out[0];
    const float *dloss = k->call.in[0].data, *lse = k->call.in[3].data;
    const int32_t *target = k->call.in[2].data;
    const size_t each = kumi_dtype_bytes(dx->dtype);
    int64_t from, n, seen = seen_width(x);
    const double s = k->attr.smoothing, each_class = s / (double)seen;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from; r < from + n; r++) {
        const void *row = ku_cpu_at(x, r * k->width);
        char *to = ku_cpu_at(dx, r * k->width);
        if (is_ignored(k, target[r])) {
            memset(to, 0, (size_t)k->width * each);
            continue;
        }
        double hit = 0;
        if (target[r] < seen) {
            double logit = ku_load_f64(row, x->dtype, target[r]);
            hit = (double)dloss[r] * (expm1(logit - (double)lse[r]) + (s - each_class));
        }
        k->cpu->ops->softmax_scaled(to, row, x->dtype, lse[r], dloss[r],
                                    (float)((double)dloss[r] * each_class), seen);
        memset(to + (size_t)seen * each, 0, (size_t)(k->width - seen) * each);
        if (target[r] < seen)
            ku_store_f64(to, dx->dtype, target[r], hit);
        ku_pool_poll(k->cpu->pool, thread);
    }
}
int ku_cpu_bind_softmax_xent_dx(struct ku_kernel *k)
{
    const struct ku_view *x = &k->call.in[1];
    KU_TRY(check_xent(k, x, &k->call.in[2]));
    KU_TRY(ku_cpu_check(k, "dloss", &k->call.in[0], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "log-sum-exp", &k->call.in[3], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "dlogits", &k->call.out[0], x->dtype));
    ku_cpu_phase(k, tile_softmax_xent_dx, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

static void tile_top_k(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0];
    const int32_t *target = k->call.in[1].data;
    const struct ku_isa_ops *ops = k->cpu->ops;
    float *hit = k->call.out[0].data;
    int64_t from, n, seen = seen_width(x);
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from; r < from + n; r++) {
        const int64_t t = target[r];
        hit[r] = 0;
        if (is_ignored(k, target[r]) || t >= seen)
            continue;
        float own = (float)ku_load_f64(ku_cpu_at(x, r * k->width), x->dtype, t);
        int64_t n_before = ops->n_above(ku_cpu_at(x, r * k->width), x->dtype, t, own, 1) +
                           ops->n_above(ku_cpu_at(x, r * k->width + t), x->dtype, seen - t, own, 0);
        hit[r] = own == own && n_before < k->attr.top;
        ku_pool_poll(k->cpu->pool, thread);
    }
}
int ku_cpu_bind_top_k(struct ku_kernel *k)
{
    KU_TRY(check_xent(k, &k->call.in[0], &k->call.in[1]));
    KU_TRY(ku_cpu_check(k, "hits", &k->call.out[0], KUMI_F32));
    ku_cpu_phase(k, tile_top_k, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}
