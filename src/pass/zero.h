/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_ZERO_H
#define KU_PASS_ZERO_H

#include "pass/pass.h"

/* What the zero pass (zero.c), its stage 3 (zero_params.c) and offload (offload.c) share. */

/* The axes over which blocks are dealt, as a mask. */
int ku_zero_block_axes(const struct ku_compile_opts *o);
/* `layout` with blocks on these axes. */
ku_id ku_zero_in_blocks(struct ku_graph *g, ku_id layout, int axes);
/* Who reads a tensor as the step finds it: a mask. */
enum ku_zero_read {
    KU_READ_BEFORE_O = 1, /* another phase than the update's */
    KU_READ_WHOLE = 2     /* the update, all of it at once (Adafactor's factors): it stays whole */
};
/* [n_tensors] masks; NULL: no memory. The caller frees them. */
unsigned char *ku_zero_note_reads(const struct ku_graph *g);
/* A parameter that forward reads through a copy alone: its master is for the update. */
static inline int ku_zero_is_master(const struct ku_graph *g, const unsigned char *reads, ku_id t)
{
    return g->tensor[t].copy && !(reads[t] & KU_READ_BEFORE_O);
}

/* Whether stage 3 deals this parameter or compute copy: it has at least persist_below elements. */
int ku_zero_is_dealt(const struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor);
/* Forward and backward read dealt parameters through gathers. whole [n_tensors]: their layouts
 * before they were dealt. */
int ku_zero_gather_params(struct ku_graph *g, const struct ku_compile_opts *o, const ku_id *whole);

/* Adds what this rank's group keeps of a unit's parameter that forward gathered (reshard_group): a
 * convert whole -> Z(g), which moves nothing between ranks. 0: no memory. */
ku_id ku_zero_slice(struct ku_graph *g, const struct ku_compile_opts *o, ku_id whole);

#endif
