/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_SLICES_H
#define KU_OP_SLICES_H

#include "op/op.h"

/*
 * A sum in slices (attr slices), so that its bits do not depend on the number of ranks that divide
 * it. Each slice is a sum of its own, in f32 (f64 where the result is f64); the slices' sums add up
 * by the neighbour tree of comm/tree.h, (0,1), (2,3), .., then pairs of pairs, an odd one carried
 * up. A rank of axis tp has n of all slices, a power of two or all, and the collective adds the
 * upper levels of the same tree. Bias, activation and rounding follow the whole sum.
 *
 *     7 slices on one rank         ((0 + 1) + (2 + 3)) + ((4 + 5) + 6)
 *     6 slices on one rank         ((0 + 1) + (2 + 3)) + (4 + 5)
 *     6 slices on three ranks       (0 + 1) | (2 + 3)  |  (4 + 5)        | the collective adds
 *
 * A contraction over several dims is [outer][n][run]: slice s has `outer` runs of `run` elements,
 * run o from element (o n + s) run on. Of qkv [3,h,d] split along h in 2 slices:
 *
 *     q0 q1 k0 k1 v0 v1      slice 0: q0 k0 v0, slice 1: q1 k1 v1
 */
struct ku_slices {
    int64_t n, outer, run;
};

enum { KU_MAX_SLICES = 128, KU_SLICES_LEVELS = 8 /* sums at once */ };
_Static_assert(1 << (KU_SLICES_LEVELS - 1) == KU_MAX_SLICES, "a level for every power of two");

/*
 * The tree as slices come in order: the sum of slice s becomes node ku_slices_node(s); then each of
 * ku_slices_folds(n, s) times the last node is added to the one before it. Node 0 is the sum.
 *
 *     n = 7    s = 0 1 2 3 4 5 6
 *     node         0 1 1 2 1 2 2
 *     folds        0 1 0 2 0 1 2     the last: all nodes, those of an odd one too
 */
static inline int ku_slices_node(int64_t s)
{
    return __builtin_popcountll((uint64_t)s);
}
static inline int ku_slices_folds(int64_t n, int64_t s)
{
    return s + 1 == n ? ku_slices_node(s) : __builtin_ctzll(~(uint64_t)s);
}

/*
 * The slices in which linear or linear_dx sums: n 0: its contraction does not have the sliced dim,
 * or attr slices is 0. weight: of the local extents.
 *
 * Errors: EINVAL: the slices are more than KU_MAX_SLICES, or do not divide the dim.
 */
KU_STATUS ku_slices_of(int op, const struct ku_attrs *a, const struct ku_shape *weight,
                       struct ku_slices *out);
/* The same of a sum over the last dim of x (xent_sums); n 1 if attr slices is 0. */
KU_STATUS ku_slices_of_last(const struct ku_attrs *a, const struct ku_shape *x,
                            struct ku_slices *out);
/*
 * The same of a sum over rows, [..,t,..] -> [..]: layer_norm_dgb, rms_norm_dg, and linear_db of a
 * layer whose bias is whole. The rows of slice s are `run` tokens of each of `outer` samples. n 0:
 * the rows have no tokens, or their number is no multiple of the slices.
 */
KU_STATUS ku_slices_of_tokens(int op, const struct ku_attrs *a, const struct ku_shape *dy,
                              struct ku_slices *out);

/*
 * The number of elements whose squares are added in f64 before the exact sum: the max power of two
 * up to a canonical chunk that divides `run`, the contiguous elements of one slice of a tensor. So
 * no f64 sum has elements of two slices, whichever of them a rank has.
 */
int64_t ku_slices_chunk(int64_t run);
/* That number for sumsq, trust_sums and lamb_moments. */
static inline int64_t ku_op_chunk(const struct ku_attrs *a)
{
    return a->chunk ? a->chunk : KU_BLOCK_COUNT;
}

#endif
