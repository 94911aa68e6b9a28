/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files and folders are written under a temporary name and renamed when they are complete:
 *
 *     runs/out.kumi-tmp-3f09c2a1  ->  runs/out
 *
 * The name is random, so a leftover cannot collide. The process that creates it holds an flock on
 * it. The system releases the lock when the process ends for any reason. A temporary name that can
 * be locked therefore has no writer, and the next writer of the same path removes it.
 *
 * A name can be removed between its creation and its locking. The creator detects that and tries
 * another name. On a file system without locks nothing is removed.
 */
#include "base/os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"

#define MARK ".kumi-tmp-"
enum { DIGITS = 8, TRIES = 100 };

/* 1 if `name` is a file or folder and the one that fd has open. */
static bool is_named(int fd, const char *name)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && lstat(name, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino && (S_ISREG(a.st_mode) || S_ISDIR(a.st_mode));
}

static int make(const char *name, int is_folder)
{
    if (!is_folder)
        return ku_os_open(name, O_RDWR | O_CREAT | O_EXCL, 0666);
    if (ku_os_mkdir(name, 0777) < 0)
        return -1;
    int fd = ku_os_open(name, O_RDONLY | O_DIRECTORY, 0), saved = errno;
    if (fd < 0)
        rmdir(name);
    errno = fd < 0 && saved == ENOENT ? EEXIST : saved; /* EEXIST: try another name */
    return fd;
}

int ku_os_temporary(const char *path, int is_folder, char **name)
{
    for (int i = 0; i < TRIES; i++) {
        uint32_t number;
        if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
            return -1;
        char *at = ku_asprintf("%s" MARK "%08x", path, number);
        int fd = at ? make(at, is_folder) : -1, saved = at ? errno : ENOMEM;
        if (fd >= 0 && (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
            is_named(fd, at)) {
            *name = at;
            return fd;
        }
        if (fd >= 0)
            close(fd);
        ku_free(at);
        errno = saved;
        if (fd < 0 && saved != EEXIST)
            return -1;
    }
    errno = EEXIST;
    return -1;
}

static bool is_temporary(const char *name, const char *base)
{
    size_t bytes = strlen(base), mark = strlen(MARK);
    return strncmp(name, base, bytes) == 0 && strncmp(name + bytes, MARK, mark) == 0 &&
           strlen(name + bytes + mark) == DIGITS &&
           strspn(name + bytes + mark, "0123456789abcdef") == DIGITS;
}

static void remove_if_left(const char *path)
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && is_named(fd, path))
        (void)ku_os_rmtree(path);
    close(fd);
}

void ku_os_temporary_clean(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char *folder = slash == NULL ? ku_strdup(".")
                                 : ku_asprintf("%.*s", (int)(slash - path) + (slash == path), path);
    char **names;
    int n;
    if (folder && ku_os_list(folder, &names, &n) == 0) {
        for (int i = 0; i < n; i++) {
            if (!is_temporary(names[i], base))
                continue;
            char *at = ku_asprintf("%s/%s", folder, names[i]);
            if (at)
                remove_if_left(at);
            ku_free(at);
        }
        ku_free(names);
    }
    ku_free(folder);
}

/* fsync of the folder that contains path. */
static int sync_folder(const char *path)
{
    char *folder = ku_strdup(path);
    if (folder == NULL) {
        errno = ENOMEM;
        return -1;
    }
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    int result = ku_os_fsync_dir(slash ? folder : "."), saved = errno;
    ku_free(folder);
    errno = saved;
    return result;
}

int ku_os_replace(const char *path, const void *data, size_t bytes)
{
    char *temporary;
    int fd = ku_os_temporary(path, 0, &temporary);
    if (fd < 0)
        return -1;
    int result = ku_os_write_full(fd, data, bytes);
    if (result == 0)
        result = ku_os_fsync(fd);
    if (result == 0)
        result = ku_os_rename(temporary, path);
    int is_renamed = result == 0;
    if (is_renamed)
        result = sync_folder(path);
    int saved = errno;
    if (!is_renamed)
        unlink(temporary);
    ku_os_close(fd);
    ku_free(temporary);
    ku_os_temporary_clean(path);
    errno = saved;
    return result;
}
