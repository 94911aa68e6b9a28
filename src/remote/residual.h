/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_REMOTE_RESIDUAL_H
#define KU_REMOTE_RESIDUAL_H

#include <stdbool.h>

#include "base/err.h"
#include "train/remote_update.h"

/*
 * The error feedback of a worker that compresses (remote/compress.h): f32 for each element of each
 * compressed gradient. A step reads the residual of the step before and writes its own, so there
 * are two slots, used in turn. They are a file that is mapped into memory: a killed worker leaves
 * the residual of its last complete step, and that of the step before, one of which the next
 * process continues from, whichever of its pushes the servers have.
 *
 *     DIR/worker-W.residual         | head, 4,096 bytes | slot 0 | slot 1 |
 *     DIR/worker-W.residual.STEP    | head, 4,096 bytes | slot 0 |      a copy, to resume from the
 *                                                                      checkpoint of update STEP
 *     head    u64 magic "KUPSRES1", u64 checksum of the layout, u64 worker, u64 bytes of a slot,
 *             per slot i64 step whose push it follows (-1: none), u64 checksum of its tensors
 *
 * A slot is valid from before the last bytes of its step are pushed.
 */
struct ku_remote_residual;
/* Bytes of both slots; 0: nothing is compressed. */
size_t ku_remote_residual_bytes(const struct ku_remote_layout *l);
/*
 *   dir   is made if it does not exist; NULL: in memory, lost with the process
 *
 * Errors: KUMI_ESTORAGE, ENOMEM.
 */
KU_STATUS ku_remote_residual_open(const struct ku_remote_layout *l, int worker, const char *dir,
                                  struct ku_remote_residual **r);
void ku_remote_residual_close(struct ku_remote_residual *r); /* NULL is allowed */
/*
 * Begin a step. The first one finds the residual after the step before it, in a slot or a saved
 * file.
 *
 *   text   out, of the first step: "" or why the residual is not that of the step before, which
 *          means that bits do not continue
 */
void ku_remote_residual_begin(struct ku_remote_residual *r, int64_t step, char text[200]);
/* The residual of push entry i before the step, and memory for the one after it: [count] each. */
const float *ku_remote_residual_before(const struct ku_remote_residual *r, uint32_t i);
float *ku_remote_residual_after(const struct ku_remote_residual *r, uint32_t i);
/* Entry i is complete, with a checksum of its elements; after the last one the slot is valid. */
void ku_remote_residual_note(struct ku_remote_residual *r, uint32_t i, uint64_t sum);
/*
 * Save the residual that the step begins with, and remove all but the newest `keep` saved ones (0:
 * none is removed). In memory: nothing. Errors: KUMI_ESTORAGE, ENOMEM.
 */
KU_STATUS ku_remote_residual_save(struct ku_remote_residual *r, int keep);

#endif
