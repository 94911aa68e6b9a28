/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm: statistics down the columns of rows of channels; and count_up. */
#include <math.h>

#include "device/norm_channels.h"
#include "device/ref/ref.h"

/*
 * batch_norm_sums: n, sum x, sum x^2 per channel. The squares are computed about the mean, which
 * cancels less.
 */
void ku_ref_batch_norm_sums(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0];
    struct ku_ref_rows r = ku_ref_rows(x);
    for (int64_t j = 0; j < r.width; j++) {
        double sum = 0, rest = 0;
        for (int64_t i = 0; i < r.n; i++)
            sum += ku_ref_get(x, i * r.width + j);
        double mean = r.n ? sum / (double)r.n : 0;
        for (int64_t i = 0; i < r.n; i++) {
            double d = ku_ref_get(x, i * r.width + j) - mean;
            rest += d * d;
        }
        ku_ref_put(&c->out[0], j, (double)r.n);
        ku_ref_put(&c->out[0], r.width + j, sum);
        ku_ref_put(&c->out[0], 2 * r.width + j, rest + mean * sum);
        ku_ref_worked(poll, 2 * r.n);
    }
}

void ku_ref_batch_norm_moments(const struct ku_call *c, struct ku_ref_poll *poll)
{
    ku_norm_moments(c);
    ku_ref_worked(poll, 6 * c->in[0].shape.dim[1].count);
}

/* x rounded to a dtype, as f64. */
static double rounded(enum kumi_dtype dtype, double x)
{
    double bits = 0;
    ku_store_f64(&bits, dtype, 0, x);
    return ku_load_f64(&bits, dtype, 0);
}

/*
 * batch_norm: z = (x - mean) rstd gain + bias; y = act(z), or with r round(act(round(round(z) +
 * r))).
 */
void ku_ref_batch_norm(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0];
    enum kumi_dtype dtype = c->out[0].dtype;
    struct ku_ref_rows r = ku_ref_rows(x);
    for (int64_t i = 0; i < r.n; i++) {
        for (int64_t j = 0; j < r.width; j++) {
            double rstd = 1 / sqrt(ku_ref_get(&c->in[2], j) + c->attr->eps);
            double z = (ku_ref_get(x, i * r.width + j) - ku_ref_get(&c->in[1], j)) * rstd *
                           ku_ref_get(&c->in[3], j) +
                       ku_ref_get(&c->in[4], j);
            if (c->n_in > 5)
                z = rounded(dtype, rounded(dtype, z) + ku_ref_get(&c->in[5], i * r.width + j));
            ku_ref_put(&c->out[0], i * r.width + j, ku_ref_activate((int)c->attr->act, z));
        }
        ku_ref_worked(poll, 4 * r.width);
    }
}

/* dz: dy, with the mask of ReLU if its result y is an input. */
static double adjoint(const struct ku_call *c, int64_t i)
{
    double dy = ku_ref_get(&c->in[0], i);
    return c->n_in > 4 ? dy * ku_ref_slope(KU_ACT_RELU, ku_ref_get(&c->in[4], i)) : dy;
}

/* batch_norm_dsums: n, dbias = sum dz, dgain = sum dz (x - mean) rstd per channel. */
void ku_ref_batch_norm_dsums(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[1];
    struct ku_ref_rows r = ku_ref_rows(x);
    for (int64_t j = 0; j < r.width; j++) {
        double mean = ku_ref_get(&c->in[2], j), bias = 0, gain = 0;
        double rstd = 1 / sqrt(ku_ref_get(&c->in[3], j) + c->attr->eps);
        for (int64_t i = 0; i < r.n; i++) {
            double dz = adjoint(c, i * r.width + j);
            bias += dz;
            gain += dz * (ku_ref_get(x, i * r.width + j) - mean) * rstd;
        }
        ku_ref_put(&c->out[0], j, gain);
        ku_ref_put(&c->out[1], j, bias);
        ku_ref_put(&c->out[2], j, (double)r.n);
        ku_ref_put(&c->out[2], r.width + j, bias);
        ku_ref_put(&c->out[2], 2 * r.width + j, gain);
        ku_ref_worked(poll, 4 * r.n);
    }
    for (int64_t i = 0; c->n_out > 3 && i < r.n * r.width; i++)
        ku_ref_put(&c->out[3], i, adjoint(c, i));
}

/*
 * batch_norm_dx: dx = gain rstd (dz - sum dz / n - xhat sum(dz xhat) / n), with n and sums over
 * everything that the statistics cover.
 */
void ku_ref_batch_norm_dx(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[1], *sums = &c->in[5];
    struct ku_ref_rows r = ku_ref_rows(x);
    for (int64_t i = 0; i < r.n; i++) {
        for (int64_t j = 0; j < r.width; j++) {
            double rstd = 1 / sqrt(ku_ref_get(&c->in[3], j) + c->attr->eps);
            double xhat = (ku_ref_get(x, i * r.width + j) - ku_ref_get(&c->in[2], j)) * rstd;
            double n = ku_ref_get(sums, j);
            double g = ku_ref_get(sums, r.width + j) / n;
            double gx = ku_ref_get(sums, 2 * r.width + j) / n;
            ku_ref_put(&c->out[0], i * r.width + j,
                       ku_ref_get(&c->in[4], j) * rstd *
                           (ku_ref_get(&c->in[0], i * r.width + j) - g - xhat * gx));
        }
        ku_ref_worked(poll, 6 * r.width);
    }
}

void ku_ref_batch_norm_track(const struct ku_call *c, struct ku_ref_poll *poll)
{
    ku_norm_track(c);
    ku_ref_worked(poll, ku_ref_count(&c->in[2]));
}

/* count_up: x + the attribute `words` */
void ku_ref_count_up(const struct ku_call *c, struct ku_ref_poll *poll)
{
    int64_t n = ku_ref_count(&c->in[0]), *x = c->out[0].data;
    for (int64_t i = 0; i < n; i++)
        x[i] += c->attr->words;
    ku_ref_worked(poll, n);
}
