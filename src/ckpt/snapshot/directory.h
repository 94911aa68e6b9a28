/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_DIRECTORY_H
#define KU_CKPT_SNAPSHOT_DIRECTORY_H

#include <stdint.h>

/* The folder of snapshots: which there are, how one gets its name, how the old ones go. */
#define KU_CKPT_TEMPORARY                                                                          \
    ".tmp-" /* what begins so is no snapshot, and is removed by the next writer */

/*
 * The steps of the snapshots in dir, descending; a folder that is not there has none.
 *
 *   steps   ku_malloc memory
 *
 * Errors: KUMI_ENOCKPT: dir cannot be read.
 */
int ku_ckpt_place_list(const char *dir, int64_t **steps, int *n);
/* Remove what writers that died left. KUMI_ESTORAGE. */
int ku_ckpt_place_clean(const char *dir);
/* Give the temporary folder its name, in one step, also where the name is taken (the old one is
 * removed). KUMI_ESTORAGE. */
int ku_ckpt_place_put(const char *temporary, const char *final);
/* Remove the snapshot of a step, by way of a name that is not a snapshot's, so that one half
 * removed is never read. A failure is a warning. */
void ku_ckpt_place_remove(const char *dir, int64_t step);
/*
 * Move the snapshots of steps above `after` into the folder `to`, the oldest first, so that the
 * newest of them is the last to go. Where a name is taken, a suffix makes it unique.
 *
 *   to   made if there is something to move
 *
 * Errors: KUMI_ESTORAGE; KUMI_ENOCKPT: dir cannot be read.
 */
int ku_ckpt_place_aside(const char *dir, int64_t after, const char *to, int *n_moved);

#endif
