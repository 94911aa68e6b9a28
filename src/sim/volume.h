/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_SIM_VOLUME_H
#define KU_SIM_VOLUME_H

#include "ir/program.h"

/*
 * What a rank communicates in a step of the training program, by what and over which axes: a ring's
 * elements, N ranks counted (N - 1) / N for a reduce-scatter or all-gather and twice that for an
 * all-reduce, and the bytes that this transport stores for it.
 */
struct ku_volume {
    uint8_t exchange, axes; /* enum ku_exchange; a mask of mesh axes */
    uint16_t group;         /* of so many neighbours on the one axis; 0: all */
    int n_ranks;
    double elements; /* of one sweep over all ranks' parts, before the factor above */
    double ring_bytes, stored_bytes;
};
enum { KU_MAX_VOLUMES = 16 };
/* Of gradients and parameters; scalars are left out. Returns how many rows there are. */
int ku_plan_volumes(const struct ku_program *p, struct ku_volume row[KU_MAX_VOLUMES]);

#endif
