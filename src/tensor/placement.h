/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TENSOR_PLACEMENT_H
#define KU_TENSOR_PLACEMENT_H

#include <stdbool.h>

#include "tensor/mesh.h"

/*
 * Placement of a value: for each mesh axis, how the ranks along it hold the tensor (as DTensor's
 * placements in PyTorch).
 *
 *   C     common: equal on all ranks, its gradient is complete
 *   R     replicated: equal on all ranks, its gradient is a partial sum
 *   P     partial sum: the value is the sum over the ranks
 *   S(d)  split along dim d
 *   Z     canonical chunks of the flattened tensor (ZeRO; only after autodiff)
 *   Z(g)  the same; each group of g neighbours on the axis holds all chunks
 *
 * Placement of the gradient (dual): C <-> C, R <-> P, S <-> S. Splits along one dim nest, outermost
 * axis first; tp and tpi split a dim as one axis of tp * tpi ranks. Z partitions what the splits
 * leave.
 *
 *     x [n=8 c=4] {shard:S(n) tp:S(c)}, shard=2, tp=2        rank (shard, tp)
 *               c 0 1     c 2 3
 *     n 0..3  | (0,0)  |  (0,1)  |
 *     n 4..7  | (1,0)  |  (1,1)  |
 */
enum ku_place_kind { KU_C, KU_R, KU_P, KU_S, KU_Z };
struct ku_place {
    /* dim: for S the index in the shape; for Z the group size g, 0 = the whole axis */
    uint16_t kind, dim;
};
struct ku_layout {
    struct ku_place at[KU_N_AXES];
};

enum { KU_BLOCK_COUNT = 4096 /* elements of a canonical chunk: 16 KiB of f32 */ };

struct ku_layout ku_layout_all(enum ku_place_kind kind); /* `kind` on every axis; not for S */
bool ku_layout_is_equal(const struct ku_layout *a, const struct ku_layout *b);
struct ku_place ku_place_dual(struct ku_place p);
bool ku_layout_has(const struct ku_layout *l, enum ku_place_kind kind); /* on any axis */
int ku_layout_axes(const struct ku_layout *l, enum ku_place_kind kind); /* on which, as a mask */

/*
 * The slice of a logical tensor at a coordinate: start and count per dim. Z is ignored (see
 * tensor/blocks.h). If a count is not divisible, the first slices get one element more.
 */
struct ku_slice {
    int64_t start[KU_MAX_DIMS], count[KU_MAX_DIMS];
};
void ku_slice_of(const struct ku_mesh *mesh, const struct ku_shape *shape,
                 const struct ku_layout *layout, const struct ku_coord *coord,
                 struct ku_slice *out);
/* The local shape: the counts of ku_slice_of with the logical names. */
void ku_local_shape(const struct ku_mesh *mesh, const struct ku_shape *shape,
                    const struct ku_layout *layout, const struct ku_coord *coord,
                    struct ku_shape *out);

/*
 * The elements of a slice that is cut along one dim, flattened: element j of the slice is element
 * base + j / run * pitch + j % run of the tensor. run 0: the slice is the tensor.
 */
struct ku_runs {
    int64_t run, pitch, base;
};
static inline int64_t ku_runs_at(const struct ku_runs *r, int64_t j)
{
    return r->run ? r->base + j / r->run * r->pitch + j % r->run : j;
}
/* The runs of a slice. Of two dims that are cut, the outer one has one index left and the other
 * follows it: one key head and some of its query heads. */
struct ku_runs ku_runs_of(const struct ku_mesh *mesh, const struct ku_shape *shape,
                          const struct ku_layout *layout, const struct ku_coord *coord);

/* The same by the extents of the tensor and the indices of the slice; [ndim]. */
struct ku_runs ku_runs_of_slice(int ndim, const int64_t *whole, const int64_t *start,
                                const int64_t *count);

/* Prints "{replicate:S(n) vs:S(n) mb:S(n)}"; axes with C are left out. */
char *ku_layout_print(const struct ku_layout *l, const struct ku_shape *s, char *out, size_t bytes);

#endif
