/* SPDX-License-Identifier: Apache-2.0 */
#include "op/slices.h"

#include "base/err.h"

static int check(const struct ku_attrs *a, const struct ku_dim *dim)
{
    const int64_t n = a->slices;
    if (n < 1 || n > KU_MAX_SLICES || dim->count % n)
        return KU_ERR(KUMI_EINVAL,
                      "op: slices=%lld of dim %c with %lld elements: give a number up to %d that "
                      "divides them",
                      (long long)n, dim->name, (long long)dim->count, KU_MAX_SLICES);
    return KUMI_OK;
}

int ku_slices_of(int op, const struct ku_attrs *a, const struct ku_shape *weight,
                 struct ku_slices *out)
{
    const int k = (int)a->contract, f = (int)a->outs, at = (int)a->slice_dim;
    const bool is_dx = op == KU_OP_linear_dx;
    const int n = is_dx ? f : k, first = is_dx == (a->trans != 0) ? 0 : is_dx ? k : f;
    *out = (struct ku_slices){0};
    if (a->slices == 0 || at < first || at >= first + n)
        return KUMI_OK;
    KU_TRY(check(a, &weight->dim[at]));
    struct ku_slices s = {a->slices, 1, weight->dim[at].count / a->slices};
    for (int d = first; d < at; d++)
        s.outer *= weight->dim[d].count;
    for (int d = at + 1; d < first + n; d++)
        s.run *= weight->dim[d].count;
    if (s.outer * s.run > 0) /* nothing to add */
        *out = s;
    return KUMI_OK;
}

int ku_slices_of_last(const struct ku_attrs *a, const struct ku_shape *x, struct ku_slices *out)
{
    const struct ku_dim *dim = &x->dim[x->ndim - 1];
    *out = (struct ku_slices){1, 1, dim->count};
    if (a->slices == 0)
        return KUMI_OK;
    KU_TRY(check(a, dim));
    *out = (struct ku_slices){a->slices, 1, dim->count / a->slices};
    return KUMI_OK;
}

int ku_slices_of_tokens(int op, const struct ku_attrs *a, const struct ku_shape *dy,
                        struct ku_slices *out)
{
    const bool is_db = op == KU_OP_linear_db;
    const bool is_whole = a->trans ? a->slice_dim >= a->outs : a->slice_dim < a->contract;
    const int at = dy->ndim - 1 - (is_db ? (int)a->outs : 1);
    *out = (struct ku_slices){0};
    if (a->slices == 0 || (is_db && !is_whole) || at < 0 || dy->dim[at].name != 't' ||
        dy->dim[at].count % a->slices)
        return KUMI_OK;
    KU_TRY(check(a, &dy->dim[at]));
    struct ku_slices s = {a->slices, 1, dy->dim[at].count / a->slices};
    for (int d = 0; d < at; d++)
        s.outer *= dy->dim[d].count;
    if (s.outer * s.run > 0)
        *out = s;
    return KUMI_OK;
}

int64_t ku_slices_chunk(int64_t run)
{
    int64_t chunk = KU_BLOCK_COUNT;
    while (chunk > 1 && run % chunk)
        chunk /= 2;
    return chunk;
}
