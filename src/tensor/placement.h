/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TENSOR_PLACEMENT_H
#define KU_TENSOR_PLACEMENT_H

#include "tensor/mesh.h"

/*
 * What one mesh axis does to a value. C common: equal on all, the adjoint complete. R replicated:
 * equal on all, the adjoint partial. P: a partial sum. S: split along a dim. Z: canonical blocks of
 * the flattened tensor (after autodiff only); Z(g): each g neighbours on the axis hold them all.
 * Duals: C <-> C, R <-> P, S <-> S. S cuts nest outermost axis first; Z cuts what S left.
 */
enum ku_place_kind { KU_C, KU_R, KU_P, KU_S, KU_Z };
struct ku_place {
    uint16_t kind, dim; /* dim: of S, the index in the shape; of Z, g, 0 = the axis */
};
struct ku_layout {
    struct ku_place at[KU_N_AXES];
};

enum { KU_BLOCK_COUNT = 4096 /* elements of a canonical block: 16 KiB of f32 */ };

struct ku_layout ku_layout_all(enum ku_place_kind kind); /* kind on every axis (not S) */
int ku_layout_is_equal(const struct ku_layout *a, const struct ku_layout *b);
struct ku_place ku_place_dual(struct ku_place p);
int ku_layout_has(const struct ku_layout *l, enum ku_place_kind kind); /* on any axis */

/*
 * The part of a logical tensor that a coordinate holds: start and count per dim. Z is not looked at
 * (see tensor/blocks.h). Uneven cuts give the first parts one more.
 */
struct ku_slice {
    int64_t start[KU_MAX_DIMS], count[KU_MAX_DIMS];
};
void ku_slice_of(const struct ku_mesh *mesh, const struct ku_shape *shape,
                 const struct ku_layout *layout, const struct ku_coord *coord,
                 struct ku_slice *out);
/* The local shape: ku_slice_of's counts under the logical names. */
void ku_local_shape(const struct ku_mesh *mesh, const struct ku_shape *shape,
                    const struct ku_layout *layout, const struct ku_coord *coord,
                    struct ku_shape *out);

/* "{replicate:S(n) vs:S(n) mb:S(n)}": axes that are C are left out. */
char *ku_layout_print(const struct ku_layout *l, const struct ku_shape *s, char *out, size_t bytes);

#endif
