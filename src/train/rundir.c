/* SPDX-License-Identifier: Apache-2.0 */
#include "train/rundir.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os.h"

char *ku_rundir_file(const struct ku_rundir *dir, const char *name)
{
    return ku_asprintf("%s/%s", dir->path, name);
}

/* Is there such a directory, or a file that is not empty? A run that failed before its first step
 * leaves neither. */
static int holds(const struct ku_rundir *dir, const char *name)
{
    struct stat st;
    char *path = ku_rundir_file(dir, name);
    int found = path && ku_os_stat(path, &st) == 0 && (S_ISDIR(st.st_mode) || st.st_size > 0);
    ku_free(path);
    return found;
}

static int take_lock(struct ku_rundir *dir)
{
    char *path = ku_rundir_file(dir, "lock");
    if (path == NULL)
        return KUMI_ENOMEM;
    dir->lock_fd = ku_os_open(path, O_RDWR | O_CREAT, 0666);
    ku_free(path);
    if (dir->lock_fd < 0)
        return KU_ERR(KUMI_ESTORAGE,
                      "run directory: %s: cannot be written: %s; choose another --out", dir->path,
                      ku_os_why());
    if (ku_os_flock(dir->lock_fd) < 0) {
        int busy = errno == EWOULDBLOCK;
        return KU_ERR(busy ? KUMI_EBUSY : KUMI_ESTORAGE,
                      "run directory: %s: %s; choose another --out, or wait", dir->path,
                      busy ? "another run is using it" : ku_os_why());
    }
    return KUMI_OK;
}

/* What a run writes; nothing else in the directory is touched. */
static const char *const own[] = {"checkpoints", "metrics.jsonl", "summary.json", "weights"};

static int clear(const struct ku_rundir *dir)
{
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        char *path = ku_rundir_file(dir, own[i]);
        int result = path ? ku_os_rmtree(path) : -1;
        if (result < 0 && errno == ENOENT)
            result = 0;
        ku_free(path);
        if (result < 0)
            return KU_ERR(ku_os_status(KUMI_ESTORAGE),
                          "run directory: %s/%s: cannot be removed: %s", dir->path, own[i],
                          ku_os_why());
    }
    return KUMI_OK;
}

static int open_it(const char *path, int overwrite, enum ku_resume resume, struct ku_rundir *dir)
{
    dir->path = ku_strdup(path);
    if (dir->path == NULL)
        return KUMI_ENOMEM;
    if (ku_os_mkdirs(path) < 0)
        return KU_ERR(KUMI_ESTORAGE, "run directory: %s: cannot be made: %s; choose another --out",
                      path, ku_os_why());
    KU_TRY(take_lock(dir));
    if (overwrite)
        return clear(dir);
    if (resume == KU_RESUME_NO && (holds(dir, "checkpoints") || holds(dir, "metrics.jsonl")))
        return KU_ERR(KUMI_EBUSY,
                      "run directory: %s: holds a run already; --resume continues it, --overwrite "
                      "replaces it",
                      path);
    return KUMI_OK;
}

int ku_rundir_open(const char *path, int overwrite, enum ku_resume resume, struct ku_rundir *dir)
{
    *dir = (struct ku_rundir){.lock_fd = -1};
    int status = open_it(path, overwrite, resume, dir);
    if (status < 0)
        ku_rundir_close(dir);
    return status;
}

void ku_rundir_close(struct ku_rundir *dir)
{
    if (dir->lock_fd >= 0)
        ku_os_close(dir->lock_fd);
    ku_free(dir->path);
    *dir = (struct ku_rundir){.lock_fd = -1};
}
