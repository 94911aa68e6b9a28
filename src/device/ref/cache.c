/* SPDX-License-Identifier: Apache-2.0 */
/* Ops of decoding with a key-value cache. */
#include "device/ref/ref.h"

/* pick: y[n, t, ..] = x[n, t, index, ..] */
void ku_ref_pick(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0];
    int64_t parts = x->shape.dim[2].count, width = ku_ref_extent(x, 3, x->shape.ndim);
    for (int64_t i = 0; i < ku_ref_count(&c->out[0]); i++) {
        int64_t row = i / width * parts + c->attr->index;
        ku_ref_put(&c->out[0], i, ku_ref_get(x, row * width + i % width));
        ku_ref_worked(poll, 1);
    }
}

/* cache_write: cache[n, h, position[n] + i, d] = x[n, i, h, d]; positions outside are skipped */
void ku_ref_cache_write(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[1], *cache = &c->out[0];
    const int32_t *position = c->in[2].data;
    const int64_t n_t = x->shape.dim[1].count, n_h = x->shape.dim[2].count;
    const int64_t width = x->shape.dim[3].count, places = cache->shape.dim[2].count;
    for (int64_t i = 0; i < ku_ref_count(x); i++) {
        int64_t h = i / width % n_h, t = i / width / n_h % n_t, n = i / width / n_h / n_t;
        int64_t at = position[n] + t;
        if (at >= 0 && at < places)
            ku_ref_put(cache, ((n * n_h + h) * places + at) * width + i % width, ku_ref_get(x, i));
        ku_ref_worked(poll, 1);
    }
}
