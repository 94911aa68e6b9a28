/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_RUNDIR_H
#define KU_TRAIN_RUNDIR_H

/*
 * A run's directory: checkpoints/, metrics.jsonl, summary.json, and `lock`, which the
 * run holds (flock) as long as it lives.
 */
enum ku_resume { KU_RESUME_NO, KU_RESUME_YES, KU_RESUME_AUTO };

struct ku_rundir {
    char *path;
    int lock_fd; /* -1: not held */
};
/*
 * Takes the directory for a run; by one rank.
 *
 *   overwrite   remove what an earlier run left there
 *   resume      continue what is there: YES needs something, AUTO takes it or starts afresh
 *
 * Errors: KUMI_EBUSY (another run holds it; or it holds a run, without resume and overwrite),
 * ESTORAGE (cannot be made or written).
 */
int ku_rundir_open(const char *path, int overwrite, enum ku_resume resume, struct ku_rundir *dir);
void ku_rundir_close(struct ku_rundir *dir);
/* "PATH/name", from ku_malloc. */
char *ku_rundir_file(const struct ku_rundir *dir, const char *name);

#endif
