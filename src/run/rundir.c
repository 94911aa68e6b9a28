/* SPDX-License-Identifier: Apache-2.0 */
#include "run/rundir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/utf8.h"
#include "batch/parallel_source.h"

/* "PATH/name", freed with ku_free. */
static char *file_of(const struct ku_rundir *dir, const char *name)
{
    return ku_asprintf("%s/%s", dir->path, name);
}

/*
 * Whether there is such a directory, or a file that is not empty. A run that failed before its
 * first step leaves neither. < 0: cannot be determined.
 */
static int holds(const struct ku_rundir *dir, const char *name)
{
    struct stat st;
    char *path = file_of(dir, name);
    if (path == NULL)
        return KUMI_ENOMEM;
    int found = 0;
    if (ku_os_stat(path, &st) == 0)
        found = S_ISDIR(st.st_mode) || st.st_size > 0;
    else if (errno != ENOENT)
        found = KU_ERR(ku_os_status(KUMI_ESTORAGE), "run directory: %s: cannot be read: %s", path,
                       ku_os_why());
    ku_free(path);
    return found;
}

static int take_lock(struct ku_rundir *dir)
{
    char *path = file_of(dir, "lock");
    if (path == NULL)
        return KUMI_ENOMEM;
    dir->lock_fd = ku_os_open(path, O_RDWR | O_CREAT, 0666);
    ku_free(path);
    if (dir->lock_fd < 0)
        return KU_ERR(KUMI_ESTORAGE,
                      "run directory: %s: cannot be written: %s; choose another --out", dir->path,
                      ku_os_why());
    if (ku_os_lock(dir->lock_fd) < 0) {
        int busy = errno == EWOULDBLOCK;
        return KU_ERR(busy ? KUMI_EBUSY : KUMI_ESTORAGE,
                      "run directory: %s: %s%s; choose another --out%s", dir->path,
                      busy ? "another run is using it" : "cannot be locked: ",
                      busy ? "" : ku_os_why(), busy ? ", or wait" : "");
    }
    return KUMI_OK;
}

/*
 * Files of a run. Nothing else in the directory is touched.
 */
static const char *const own[] = {"checkpoints",       "checkpoints.cut", "metrics.jsonl",
                                  "metrics.cut.jsonl", "summary.json",    "weights",
                                  "weights.new",       "profile.txt",     "profile.trace.json",
                                  "journal",           KU_VOCAB_FILES};
static const char REPLACED[] = ".replaced", DELETED[] = ".deleted";

static int cannot(const char *path, const char *what)
{
    return KU_ERR(ku_os_status(KUMI_ESTORAGE), "run directory: %s: cannot be %s: %s", path, what,
                  ku_os_why());
}

/* 1: moved; 0: no such file; < 0: failure. */
static int move(const struct ku_rundir *dir, const char *from_folder, const char *to_folder,
                const char *name)
{
    char *from = ku_asprintf("%s/%s%s", dir->path, from_folder, name);
    char *to = ku_asprintf("%s/%s%s", dir->path, to_folder, name);
    struct stat st;
    int result = 1;
    if (from == NULL || to == NULL)
        result = KUMI_ENOMEM;
    else if (ku_os_stat(to, &st) == 0)
        result =
            KU_ERR(KUMI_ESTORAGE,
                   "run directory: %s: exists, and so does %s; move one of them away", to, from);
    else if (errno != ENOENT)
        result = cannot(to, "read");
    else if (ku_os_rename(from, to) < 0)
        result = errno == ENOENT ? 0 : cannot(from, "moved");
    ku_free(from);
    ku_free(to);
    return result;
}

/*
 * Move back the files that an interrupted ku_rundir_begin moved aside. Returns their number; < 0:
 * failure.
 */
static int put_back(const struct ku_rundir *dir)
{
    char **names, *aside = file_of(dir, REPLACED);
    int n, n_back = 0, status = KUMI_OK;
    if (aside == NULL)
        return KUMI_ENOMEM;
    if (ku_os_list(aside, &names, &n) < 0) {
        status = errno == ENOENT ? 0 : cannot(aside, "read");
        ku_free(aside);
        return status;
    }
    for (int i = 0; i < n && status >= 0; i++) {
        status = move(dir, ".replaced/", "", names[i]);
        n_back += status > 0;
    }
    ku_free(names);
    if (status >= 0 && ku_os_rmtree(aside) < 0)
        status = cannot(aside, "removed");
    ku_free(aside);
    return status < 0 ? status : n_back;
}

/* A failure wastes disk space and has no other effect. */
static void remove_deleted(const struct ku_rundir *dir)
{
    char *path = file_of(dir, DELETED);
    if (path && ku_os_rmtree(path) < 0)
        KU_LOG(TRAIN, WARN, "run directory: %s: cannot be removed: %s; it is not used any more",
               path, ku_os_why());
    ku_free(path);
}

/* Complete or undo the steps of a run that was killed. */
static int tidy(const struct ku_rundir *dir)
{
    int n = put_back(dir);
    if (n > 0)
        KU_MESSAGE(WARN, "kumi: %s: restored the run that an interrupted --overwrite had moved",
                   dir->path);
    remove_deleted(dir);
    return n < 0 ? n : KUMI_OK;
}

static int move_aside(const struct ku_rundir *dir)
{
    char *aside = file_of(dir, REPLACED);
    int status = KUMI_OK;
    if (aside == NULL)
        return KUMI_ENOMEM;
    if (ku_os_mkdir(aside, 0777) < 0)
        status = cannot(aside, "made");
    for (size_t i = 0; i < sizeof own / sizeof own[0] && status >= 0; i++)
        status = move(dir, "", ".replaced/", own[i]);
    if (status >= 0)
        status = move(dir, REPLACED, DELETED, "");
    ku_free(aside);
    return status;
}

bool ku_rundir_has_run(const struct ku_rundir *dir)
{
    return holds(dir, "checkpoints") != 0 || holds(dir, "metrics.jsonl") != 0;
}

int ku_rundir_begin(struct ku_rundir *dir)
{
    dir->is_new = false;
    if (!dir->replaces)
        return KUMI_OK;
    dir->replaces = 0;
    int status = move_aside(dir);
    if (status < 0) {
        const struct kumi_error e = *ku_err_get();
        if (put_back(dir) < 0)
            KU_LOG(TRAIN, WARN, "%s; the next run in this directory tries it again",
                   ku_err_get()->text);
        return ku_err_put(&e);
    }
    remove_deleted(dir);
    return KUMI_OK;
}

static int open_it(const char *path, int overwrite, enum ku_resume resume, struct ku_rundir *dir)
{
    int has_checkpoints, has_metrics;
    struct stat info;
    KU_TRY(ku_utf8_check("run directory", path)); /* summary.json has it */
    if (ku_os_stat(path, &info) < 0) {
        dir->is_new = errno == ENOENT;
        if (errno != ENOENT && errno != ENOTDIR) /* ENOTDIR: mkdirs says which part is a file */
            return cannot(path, "read");
    }
    if (resume == KU_RESUME_YES && dir->is_new)
        return KU_ERR(KUMI_ENOCKPT,
                      "resume: %s: no checkpoint; start a new run with --overwrite or "
                      "--resume=auto",
                      path);
    dir->path = ku_strdup(path);
    if (dir->path == NULL)
        return KUMI_ENOMEM;
    if (ku_os_mkdirs(path) < 0)
        return KU_ERR(KUMI_ESTORAGE,
                      "run directory: %s: cannot be created: %s; choose another --out", path,
                      ku_os_why());
    KU_TRY(take_lock(dir));
    KU_TRY(tidy(dir));
    dir->replaces = overwrite;
    if (overwrite || resume != KU_RESUME_NO)
        return KUMI_OK;
    KU_TRY(has_checkpoints = holds(dir, "checkpoints"));
    KU_TRY(has_metrics = holds(dir, "metrics.jsonl"));
    if (has_checkpoints || has_metrics)
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

/* The lock is still held, so no other run has begun in the directory. */
static void remove_new(const struct ku_rundir *dir)
{
    char *lock = file_of(dir, "lock");
    if (lock && (ku_os_unlink(lock) < 0 || ku_os_rmdir(dir->path) < 0))
        KU_LOG(TRAIN, DEBUG, "run directory: %s: not removed: %s", dir->path, ku_os_why());
    ku_free(lock);
}

void ku_rundir_close(struct ku_rundir *dir)
{
    if (dir->is_new && dir->lock_fd >= 0)
        remove_new(dir);
    if (dir->lock_fd >= 0)
        ku_os_close(dir->lock_fd);
    ku_free(dir->path);
    *dir = (struct ku_rundir){.lock_fd = -1};
}

int ku_rundir_make(const char *config, char *out, size_t bytes)
{
    enum { MAX_TRIES = 10000 };
    const char *slash = strrchr(config, '/'), *name = slash ? slash + 1 : config;
    int n = (int)strcspn(name, "."), result;
    char when[32];
    time_t now = time(NULL);
    struct tm tm;
    strftime(when, sizeof when, "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
    result = ku_os_mkdirs("runs");
    snprintf(out, bytes, "runs/%.*s-%s", n < 100 ? n : 100, name, when);
    if (result == 0)
        result = ku_os_mkdir(out, 0777);
    for (int i = 2; result < 0 && errno == EEXIST && i <= MAX_TRIES; i++) {
        snprintf(out, bytes, "runs/%.*s-%s-%d", n < 100 ? n : 100, name, when, i);
        result = ku_os_mkdir(out, 0777);
    }
    return result == 0 ? KUMI_OK
                       : KU_ERR(KUMI_ESTORAGE,
                                "run directory: %s: cannot be created: %s; give one with --out",
                                out, ku_os_why());
}
