/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_REMAT_MINCUT_H
#define KU_PASS_REMAT_MINCUT_H

#include <stdint.h>

#include "base/err.h"

/*
 * Minimum cut between two vertices of a directed graph, by Dinic's algorithm (1970): O(V^2 E) in
 * the worst case, near linear on the shallow graphs of models.
 */
#define KU_CUT_INFINITE (INT64_MAX / 4)
struct ku_cut;

/*
 * Create a graph without edges.
 *
 *   n_vertices   vertices 0 .. n_vertices - 1
 *   n_edges      max number of ku_cut_edge calls
 *
 * Errors: ENOMEM.
 */
KU_STATUS ku_cut_create(uint32_t n_vertices, uint32_t n_edges, struct ku_cut **cut);
void ku_cut_destroy(struct ku_cut *cut);
void ku_cut_edge(struct ku_cut *cut, uint32_t from, uint32_t to, int64_t capacity);
/*
 * Find the minimum cut; of several, the one nearest to the sink.
 *
 *   side   [n_vertices] result; 1: on the sink's side
 *
 * Returns the capacity of the cut, at least KU_CUT_INFINITE if no finite cut exists.
 */
int64_t ku_cut_solve(struct ku_cut *cut, uint32_t source, uint32_t sink, unsigned char *side);

#endif
