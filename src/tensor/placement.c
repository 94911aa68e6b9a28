/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/placement.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"

struct ku_layout ku_layout_all(enum ku_place_kind kind)
{
    struct ku_layout l = {0};
    for (int a = 0; a < KU_N_AXES; a++)
        l.at[a].kind = (uint8_t)kind;
    return l;
}

bool ku_layout_is_equal(const struct ku_layout *a, const struct ku_layout *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

struct ku_place ku_place_dual(struct ku_place p)
{
    KU_ASSERT(p.kind != KU_Z);
    if (p.kind == KU_R)
        p.kind = KU_P;
    else if (p.kind == KU_P)
        p.kind = KU_R;
    return p;
}

int ku_layout_axes(const struct ku_layout *l, enum ku_place_kind kind)
{
    int axes = 0;
    for (int a = 0; a < KU_N_AXES; a++)
        axes |= (l->at[a].kind == kind) << a;
    return axes;
}

bool ku_layout_has(const struct ku_layout *l, enum ku_place_kind kind)
{
    return ku_layout_axes(l, kind) != 0;
}

/* Whether tp and tpi split one dim: as an axis that has the ranks of both. */
static bool splits_as_one(const struct ku_layout *l)
{
    const struct ku_place outer = l->at[KU_AX_TP], inner = l->at[KU_AX_TPI];
    return outer.kind == KU_S && inner.kind == KU_S && outer.dim == inner.dim;
}

void ku_slice_of(const struct ku_mesh *mesh, const struct ku_shape *shape,
                 const struct ku_layout *layout, const struct ku_coord *coord, struct ku_slice *out)
{
    for (int d = 0; d < shape->ndim; d++) {
        out->start[d] = 0;
        out->count[d] = shape->dim[d].count;
    }
    const bool as_one = splits_as_one(layout);
    for (int a = 0; a < KU_N_AXES; a++) {
        if (layout->at[a].kind != KU_S || (as_one && a == KU_AX_TP))
            continue;
        int d = layout->at[a].dim;
        int64_t n = mesh->extent[a], i = coord->at[a];
        if (as_one && a == KU_AX_TPI) {
            i += n * coord->at[KU_AX_TP];
            n *= mesh->extent[KU_AX_TP];
        }
        int64_t each = out->count[d] / n, more = out->count[d] % n;
        out->start[d] += i * each + (i < more ? i : more);
        out->count[d] = each + (i < more);
    }
}

void ku_local_shape(const struct ku_mesh *mesh, const struct ku_shape *shape,
                    const struct ku_layout *layout, const struct ku_coord *coord,
                    struct ku_shape *out)
{
    struct ku_slice s;
    ku_slice_of(mesh, shape, layout, coord, &s);
    *out = *shape;
    for (int d = 0; d < shape->ndim; d++) {
        int64_t seen = shape->dim[d].seen - s.start[d];
        out->dim[d].count = s.count[d];
        out->dim[d].seen = seen < 0 ? 0 : seen < s.count[d] ? seen : s.count[d];
    }
}

struct ku_runs ku_runs_of_slice(int ndim, const int64_t *whole, const int64_t *start,
                                const int64_t *count)
{
    int64_t inner = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        if (count[d] != whole[d]) {
            struct ku_runs r = {count[d] * inner, whole[d] * inner, start[d] * inner};
            for (d--; d >= 0 && count[d] == 1; d--) {
                r.base += start[d] * r.pitch;
                r.pitch *= whole[d];
            }
            for (; d >= 0; d--)
                KU_ASSERT(count[d] == whole[d]);
            return r;
        }
        inner *= whole[d];
    }
    return (struct ku_runs){0};
}

struct ku_runs ku_runs_of(const struct ku_mesh *mesh, const struct ku_shape *shape,
                          const struct ku_layout *layout, const struct ku_coord *coord)
{
    struct ku_slice s;
    int64_t whole[KU_MAX_DIMS];
    ku_slice_of(mesh, shape, layout, coord, &s);
    for (int d = 0; d < shape->ndim; d++)
        whole[d] = shape->dim[d].count;
    return ku_runs_of_slice(shape->ndim, whole, s.start, s.count);
}

char *ku_layout_print(const struct ku_layout *l, const struct ku_shape *s, char *out, size_t bytes)
{
    static const char kind[] = "CRPSZ";
    size_t at = (size_t)snprintf(out, bytes, "{");
    int any = 0;
    for (int a = 0; a < KU_N_AXES && at < bytes; a++) {
        if (l->at[a].kind == KU_C)
            continue;
        at += (size_t)snprintf(out + at, bytes - at, "%s%s:%c", any ? " " : "", ku_axis_name(a),
                               kind[l->at[a].kind]);
        if (l->at[a].kind == KU_Z && l->at[a].dim && at < bytes)
            at += (size_t)snprintf(out + at, bytes - at, "(%d)", l->at[a].dim);
        if (l->at[a].kind == KU_S && at < bytes)
            at += (size_t)snprintf(out + at, bytes - at, "(%c)", s->dim[l->at[a].dim].name);
        any = 1;
    }
    if (at < bytes)
        snprintf(out + at, bytes - at, "}");
    return out;
}
