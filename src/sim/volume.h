/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_SIM_VOLUME_H
#define KU_SIM_VOLUME_H

#include <stdbool.h>

#include "ir/program.h"

/*
 * Communication volume of a rank in one step of the training program, per collective and mesh axes.
 * The volume of a ring over N ranks is (N - 1) / N of the elements for a reduce-scatter or
 * all-gather and twice that for an all-reduce. stored_bytes is what the shared-memory transport
 * writes for it.
 */
struct ku_volume {
    uint8_t exchange, axes; /* enum ku_exchange; a mask of mesh axes */
    uint16_t group;         /* size of the group of neighbours on the axis; 0: the whole axis */
    int n_ranks;
    double elements; /* elements of all parts, before the ring factor */
    double ring_bytes, stored_bytes;
    double wire_bytes, dtype_bytes; /* of the elements, in the wire dtype and in their own */
    double far_bytes; /* sent between hosts by all ranks: ku_plan_far_volumes; else 0 */
};
/*
 * Every exchange over every set of rank axes, on the whole axis or in groups; a program has one
 * size of groups (parallel.reshard_after_forward).
 */
enum { KU_MAX_VOLUMES = KU_N_EXCHANGES * (1 << KU_AX_FIRST_TIME) * 2 };
/*
 * Volumes of gradients and parameters, without scalars. Returns the number of rows.
 */
int ku_plan_volumes(const struct ku_program *p, struct ku_volume row[KU_MAX_VOLUMES]);
/* Whether a row counts an instruction. */
bool ku_plan_counts(const struct ku_program *p, const struct ku_volume *row,
                    const struct ku_instr *i);
/* Whether an instruction sends floating-point elements to another coordinate of axis pp. */
bool ku_plan_sends(const struct ku_program *p, uint32_t at);
/* Bytes of these that the first rank of the program's coordinate sends in one step. */
double ku_plan_message_bytes(const struct ku_program *p);

#endif
