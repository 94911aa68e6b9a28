/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_DIRECTORY_H
#define KU_CKPT_SNAPSHOT_DIRECTORY_H

#include <stdint.h>

#include "base/err.h"

/* The directory of snapshots: listing, commit by rename, removal. */
#define KU_CKPT_TEMPORARY                                                                          \
    ".tmp-" /* prefix of incomplete snapshots, which the next writer removes */

/*
 * List the steps of the snapshots in dir, descending; none if dir does not exist.
 *
 *   steps   result [*n]; the caller frees it
 *
 * Errors: ENOCKPT, dir cannot be read.
 */
KU_STATUS ku_ckpt_place_list(const char *dir, int64_t **steps, int *n);
/*
 * Remove incomplete snapshots of crashed writers. One that cannot be removed gives a warning:
 * another process may read it over NFS, or another user own it. Errors: ESTORAGE, dir cannot be
 * read.
 */
KU_STATUS ku_ckpt_place_clean(const char *dir);
/* Rename the temporary directory to its final name atomically. An existing snapshot is replaced.
 * Errors: ESTORAGE. */
KU_STATUS ku_ckpt_place_put(const char *temporary, const char *final);
/* Remove the snapshot of a step. It is renamed to a temporary name first, so that a partly removed
 * snapshot is never read. Failure logs a warning. */
void ku_ckpt_place_remove(const char *dir, int64_t step);
/*
 * Move the snapshots of steps above `after` to the directory `to`, oldest first, so that after an
 * interruption the newest is still in place. An existing name gets a suffix.
 *
 *   to        created if there is a snapshot to move
 *   n_moved   result
 *
 * Errors: ESTORAGE; ENOCKPT, dir cannot be read.
 */
KU_STATUS ku_ckpt_place_aside(const char *dir, int64_t after, const char *to, int *n_moved);

#endif
