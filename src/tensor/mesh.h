/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TENSOR_MESH_H
#define KU_TENSOR_MESH_H

#include "tensor/shape.h"

/*
 * The ranks along named axes, outermost first, so that tp neighbours share a host; after them two
 * time axes that each rank runs in turn: vs (its virtual shards) and mb (micro-batches of a shard).
 * The order of this enum is the nesting order.
 */
enum ku_axis { KU_AX_PP, KU_AX_REPLICATE, KU_AX_SHARD, KU_AX_TP, KU_AX_VS, KU_AX_MB, KU_N_AXES };
enum { KU_AX_FIRST_TIME = KU_AX_VS };

struct ku_mesh {
    int extent[KU_N_AXES];
    int mb_outer; /* micro-batch 0 of every virtual shard runs before micro-batch 1 of any */
};
/* Where a rank stands; at[VS] and at[MB] come from the micro-batch at hand. */
struct ku_coord {
    int at[KU_N_AXES];
};

const char *ku_axis_name(int axis);  /* "pp", "replicate", "shard", "tp", "vs", "mb" */
int ku_axis_parse(const char *name); /* -1: none */
int ku_mesh_n_ranks(const struct ku_mesh *m);
int ku_mesh_dp(const struct ku_mesh *m); /* replicate * shard */
struct ku_coord ku_mesh_coord(const struct ku_mesh *m, int rank);
int ku_mesh_rank(const struct ku_mesh *m, const struct ku_coord *c);
/* Micro-batches that a rank runs in a step, and where number u of them stands: u = vs * extent(mb)
 * + mb; with mb_outer u = mb * extent(vs) + vs. */
int ku_mesh_n_micro(const struct ku_mesh *m);
void ku_mesh_micro(const struct ku_mesh *m, int u, struct ku_coord *c);

#endif
