/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_RUNDIR_H
#define KU_TRAIN_RUNDIR_H

#include <stddef.h>

/*
 * A run's directory: checkpoints/, metrics.jsonl, summary.json, and `lock`, which the run holds
 * (flock) as long as it lives.
 *
 * A run that replaces another leaves it untouched until its own first step is done. Then the old
 * run goes, in steps each of which may be the last that the process makes:
 *
 *     DIR/checkpoints, ..      ->  DIR/.replaced/     one rename each
 *     DIR/.replaced            ->  DIR/.deleted       from here on the old run is gone
 *     DIR/.deleted             removed
 *
 * The next run that opens the directory moves what is in .replaced back and removes .deleted.
 */
enum ku_resume { KU_RESUME_NO, KU_RESUME_YES, KU_RESUME_AUTO };

struct ku_rundir {
    char *path;
    int lock_fd;  /* -1: not held */
    int replaces; /* an old run stands here until ku_rundir_begin */
};
/*
 * Takes the directory for a run; by one rank. What an earlier run left there stays as it is.
 *
 *   overwrite   ku_rundir_begin removes it
 *   resume      it is continued: YES needs something, AUTO takes it or starts afresh
 *
 * Errors: KUMI_EBUSY (another run holds it; or it holds a run, without resume and overwrite),
 * ESTORAGE (cannot be made, read or written).
 */
int ku_rundir_open(const char *path, int overwrite, enum ku_resume resume, struct ku_rundir *dir);
/* The run's first step is done: the run that it replaces is removed. KUMI_ESTORAGE: the old run is
 * put back. */
int ku_rundir_begin(struct ku_rundir *dir);
void ku_rundir_close(struct ku_rundir *dir);
/* "PATH/name", from ku_malloc. */
char *ku_rundir_file(const struct ku_rundir *dir, const char *name);
/*
 * Makes runs/<config>-<time>, with -2, -3, .. after it where other runs have the name: it is
 * this call's alone.
 *
 * Errors: KUMI_ESTORAGE.
 */
int ku_rundir_make(const char *config, char *out, size_t bytes);

#endif
