/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_ZERO_H
#define KU_PASS_ZERO_H

#include "pass/pass.h"

/* What the zero pass (zero.c) and its stage 3 (zero_params.c) share. */

/* Whether stage 3 deals this parameter or compute copy: it has at least persist_below elements. */
int ku_zero_is_dealt(const struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor);
/* Forward and backward read dealt parameters through gathers. whole [n_tensors]: their layouts
 * before they were dealt. */
int ku_zero_gather_params(struct ku_graph *g, const struct ku_compile_opts *o, const ku_id *whole);

/* What this rank's group keeps of a unit's parameter that forward gathered (reshard_group): a
 * convert whole -> Z(g), which moves nothing between ranks. 0: no memory. */
ku_id ku_zero_slice(struct ku_graph *g, const struct ku_compile_opts *o, ku_id whole);

#endif
