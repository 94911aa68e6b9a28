/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that copy: of decoding with a key-value cache, and parts. */
#include <string.h>

#include "device/ref/ref.h"

/* part: y = the elements of x at y's indices in the logical tensor */
void ku_ref_part(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0], *y = &c->out[0];
    const size_t each = kumi_dtype_bytes(y->dtype);
    for (int64_t i = 0; i < ku_ref_count(y); i++) {
        int64_t from = 0, rest = i, pitch = 1;
        for (int d = y->shape.ndim - 1; d >= 0; d--) {
            from += (rest % y->shape.dim[d].count + y->start[d] - x->start[d]) * pitch;
            rest /= y->shape.dim[d].count;
            pitch *= x->shape.dim[d].count;
        }
        memcpy((char *)y->data + (size_t)i * each, (const char *)x->data + (size_t)from * each,
               each);
        ku_ref_worked(poll, 1);
    }
}

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
