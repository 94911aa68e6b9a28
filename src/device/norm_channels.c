/* SPDX-License-Identifier: Apache-2.0 */
#include "device/norm_channels.h"

#include "tensor/dtype.h"

static double get(const struct ku_view *v, int64_t i)
{
    return ku_load_f64(v->data, v->dtype, i);
}
static void put(const struct ku_view *v, int64_t i, double x)
{
    ku_store_f64(v->data, v->dtype, i, x);
}

void ku_norm_moments(const struct ku_call *c)
{
    const struct ku_view *s = &c->in[0];
    int64_t width = s->shape.dim[1].count;
    for (int64_t j = 0; j < width; j++) {
        double n = get(s, j), mean = 0, var = 0;
        if (n > 0) {
            mean = get(s, width + j) / n;
            var = get(s, 2 * width + j) / n - mean * mean;
            var = var < 0 ? 0 : var; /* a NaN stays */
        }
        put(&c->out[0], j, mean);
        put(&c->out[1], j, var);
        put(&c->out[2], j, mean);
        put(&c->out[2], width + j, n > 1 ? var * (n / (n - 1)) : var);
    }
}

void ku_norm_track(const struct ku_call *c)
{
    const struct ku_view *concat = &c->in[2];
    int64_t n = ku_shape_count(&c->in[0].shape), first = c->in[0].start[0] - concat->start[2];
    int64_t k = concat->shape.dim[0].count, width = concat->shape.dim[2].count;
    for (int which = 0; which < 2; which++)
        for (int64_t j = 0; j < n; j++) {
            double running = get(&c->in[which], j);
            for (int64_t m = 0; m < k; m++) {
                double seen = get(concat, (2 * m + which) * width + first + j);
                running =
                    (1 - c->attr->momentum) * running + c->attr->momentum * (c->attr->scale * seen);
            }
            put(&c->out[which], j, running);
        }
}
