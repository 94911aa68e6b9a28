/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_REMOTE_CHANGES_H
#define KU_REMOTE_CHANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "train/remote_update.h"

/*
 * Which bytes of a server's pull space change in which update, so that a worker pulls only what has
 * changed since its last pull. It pays for parameters that may rest: those that are frozen, and
 * embeddings under an optimizer that leaves rows without a gradient as they are (SGD and Adagrad
 * without weight decay, not Adam, whose moments move every row in every update).
 *
 *     after an update   parameters ── compare, grain by grain ────── copy of them
 *                                            │ differs: copied, and
 *                                            v
 *                       the update that changed it last    3  3  7  3  3  3  7  ..
 *
 * Bytes are compared, so a pull of what has changed gives the bytes of a whole one. All other bytes
 * of the space count as changed in every update.
 */
struct ku_remote_changes;
/*
 * Uses ku_remote_tracked_bytes of memory.
 *
 *   c   out; NULL: nothing may rest
 *
 * Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_remote_changes_create(const struct ku_remote_layout *l, int server,
                                   struct ku_remote_changes **c);
void ku_remote_changes_destroy(struct ku_remote_changes *c); /* NULL is allowed */
/* Copies bytes of the pull space as they are now. */
typedef int ku_remote_read_fn(const void *ctx, size_t offset, size_t bytes, void *to);
/* Note what update `version` has changed. The first call: everything. Errors: those of copy. */
KU_STATUS ku_remote_changes_note(struct ku_remote_changes *c, int64_t version,
                                 ku_remote_read_fn *copy, const void *ctx);
/* Whether the cell of 64 bytes at `offset`, a multiple of 64, has changed after update `since`. */
bool ku_remote_has_changed(const struct ku_remote_changes *c, size_t offset, int64_t since);

#endif
