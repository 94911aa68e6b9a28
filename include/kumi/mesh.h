/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_MESH_H
#define KUMI_MESH_H

#include "kumi/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The ranks of a job along named axes, outermost first, with a communicator for each axis: a device
 * mesh of PyTorch.
 *
 *     kumi_mesh_create(world, (struct kumi_mesh_axis[]){{"dp", 0}, {"tp", 2}}, 2, &mesh);
 *     kumi_all_reduce(kumi_mesh_comm(mesh, "tp"), …);
 *
 * With 6 ranks, dp 3 x tp 2:
 *
 *               tp 0    tp 1
 *     dp 0    rank 0  rank 1
 *     dp 1    rank 2  rank 3
 *     dp 2    rank 4  rank 5
 *
 * Neighbours on the last axis have adjacent rank numbers, so they are usually on one host.
 */
struct kumi_mesh;
struct kumi_mesh_axis {
    const char *name; /* 1 to 11 letters, unique */
    int extent;       /* ranks along it; 0 on one axis: the remaining ranks */
};
enum { KUMI_MESH_AXES_MAX = 8 };

/*
 * Create a mesh.
 *
 *   axes     [n_axes], equal on all ranks; the product of the extents is the world's size
 *   mesh     out: freed with kumi_mesh_destroy
 *
 * Collective over the world. Errors: KUMI_EINVAL (not the world; extents, names).
 */
KUMI_API int kumi_mesh_create(struct kumi_comm *world, const struct kumi_mesh_axis *axes,
                              int n_axes, struct kumi_mesh **mesh);
/*
 * Destroy a mesh and its communicators. NULL is allowed. Collective over the world.
 */
KUMI_API int kumi_mesh_destroy(struct kumi_mesh *mesh);

/*
 * Communicator of the ranks that differ from this one only in that coordinate. Borrowed; NULL: no
 * such axis.
 */
KUMI_API struct kumi_comm *kumi_mesh_comm(const struct kumi_mesh *mesh, const char *axis);
/* This rank's coordinate on an axis; -1: no such axis. */
KUMI_API int kumi_mesh_coord(const struct kumi_mesh *mesh, const char *axis);

#ifdef __cplusplus
}
#endif
#endif
