/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_RUN_RUNDIR_H
#define KU_RUN_RUNDIR_H

#include "ckpt/snapshot/resume.h"

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/*
 * A run's directory: checkpoints/, metrics.jsonl, summary.json, and `lock`, which the run locks
 * (flock) for its lifetime.
 *
 * A run that replaces another one leaves it untouched until its own first step is done. Then it
 * removes the old run in these steps, and may be killed after any of them:
 *
 *     DIR/checkpoints, ..      ->  DIR/.replaced/     one rename each
 *     DIR/.replaced            ->  DIR/.deleted       from here on the old run is gone
 *     DIR/.deleted             removed
 *
 * The next run that opens the directory moves the contents of .replaced back and removes .deleted.
 */
struct ku_rundir {
    char *path;
    int lock_fd;  /* -1: not locked */
    int replaces; /* the directory has an old run until ku_rundir_begin */
    bool is_new;  /* made for this run, and removed again if it fails before ku_rundir_begin */
};
/*
 * Open and lock the directory for a run. Called by one rank. Files of an earlier run are unchanged.
 *
 *   overwrite   ku_rundir_begin will remove the earlier run
 *   resume      the earlier run continues: YES needs one, AUTO starts afresh without one
 *
 * Errors: EINVAL (the path is not UTF-8), EBUSY (another run has locked it; or it contains a run,
 * without resume and overwrite), ENOCKPT (resume YES and no such directory), ESTORAGE (cannot be
 * created, read or written).
 */
KU_STATUS ku_rundir_open(const char *path, int overwrite, enum ku_resume resume,
                         struct ku_rundir *dir);
/* Before ku_rundir_begin: whether an earlier run is in the directory. true if that is unknown. */
bool ku_rundir_has_run(const struct ku_rundir *dir);
/*
 * Called after the run's first step: remove the run that it replaces. KUMI_ESTORAGE: the old run is
 * put back.
 */
KU_STATUS ku_rundir_begin(struct ku_rundir *dir);
void ku_rundir_close(struct ku_rundir *dir);
/*
 * Create the directory runs/<config>-<time>, with -2, -3, .. appended if the name exists. No other
 * call returns the same name.
 *
 * Errors: KUMI_ESTORAGE.
 */
KU_STATUS ku_rundir_make(const char *config, char *out, size_t bytes);

#endif
