/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_IR_STATE_H
#define KU_IR_STATE_H

#include <stdbool.h>

#include "ir/program.h"

/*
 * Which ranks hold which state. The placement of a state tensor (tensor/placement.h) on the
 * data-parallel axes of the mesh says it, and nothing else does:
 *
 *     axis        C or R                           Z
 *     replicate   each rank has a copy             -
 *     shard       each rank has a copy             each rank stores its owned chunks (ZeRO)
 *     local       the ranks of a host read one     the same, and each rank updates its owned chunks
 *                 copy in shared memory            in it; offloaded: it stores only these
 *     both        each host, a coordinate of       each rank of all hosts stores its owned chunks,
 *                 shard, has one such copy         as on shard
 *
 *     tp, tpi     each rank has a copy             S: each rank stores its slice
 *     pp          the coordinate of the tensor's stage stores it, others do not; counters: all do
 *
 *     replicate=2 shard=2, stage 1                 local=4
 *     rank          0      1      2      3         rank          0    1    2    3
 *     parameters    all    all    all    all       parameters    one copy, read by all ranks
 *     exp_avg       1st    2nd    1st    2nd       exp_avg       the same, updated by quarters
 *                   half   half   half   half
 *
 * The ZeRO pass and offload set the placements. Lowering asks here in which arena a tensor is
 * stored; checkpoints, replica checks and plans ask the program.
 */

/* The mesh axes over which the ranks divide the update, as a mask. 0: every rank has all state. */
static inline int ku_state_owner_axes(const struct ku_mesh *m)
{
    return ku_mesh_wide(m, 1 << KU_AX_SHARD | 1 << KU_AX_LOCAL);
}

/* Whether ranks read one copy of the state in shared memory. */
static inline bool ku_state_is_common(const struct ku_mesh *m)
{
    return m->extent[KU_AX_LOCAL] > 1;
}

/* The ranks that divide one copy of the state. */
static inline int ku_state_n_owners(const struct ku_mesh *m)
{
    return m->extent[KU_AX_SHARD] * m->extent[KU_AX_LOCAL];
}

/* Whether ranks store shards of the state in memory of their own (ZeRO). */
static inline bool ku_state_is_sharded(const struct ku_mesh *m)
{
    return m->extent[KU_AX_SHARD] > 1;
}

/* Whether ranks address state in the memory of other ranks of the host. */
static inline bool ku_state_is_addressed(const struct ku_mesh *m)
{
    return ku_state_owner_axes(m) != 0 || ku_mesh_tp(m) > 1 || m->extent[KU_AX_PP] > 1;
}

/*
 * The version of a tensor that phase O leaves: in owned chunks where it is gathered afterwards.
 */
ku_id ku_state_written(const struct ku_graph *g, ku_id tensor);

/* How a tensor is stored. */
struct ku_state_store {
    uint8_t arena;   /* enum ku_arena_kind */
    uint8_t is_kept; /* a rank stores its owned chunks only */
    ku_id blocks;    /* placement of the owned chunks; 0: no rank owns a part */
    ku_id split;     /* placement with S on axis tp, whose ranks have slices; 0: equal copies */
};
/* Whether a placement says that ranks store their owned chunks alone. */
static inline bool ku_state_is_divided(const struct ku_mesh *m, const struct ku_layout *l)
{
    return ku_mesh_wide(m, ku_layout_axes(l, KU_Z)) >> KU_AX_SHARD & 1;
}
struct ku_state_store ku_state_store_of(const struct ku_graph *g, ku_id tensor);

/*
 * The elements of a flattened tensor, or of its slice (axis tp), that the rank at `coord` owns: it
 * updates them, and writes them to checkpoints. All of them if no rank owns a part.
 */
void ku_state_owned(const struct ku_program *p, const struct ku_program_state *x,
                    const struct ku_coord *coord, int64_t *begin, int64_t *end);

/* Whether the ranks of a coordinate of axis pp store the tensor. */
static inline bool ku_state_is_here(const struct ku_program_state *x, int pp)
{
    return x->pp < 0 || x->pp == pp;
}

/* The mesh axes along which ranks store equal copies of what this rank stores, as a mask. */
int ku_state_replica_axes(const struct ku_program *p, const struct ku_program_state *x);

#endif
