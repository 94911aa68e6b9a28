/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_REMAT_MINCUT_H
#define KU_PASS_REMAT_MINCUT_H

#include <stdint.h>

/*
 * A least cut between two vertices of a directed graph: which edges of the least total capacity
 * separate them. Dinic's algorithm (1970): O(V^2 E) at worst, near linear on the shallow graphs of
 * models.
 */
#define KU_CUT_INFINITE (INT64_MAX / 4)
struct ku_cut;

/*   n_vertices   vertices 0 .. n_vertices - 1
 *   n_edges      the most that ku_cut_edge will add
 * Errors: KUMI_ENOMEM. */
int ku_cut_create(uint32_t n_vertices, uint32_t n_edges, struct ku_cut **cut);
void ku_cut_destroy(struct ku_cut *cut);
void ku_cut_edge(struct ku_cut *cut, uint32_t from, uint32_t to, int64_t capacity);
/*
 * Cuts. Of several least cuts the one nearest to the sink.
 *
 *   side   [n_vertices]; 1: on the sink's side
 *
 * Returns the capacity cut, at least KU_CUT_INFINITE if the two cannot be separated.
 */
int64_t ku_cut_solve(struct ku_cut *cut, uint32_t source, uint32_t sink, unsigned char *side);

#endif
