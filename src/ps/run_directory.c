/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/run_directory.h"

#include "ckpt/snapshot/resume.h"
#include "run/rundir.h"

int ku_ps_directory_make(const char *config, char *out)
{
    return ku_rundir_make(config, out, KU_RUN_PATH_BYTES);
}

void ku_ps_directory_drop(const char *out)
{
    struct ku_rundir dir;
    if (ku_rundir_open(out, 0, KU_RESUME_AUTO, &dir) < 0)
        return;
    dir.is_new = !ku_rundir_has_run(&dir);
    ku_rundir_close(&dir);
}
