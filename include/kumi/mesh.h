/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_MESH_H
#define KUMI_MESH_H

#include "kumi/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The ranks of a job along named axes, outermost first, and a communicator for each axis: what
 * PyTorch calls a device mesh.
 *
 *     kumi_mesh_create(world, (struct kumi_mesh_axis[]){{"dp", 0}, {"tp", 2}}, 2, &mesh);
 *     kumi_all_reduce(kumi_mesh_comm(mesh, "tp"), …);
 *
 * A rank's number is its coordinates read as digits, so ranks that are neighbours on the last axis
 * have neighbouring numbers, and mostly one host.
 */
struct kumi_mesh;
struct kumi_mesh_axis {
    const char *name; /* 1 to 11 letters, unlike the others */
    int extent;       /* ranks along it; 0 on one axis: what is left over */
};
enum { KUMI_MESH_AXES_MAX = 8 };

/*
 * Collective over the world, with equal axes. Errors: KUMI_EINVAL: extents whose product is not the
 * world's size; names.
 */
KUMI_API int kumi_mesh_create(struct kumi_comm *world, const struct kumi_mesh_axis *axes,
                              int n_axes, struct kumi_mesh **mesh);
/* With its communicators. Collective over the world; takes NULL. */
KUMI_API int kumi_mesh_destroy(struct kumi_mesh *mesh);

/* The ranks that differ from this one in that coordinate alone. Borrowed; NULL: no such axis. */
KUMI_API struct kumi_comm *kumi_mesh_comm(const struct kumi_mesh *mesh, const char *axis);
/* This rank's coordinate; -1: no such axis. */
KUMI_API int kumi_mesh_coord(const struct kumi_mesh *mesh, const char *axis);

#ifdef __cplusplus
}
#endif
#endif
