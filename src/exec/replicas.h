/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_EXEC_REPLICAS_H
#define KU_EXEC_REPLICAS_H

#include "base/err.h"
#include "exec/exec.h"

/*
 * Compare the copies of the state on different ranks (parameters and their compute copies, buffers,
 * optimizer tensors, counters): of a tensor that every rank has, over all ranks; of a partitioned
 * one, each rank's part over the replicas (parallel.replicate); of one that the ranks of each host
 * share, the chunks that a rank owns over the hosts. State with one copy, shared or partitioned
 * over all ranks, is not compared.
 *
 * With tensor parallelism a slice is compared over the ranks with the same slice.
 *
 *   comms   those of ku_state_replica_axes among them
 *
 * Collective. Errors: KUMI_ENUMERIC on all ranks, with the tensor and two ranks that differ.
 */
KU_STATUS ku_replicas_verify(const struct ku_memory *memory, const struct ku_program *program,
                             const struct ku_exec_comms *comms);

#endif
