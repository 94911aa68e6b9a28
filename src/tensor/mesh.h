/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TENSOR_MESH_H
#define KU_TENSOR_MESH_H

#include "tensor/shape.h"

/*
 * The mesh: ranks arranged along named axes, outermost first, so that tp neighbours share a host.
 * Two time axes follow, which each rank runs in sequence: vs (its virtual shards) and mb
 * (micro-batches of a shard). The order of this enum is the nesting order.
 *
 *   replicate, shard, local   data-parallel ranks: copies of the state; parts of a copy (ZeRO);
 *                             ranks of a host that share one copy in memory (ir/state.h)
 *   tp, tpi                   tensor-parallel ranks. tpi is above 1 only where they outnumber the
 *                             key and value heads: these are split over tp, the query heads of
 *                             each over tpi, and all else over both as over one axis
 *
 *     pp=2 shard=2 tp=2:   rank = (pp * 2 + shard) * 2 + tp
 *         pp 0 | shard 0: ranks 0 1 | shard 1: ranks 2 3
 *         pp 1 | shard 0: ranks 4 5 | shard 1: ranks 6 7
 */
enum ku_axis {
    KU_AX_PP,
    KU_AX_REPLICATE,
    KU_AX_SHARD,
    KU_AX_LOCAL,
    KU_AX_TP,
    KU_AX_TPI,
    KU_AX_VS,
    KU_AX_MB,
    KU_N_AXES
};
enum { KU_AX_FIRST_TIME = KU_AX_VS };
/* The data-parallel axes, and the tensor-parallel ones, as masks. */
enum {
    KU_DP_AXES = 1 << KU_AX_REPLICATE | 1 << KU_AX_SHARD | 1 << KU_AX_LOCAL,
    KU_TP_AXES = 1 << KU_AX_TP | 1 << KU_AX_TPI
};

struct ku_mesh {
    int extent[KU_N_AXES];
    int mb_outer; /* 1: micro-batch 0 of every virtual shard runs before micro-batch 1 of any */
};
/* Coordinates of a rank. at[KU_AX_VS] and at[KU_AX_MB] are those of the current micro-batch. */
struct ku_coord {
    int at[KU_N_AXES];
};

const char *ku_axis_name(int axis);  /* "pp", "replicate", "shard", "local", "tp", "tpi", .. */
int ku_axis_parse(const char *name); /* -1: no such axis */
int ku_mesh_n_ranks(const struct ku_mesh *m);
int ku_mesh_dp(const struct ku_mesh *m); /* replicate * shard * local */
int ku_mesh_tp(const struct ku_mesh *m); /* tp * tpi: the ranks that divide a layer */
/* Those of the axes, a mask, that have several members. */
int ku_mesh_wide(const struct ku_mesh *m, int axes);
struct ku_coord ku_mesh_coord(const struct ku_mesh *m, int rank);
int ku_mesh_rank(const struct ku_mesh *m, const struct ku_coord *c);
/*
 * Number of micro-batches that a rank runs per step, and the coordinates of micro-batch u: u = vs *
 * extent(mb) + mb; with mb_outer u = mb * extent(vs) + vs.
 */
int ku_mesh_n_micro(const struct ku_mesh *m);
void ku_mesh_micro(const struct ku_mesh *m, int u, struct ku_coord *c);

#endif
