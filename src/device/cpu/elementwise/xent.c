/* SPDX-License-Identifier: Apache-2.0 */
/* Ops on logits: softmax cross-entropy, whole and of a slice of the classes, and top_k. */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "device/cpu/cpu.h"
#include "tensor/dtype.h"

/* A tile is about 64 Ki logits. */
static void set_rows(struct ku_kernel *k, const struct ku_view *x)
{
    k->width = x->shape.dim[x->shape.ndim - 1].count;
    k->count = ku_cpu_extent(&x->shape, 0, x->shape.ndim - 1);
    k->per_tile = 4 * KU_CPU_TILE_COUNT / (k->width ? k->width : 1);
    k->per_tile = k->per_tile ? k->per_tile : 1;
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
/* The first class of a slice, and the number of classes of all slices. */
static int64_t first_class(const struct ku_view *x)
{
    return x->start[x->shape.ndim - 1];
}
static int64_t n_classes(const struct ku_kernel *k, const struct ku_view *x)
{
    return k->attr.rows_seen ? k->attr.rows_seen : seen_width(x);
}

static int check_xent(struct ku_kernel *k, const struct ku_view *x, const struct ku_view *target)
{
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "targets", target, KUMI_I32));
    set_rows(k, x);
    return KUMI_OK;
}
static int check_whole(struct ku_kernel *k, const struct ku_view *x, const struct ku_view *target)
{
    KU_TRY(check_xent(k, x, target));
    if (x->shape.dim[x->shape.ndim - 1].count != x->logical[x->shape.ndim - 1])
        return KU_ERR(KUMI_EINVAL,
                      "device cpu: %s: logits are split along the vocabulary; gather "
                      "them first",
                      ku_ops[k->call.op].name);
    return KUMI_OK;
}
int ku_cpu_bind_softmax_xent(struct ku_kernel *k)
{
    KU_TRY(check_whole(k, &k->call.in[0], &k->call.in[1]));
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
    const int64_t seen = seen_width(x), first = first_class(x);
    const double s = k->attr.smoothing, each_class = s / (double)n_classes(k, x);
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from; r < from + n; r++) {
        const void *row = ku_cpu_at(x, r * k->width);
        char *to = ku_cpu_at(dx, r * k->width);
        if (is_ignored(k, target[r])) {
            memset(to, 0, (size_t)k->width * each);
            continue;
        }
        const int64_t own = target[r] - first;
        const bool has_own = own >= 0 && own < seen;
        double hit = 0;
        if (has_own) {
            double logit = ku_load_f64(row, x->dtype, own);
            hit = (double)dloss[r] * (expm1(logit - (double)lse[r]) + (s - each_class));
        }
        k->cpu->ops->softmax_scaled(to, row, x->dtype, lse[r], dloss[r],
                                    (float)((double)dloss[r] * each_class), seen);
        memset(to + (size_t)seen * each, 0, (size_t)(k->width - seen) * each);
        if (has_own)
            ku_store_f64(to, dx->dtype, own, hit);
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

static void tile_xent_max(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0];
    float *max = k->call.out[0].data;
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from; r < from + n; r++) {
        max[r] = k->cpu->ops->row_max(ku_cpu_at(x, r * k->width), x->dtype, seen_width(x));
        ku_pool_poll(k->cpu->pool, thread);
    }
}
int ku_cpu_bind_xent_max(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "max", &k->call.out[0], KUMI_F32));
    set_rows(k, &k->call.in[0]);
    ku_cpu_phase(k, tile_xent_max, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

/* A sum of n f64 slices (op/slices.h), of which slice s is the next. */
static void add_slice(double *node, int64_t n, int64_t s, double sum)
{
    int at = ku_slices_node(s);
    node[at] = sum;
    for (int f = ku_slices_folds(n, s); f > 0; f--, at--)
        node[at - 1] += node[at];
}
static void tile_xent_sums(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0];
    const struct ku_isa_ops *ops = k->cpu->ops;
    const float *max = k->call.in[1].data;
    const int32_t *target = k->call.in[2].data;
    double *sums = k->call.out[0].data, exps[KU_SLICES_LEVELS] = {0}, all[KU_SLICES_LEVELS] = {0};
    const int64_t seen = seen_width(x), each = k->width / k->n_slices;
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from; r < from + n; r++) {
        const int64_t own = target[r] - first_class(x);
        for (int64_t s = 0; s < k->n_slices; s++) {
            const void *part = ku_cpu_at(x, r * k->width + s * each);
            const int64_t left = seen - s * each, width = left < 0 ? 0 : left < each ? left : each;
            add_slice(exps, k->n_slices, s, ops->exp_sum(part, x->dtype, max[r], width));
            add_slice(all, k->n_slices, s,
                      k->attr.smoothing != 0 ? ops->sum(part, x->dtype, width) : 0);
        }
        sums[3 * r] = exps[0];
        sums[3 * r + 1] =
            own >= 0 && own < seen ? ku_load_f64(ku_cpu_at(x, r * k->width), x->dtype, own) : 0;
        sums[3 * r + 2] = all[0];
        ku_pool_poll(k->cpu->pool, thread);
    }
}
int ku_cpu_bind_xent_sums(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check_float(k, "logits", &k->call.in[0]));
    KU_TRY(ku_cpu_check(k, "max", &k->call.in[1], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "targets", &k->call.in[2], KUMI_I32));
    KU_TRY(ku_cpu_check(k, "sums", &k->call.out[0], KUMI_F64));
    struct ku_slices slices;
    KU_TRY(ku_slices_of_last(&k->attr, &k->call.in[0].shape, &slices));
    k->n_slices = slices.n;
    set_rows(k, &k->call.in[0]);
    ku_cpu_phase(k, tile_xent_sums, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

static void tile_xent_finish(const struct ku_kernel *k, int64_t tile, int thread)
{
    const float *max = k->call.in[1].data;
    const double *sums = k->call.in[2].data;
    const int32_t *target = k->call.in[3].data;
    const int64_t classes = n_classes(k, &k->call.in[0]);
    const double s = k->attr.smoothing;
    float *loss = k->call.out[0].data, *lse = k->call.out[1].data;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t r = from; r < from + n; r++) {
        const double all = (double)max[r] + log(sums[3 * r]);
        lse[r] = (float)all;
        if (is_ignored(k, target[r]))
            loss[r] = 0;
        else if (target[r] >= classes)
            loss[r] = NAN;
        else
            loss[r] = (float)(all - (1 - s) * sums[3 * r + 1] -
                              (s != 0 ? s * sums[3 * r + 2] / (double)classes : 0));
    }
}
int ku_cpu_bind_xent_finish(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check(k, "max", &k->call.in[1], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "sums", &k->call.in[2], KUMI_F64));
    KU_TRY(ku_cpu_check(k, "targets", &k->call.in[3], KUMI_I32));
    KU_TRY(ku_cpu_check(k, "loss", &k->call.out[0], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "log-sum-exp", &k->call.out[1], KUMI_F32));
    k->count = ku_cpu_count(&k->call.in[3]);
    k->per_tile = KU_CPU_TILE_COUNT / 4;
    ku_cpu_phase(k, tile_xent_finish, ku_cpu_tiles(k->count, k->per_tile));
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
    KU_TRY(check_whole(k, &k->call.in[0], &k->call.in[1]));
    KU_TRY(ku_cpu_check(k, "hits", &k->call.out[0], KUMI_F32));
    ku_cpu_phase(k, tile_top_k, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}
