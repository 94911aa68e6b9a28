/* SPDX-License-Identifier: Apache-2.0 */
/* Ops on rows of the last dim: layer norm, RMS norm, softmax cross-entropy, top_k. */
#include <math.h>

#include "device/ref/ref.h"

/*
 * layer_norm, over rows of c elements; mean and rstd are rounded only when saved:
 *
 *     mean = sum_j x[j] / c
 *     var  = sum_j (x[j] - mean)^2 / c           (biased)
 *     rstd = 1 / sqrt(var + eps)
 *     y[j] = (x[j] - mean) rstd gain[j] + bias[j]
 */
void ku_ref_layer_norm(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0];
    struct ku_ref_rows r = ku_ref_rows(x);
    for (int64_t i = 0; i < r.n; i++) {
        double sum = 0, squares = 0;
        for (int64_t j = 0; j < r.width; j++)
            sum += ku_ref_get(x, i * r.width + j);
        double mean = sum / (double)r.width;
        for (int64_t j = 0; j < r.width; j++) {
            double d = ku_ref_get(x, i * r.width + j) - mean;
            squares += d * d;
        }
        double rstd = 1 / sqrt(squares / (double)r.width + c->attr->eps);
        for (int64_t j = 0; j < r.width; j++)
            ku_ref_put(&c->out[0], i * r.width + j,
                       (ku_ref_get(x, i * r.width + j) - mean) * rstd * ku_ref_get(&c->in[1], j) +
                           ku_ref_get(&c->in[2], j));
        ku_ref_put(&c->out[1], i, mean);
        ku_ref_put(&c->out[2], i, rstd);
        ku_ref_worked(poll, 3 * r.width);
    }
}

/*
 * layer_norm_dx: with xhat = (x - mean) rstd from the saved mean and rstd, and g = dy gain,
 *
 *     dx[j] = rstd (g[j] - sum g / c - xhat[j] sum(g xhat) / c)
 */
void ku_ref_layer_norm_dx(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *dy = &c->in[0], *x = &c->in[1], *gain = &c->in[2];
    struct ku_ref_rows r = ku_ref_rows(x);
    for (int64_t i = 0; i < r.n; i++) {
        double mean = ku_ref_get(&c->in[3], i), rstd = ku_ref_get(&c->in[4], i), g = 0, gx = 0;
        for (int64_t j = 0; j < r.width; j++) {
            double each = ku_ref_get(dy, i * r.width + j) * ku_ref_get(gain, j);
            g += each;
            gx += each * (ku_ref_get(x, i * r.width + j) - mean) * rstd;
        }
        g /= (double)r.width;
        gx /= (double)r.width;
        for (int64_t j = 0; j < r.width; j++) {
            double xhat = (ku_ref_get(x, i * r.width + j) - mean) * rstd;
            double each = ku_ref_get(dy, i * r.width + j) * ku_ref_get(gain, j);
            ku_ref_put(&c->out[0], i * r.width + j, rstd * (each - g - xhat * gx));
        }
        ku_ref_worked(poll, 6 * r.width);
    }
}

static double adjoint_at(const struct ku_call *c, int64_t row, int64_t j)
{
    return ku_ref_get(&c->in[0], row * ku_ref_rows(&c->in[0]).width + j);
}
/* layer_norm_dgb: dgain[j] = sum_rows dy[j] (x[j] - mean) rstd, dbias[j] = sum_rows dy[j] */
static double layer_norm_gain(const struct ku_call *c, int64_t row, int64_t j)
{
    const double x = ku_ref_get(&c->in[1], row * ku_ref_rows(&c->in[1]).width + j);
    return adjoint_at(c, row, j) * (x - ku_ref_get(&c->in[2], row)) * ku_ref_get(&c->in[3], row);
}
void ku_ref_layer_norm_dgb(const struct ku_call *c, struct ku_ref_poll *poll)
{
    struct ku_ref_rows r = ku_ref_rows(&c->in[1]);
    for (int64_t j = 0; j < r.width; j++) {
        ku_ref_result(c, 0, j, ku_ref_sum_rows(c, r.n, j, layer_norm_gain));
        ku_ref_result(c, 1, j, ku_ref_sum_rows(c, r.n, j, adjoint_at));
        ku_ref_worked(poll, 4 * r.n);
    }
}

/* rms_norm: rstd = 1 / sqrt(sum_j x[j]^2 / c + eps), y[j] = x[j] rstd gain[j] */
void ku_ref_rms_norm(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0];
    struct ku_ref_rows r = ku_ref_rows(x);
    for (int64_t i = 0; i < r.n; i++) {
        double squares = 0;
        for (int64_t j = 0; j < r.width; j++)
            squares += ku_ref_get(x, i * r.width + j) * ku_ref_get(x, i * r.width + j);
        double rstd = 1 / sqrt(squares / (double)r.width + c->attr->eps);
        for (int64_t j = 0; j < r.width; j++)
            ku_ref_put(&c->out[0], i * r.width + j,
                       ku_ref_get(x, i * r.width + j) * rstd * ku_ref_get(&c->in[1], j));
        ku_ref_put(&c->out[1], i, rstd);
        ku_ref_worked(poll, 2 * r.width);
    }
}

/* rms_norm_dx: with xhat = x rstd and g = dy gain, dx[j] = rstd (g[j] - xhat[j] sum(g xhat) / c) */
void ku_ref_rms_norm_dx(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *dy = &c->in[0], *x = &c->in[1], *gain = &c->in[2];
    struct ku_ref_rows r = ku_ref_rows(x);
    for (int64_t i = 0; i < r.n; i++) {
        double rstd = ku_ref_get(&c->in[3], i), gx = 0;
        for (int64_t j = 0; j < r.width; j++)
            gx += ku_ref_get(dy, i * r.width + j) * ku_ref_get(gain, j) *
                  ku_ref_get(x, i * r.width + j) * rstd;
        gx /= (double)r.width;
        for (int64_t j = 0; j < r.width; j++)
            ku_ref_put(&c->out[0], i * r.width + j,
                       rstd * (ku_ref_get(dy, i * r.width + j) * ku_ref_get(gain, j) -
                               ku_ref_get(x, i * r.width + j) * rstd * gx));
        ku_ref_worked(poll, 5 * r.width);
    }
}

/* rms_norm_dg: dgain[j] = sum_rows dy[j] x[j] rstd */
static double rms_norm_gain(const struct ku_call *c, int64_t row, int64_t j)
{
    const double x = ku_ref_get(&c->in[1], row * ku_ref_rows(&c->in[1]).width + j);
    return adjoint_at(c, row, j) * x * ku_ref_get(&c->in[2], row);
}
void ku_ref_rms_norm_dg(const struct ku_call *c, struct ku_ref_poll *poll)
{
    struct ku_ref_rows r = ku_ref_rows(&c->in[1]);
    for (int64_t j = 0; j < r.width; j++) {
        ku_ref_result(c, 0, j, ku_ref_sum_rows(c, r.n, j, rms_norm_gain));
        ku_ref_worked(poll, 3 * r.n);
    }
}

/*
 * softmax_xent, over the logits without padding, with label smoothing s:
 *
 *     lse  = log sum_j e^x[j]
 *     loss = lse - (1 - s) x[target] - s sum_j x[j] / seen
 *
 * 0 where the target is ignored; NaN where it is not below the extent without padding (`seen`);
 * loaders reject such targets.
 */
void ku_ref_softmax_xent(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0];
    const int32_t *target = c->in[1].data;
    struct ku_ref_rows r = ku_ref_rows(x);
    int64_t seen = x->shape.dim[x->shape.ndim - 1].seen;
    const double s = c->attr->smoothing;
    for (int64_t i = 0; i < r.n; i++) {
        double most = (double)-INFINITY, sum = 0, all = 0;
        for (int64_t j = 0; j < seen; j++) {
            double each = ku_ref_get(x, i * r.width + j);
            most = each > most ? each : most;
            all += each;
        }
        for (int64_t j = 0; j < seen; j++)
            sum += exp(ku_ref_get(x, i * r.width + j) - most);
        double lse = most + log(sum), loss = 0;
        if (ku_ref_is_valid(c, target[i]))
            loss = target[i] < seen ? lse - ku_ref_get(x, i * r.width + target[i]) : (double)NAN;
        if (s != 0 && ku_ref_is_valid(c, target[i]))
            loss = (1 - s) * loss + s * (lse - all / (double)seen);
        ku_ref_put(&c->out[0], i, loss);
        ku_ref_put(&c->out[1], i, lse);
        ku_ref_worked(poll, 2 * r.width);
    }
}

/* xent_max: the greatest logit without padding; -inf if there is none. A NaN reaches the sums. */
void ku_ref_xent_max(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0];
    struct ku_ref_rows r = ku_ref_rows(x);
    int64_t seen = x->shape.dim[x->shape.ndim - 1].seen;
    for (int64_t i = 0; i < r.n; i++) {
        double most = (double)-INFINITY;
        for (int64_t j = 0; j < seen; j++) {
            double each = ku_ref_get(x, i * r.width + j);
            most = each > most ? each : most;
        }
        ku_ref_put(&c->out[0], i, most);
        ku_ref_worked(poll, r.width);
    }
}

/* xent_sums, over the logits without padding: sum e^(x[j] - max), x[target] or 0, sum x[j] or 0 */
void ku_ref_xent_sums(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0];
    const int32_t *target = c->in[2].data;
    struct ku_ref_rows r = ku_ref_rows(x);
    struct ku_slices s;
    const int status = ku_slices_of_last(c->attr, &x->shape, &s);
    int64_t seen = x->shape.dim[x->shape.ndim - 1].seen, start = x->start[x->shape.ndim - 1];
    KU_ASSERT(status == KUMI_OK); /* check() of ref.c */
    for (int64_t i = 0; i < r.n; i++) {
        struct ku_ref_tree sums = {.dtype = KUMI_F64, .n_slices = s.n}, totals = sums;
        int64_t own = target[i] - start;
        for (int64_t slice = 0; slice < s.n; slice++) {
            double sum = 0, all = 0;
            for (int64_t j = slice * s.run; j < seen && j < (slice + 1) * s.run; j++) {
                double each = ku_ref_get(x, i * r.width + j);
                sum += exp(each - ku_ref_get(&c->in[1], i));
                all += each;
            }
            ku_ref_tree_add(&sums, sum);
            ku_ref_tree_add(&totals, all);
        }
        ku_ref_put(&c->out[0], 3 * i, sums.node[0]);
        ku_ref_put(&c->out[0], 3 * i + 1,
                   own >= 0 && own < seen ? ku_ref_get(x, i * r.width + own) : 0);
        ku_ref_put(&c->out[0], 3 * i + 2, c->attr->smoothing != 0 ? totals.node[0] : 0);
        ku_ref_worked(poll, 2 * r.width);
    }
}

/* xent_finish: lse = max + log(sums[0]), then softmax_xent with x[target] and sum x from sums */
void ku_ref_xent_finish(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0];
    const int32_t *target = c->in[3].data;
    const int64_t own = x->shape.dim[x->shape.ndim - 1].seen;
    const int64_t seen = c->attr->rows_seen ? c->attr->rows_seen : own;
    const double s = c->attr->smoothing;
    for (int64_t i = 0; i < ku_ref_count(&c->in[1]); i++) {
        double lse = ku_ref_get(&c->in[1], i) + log(ku_ref_get(&c->in[2], 3 * i)), loss = 0;
        if (ku_ref_is_valid(c, target[i]))
            loss = target[i] < seen ? lse - ku_ref_get(&c->in[2], 3 * i + 1) : (double)NAN;
        if (s != 0 && ku_ref_is_valid(c, target[i]))
            loss = (1 - s) * loss + s * (lse - ku_ref_get(&c->in[2], 3 * i + 2) / (double)seen);
        ku_ref_put(&c->out[0], i, loss);
        ku_ref_put(&c->out[1], i, lse);
        ku_ref_worked(poll, 3);
    }
}

/*
 * softmax_xent_dx: dx[j] = dloss (e^(x[j] - lse) - (1 - s) [j = target] - s / seen); 0 for ignored
 * targets and in padding. Of a slice of the classes, seen is that of all (attr rows_seen).
 */
void ku_ref_softmax_xent_dx(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[1];
    const int32_t *target = c->in[2].data;
    struct ku_ref_rows r = ku_ref_rows(x);
    int64_t seen = x->shape.dim[x->shape.ndim - 1].seen, start = x->start[x->shape.ndim - 1];
    const double s = c->attr->smoothing;
    const double classes = (double)(c->attr->rows_seen ? c->attr->rows_seen : seen);
    for (int64_t i = 0; i < r.n; i++) {
        double dloss = ku_ref_get(&c->in[0], i), lse = ku_ref_get(&c->in[3], i);
        for (int64_t j = 0; j < r.width; j++) {
            double dx = 0, log_p = ku_ref_get(x, i * r.width + j) - lse;
            if (j < seen && ku_ref_is_valid(c, target[i]))
                dx = dloss *
                     ((start + j == target[i] ? expm1(log_p) + s : exp(log_p)) - s / classes);
            ku_ref_put(&c->out[0], i * r.width + j, dx);
        }
        ku_ref_worked(poll, r.width);
    }
}

/*
 * top_k: 1 where fewer than `top` of the logits without padding rank before the target's: greater,
 * or equal with a lower index. 0 where the target is ignored or out of range, or its logit is NaN;
 * other NaN logits rank before none.
 */
void ku_ref_top_k(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0];
    const int32_t *target = c->in[1].data;
    struct ku_ref_rows r = ku_ref_rows(x);
    int64_t seen = x->shape.dim[x->shape.ndim - 1].seen;
    for (int64_t i = 0; i < r.n; i++) {
        int64_t t = target[i], n_before = 0;
        int is_hit = ku_ref_is_valid(c, target[i]) && t < seen;
        double own = is_hit ? ku_ref_get(x, i * r.width + t) : 0;
        for (int64_t j = 0; is_hit && j < seen; j++) {
            double each = ku_ref_get(x, i * r.width + j);
            n_before += each > own || (each == own && j < t);
        }
        ku_ref_put(&c->out[0], i, is_hit && !isnan(own) && n_before < c->attr->top);
        ku_ref_worked(poll, r.width);
    }
}
