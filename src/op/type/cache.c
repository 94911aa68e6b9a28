/* SPDX-License-Identifier: Apache-2.0 */
/* Type inference of the ops on key/value caches. */
#include "op/type.h"

static bool is_same_dim(const struct ku_shape *a, int i, const struct ku_shape *b, int j)
{
    return a->dim[i].count == b->dim[j].count && a->dim[i].name == b->dim[j].name;
}

ku_infer_fn ku_infer_pick;
int ku_infer_pick(const struct ku_attrs *a, int n_in, const struct ku_type *in, struct ku_type *out)
{
    (void)n_in;
    const struct ku_shape *x = &in[0].shape;
    if (x->ndim < 3 || a->index < 0 || a->index >= x->dim[2].count)
        return misfit("pick", "takes x [samples, tokens, parts, ..] and the index of a part",
                      &in[0]);
    out[0] = in[0];
    for (int d = 3; d < x->ndim; d++)
        out[0].shape.dim[d - 1] = x->dim[d];
    out[0].shape.ndim--;
    out[0].shape.dim[out[0].shape.ndim] = (struct ku_dim){0};
    return KUMI_OK;
}

ku_infer_fn ku_infer_cache_write;
int ku_infer_cache_write(const struct ku_attrs *a, int n_in, const struct ku_type *in,
                         struct ku_type *out)
{
    (void)a, (void)n_in;
    const struct ku_shape *cache = &in[0].shape, *x = &in[1].shape, *at = &in[2].shape;
    if (cache->ndim != 4 || x->ndim != 4 || in[1].dtype != in[0].dtype ||
        !is_same_dim(x, 0, cache, 0) || !is_same_dim(x, 2, cache, 1) ||
        !is_same_dim(x, 3, cache, 3))
        return misfit("cache_write",
                      "takes [samples, tokens, heads, width] for a cache [samples, heads, places, "
                      "width] of its dtype",
                      &in[1]);
    if (in[2].dtype != KUMI_I32 || at->ndim != 1 || !is_same_dim(at, 0, cache, 0))
        return misfit("cache_write", "positions are i32 [samples]", &in[2]);
    out[0] = in[0];
    return KUMI_OK;
}
