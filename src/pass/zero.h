/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_ZERO_H
#define KU_PASS_ZERO_H

#include "base/err.h"
#include "pass/pass.h"

/*
 * Shared by the zero pass (state/zero.c), its stage 3 (state/zero_params.c) and offload
 * (state/offload.c). A partitioned tensor has placement Z: its canonical chunks of KU_BLOCK_COUNT
 * elements are distributed over the ranks, and a rank's chunks are its local shard.
 */

/* `layout` with placement Z on these axes. */
ku_id ku_zero_in_blocks(struct ku_graph *g, ku_id layout, int axes);
/* Which nodes read the value of a tensor at the start of the step: a mask. */
enum ku_zero_read {
    KU_READ_BEFORE_O = 1, /* nodes outside phase O */
    KU_READ_WHOLE = 2 /* phase O, not element by element (Adafactor's factors): not partitioned */
};
/* [n_tensors] masks of enum ku_zero_read, freed by the caller; NULL: no memory. */
unsigned char *ku_zero_note_reads(const struct ku_graph *g);
/* Whether forward reads this parameter only through its compute copy, so that it is a master. */
static inline bool ku_zero_is_master(const struct ku_graph *g, const unsigned char *reads, ku_id t)
{
    return g->tensor[t].copy && !(reads[t] & KU_READ_BEFORE_O);
}

/* Whether stage 3 partitions this parameter or compute copy: it has at least persist_below
 * elements. */
bool ku_zero_is_partitioned(const struct ku_graph *g, const struct ku_compile_opts *o,
                            ku_id tensor);
/* Makes forward and backward read partitioned parameters through all-gathers. whole [n_tensors]:
 * their placements before partitioning. */
KU_STATUS ku_zero_gather_params(struct ku_graph *g, const struct ku_compile_opts *o,
                                const ku_id *whole);

/* Adds the local shard that a rank retains of a gathered parameter (reshard_group): a `convert`
 * whole -> Z(g) without communication. 0: no memory. */
ku_id ku_zero_slice(struct ku_graph *g, const struct ku_compile_opts *o, ku_id whole);

#endif
