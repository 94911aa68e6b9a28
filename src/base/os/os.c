/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/tick.h"

static bool is_faulted(int is_write)
{
    return ku_fault_is_due(is_write ? KU_FAULT_WRITE : KU_FAULT_OS);
}

#define RETRY(result, call)                                                                        \
    do                                                                                             \
        (result) = (call);                                                                         \
    while ((result) < 0 && errno == EINTR)

int ku_os_open(const char *path, int flags, mode_t mode)
{
    int fd;
    if (is_faulted(0))
        return -1;
    RETRY(fd, open(path, flags | O_CLOEXEC, mode));
    return fd;
}

int ku_os_close(int fd)
{
    int faulted = is_faulted(0),
        result = close(fd); /* on Linux the descriptor is gone even after EINTR */
    if (faulted)
        errno = EIO;
    return faulted ? -1 : result < 0 && errno == EINTR ? 0 : result;
}

ssize_t ku_os_read(int fd, void *data, size_t bytes)
{
    ssize_t n;
    if (is_faulted(0))
        return -1;
    RETRY(n, read(fd, data, bytes));
    return n;
}

ssize_t ku_os_read_full(int fd, void *data, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = ku_os_read(fd, (char *)data + done, bytes - done);
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

ssize_t ku_os_pread_full(int fd, void *data, size_t bytes, off_t at)
{
    size_t done = 0;
    if (is_faulted(0))
        return -1;
    while (done < bytes) {
        ssize_t n;
        RETRY(n, pread(fd, (char *)data + done, bytes - done, at + (off_t)done));
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

int ku_os_write_full(int fd, const void *data, size_t bytes)
{
    size_t done = 0;
    if (is_faulted(1))
        return -1;
    while (done < bytes) {
        ssize_t n;
        RETRY(n, write(fd, (const char *)data + done, bytes - done));
        if (n < 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

ssize_t ku_os_write(int fd, const void *data, size_t bytes)
{
    ssize_t n;
    if (is_faulted(1))
        return -1;
    RETRY(n, write(fd, data, bytes));
    return n;
}

int ku_os_dup_above(int fd, int min)
{
    return is_faulted(0) ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, min);
}

int ku_os_set_nonblocking(int fd)
{
    int flags = is_faulted(0) ? -1 : fcntl(fd, F_GETFL);
    return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

int ku_os_pwrite_full(int fd, const void *data, size_t bytes, off_t at)
{
    size_t done = 0;
    if (is_faulted(1))
        return -1;
    while (done < bytes) {
        ssize_t n;
        RETRY(n, pwrite(fd, (const char *)data + done, bytes - done, at + (off_t)done));
        if (n < 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

int ku_os_fsync(int fd)
{
    int result;
    if (is_faulted(0))
        return -1;
    RETRY(result, fsync(fd));
    return result;
}

int ku_os_fstat(int fd, struct stat *st)
{
    return is_faulted(0) ? -1 : fstat(fd, st);
}
int ku_os_stat(const char *path, struct stat *st)
{
    return is_faulted(0) ? -1 : stat(path, st);
}
bool ku_os_is_missing(const char *path)
{
    struct stat st;
    return !is_faulted(0) && lstat(path, &st) < 0 && errno == ENOENT;
}
int ku_os_mkdir(const char *path, mode_t mode)
{
    return is_faulted(0) ? -1 : mkdir(path, mode);
}
int ku_os_rename(const char *from, const char *to)
{
    return is_faulted(0) ? -1 : rename(from, to);
}
int ku_os_unlink(const char *path)
{
    return is_faulted(0) ? -1 : unlink(path);
}
int ku_os_rmdir(const char *path)
{
    return is_faulted(0) ? -1 : rmdir(path);
}
int ku_os_ftruncate(int fd, off_t bytes)
{
    int result;
    if (is_faulted(1))
        return -1;
    RETRY(result, ftruncate(fd, bytes));
    return result;
}

int ku_os_mkdirs(const char *path)
{
    char *copy = *path ? ku_strdup(path) : NULL;
    int result = 0;
    if (copy == NULL) {
        errno = *path ? ENOMEM : ENOENT;
        return -1;
    }
    for (char *p = copy + 1; result == 0; p++) {
        char c = *p;
        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        struct stat st;
        if (ku_os_mkdir(copy, 0777) < 0 &&
            (errno != EEXIST || stat(copy, &st) < 0 || !S_ISDIR(st.st_mode))) {
            errno = errno == EEXIST ? ENOTDIR : errno;
            result = -1;
        }
        *p = c;
        if (c == '\0')
            break;
    }
    int saved = errno;
    ku_free(copy);
    errno = saved;
    return result;
}

int ku_os_lock(int fd)
{
    int result;
    if (is_faulted(0))
        return -1;
    RETRY(result, flock(fd, LOCK_EX | LOCK_NB));
    return result;
}

int ku_os_touch(int fd)
{
    return is_faulted(0) ? -1 : futimens(fd, NULL);
}

int ku_os_fsync_dir(const char *path)
{
    int fd = ku_os_open(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return -1;
    int result = ku_os_fsync(fd), saved = errno;
    close(fd);
    errno = saved;
    return result;
}

int ku_os_exchange(const char *one, const char *other)
{
    return is_faulted(0) ? -1 : renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE);
}

int ku_os_allocate(int fd, off_t bytes)
{
    int result = 0;
    if (is_faulted(1))
        return -1;
    if (bytes > 0)
        RETRY(result, fallocate(fd, 0, 0, bytes));
    return result < 0 && errno == EOPNOTSUPP ? ku_os_ftruncate(fd, bytes) : result;
}

int ku_os_open_anonymous(const char *folder)
{
    int fd = ku_os_open(folder, O_TMPFILE | O_RDWR | O_EXCL, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd;
    char *path = ku_asprintf("%s/.kumi-XXXXXX", folder); /* file system without O_TMPFILE */
    if (path == NULL) {
        errno = ENOMEM;
        return -1;
    }
    if (!is_faulted(0))
        fd = mkostemp(path, O_CLOEXEC);
    int saved = errno;
    if (fd >= 0)
        unlink(path);
    ku_free(path);
    errno = saved;
    return fd;
}

int ku_os_reopen(pid_t pid, int fd, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
    return ku_os_open(path, flags, 0);
}

int ku_os_space(const char *path, struct ku_os_space *space)
{
    struct statfs fs;
    if (is_faulted(0) || statfs(path, &fs) < 0)
        return -1;
    *space = (struct ku_os_space){(uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize,
                                  fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC};
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorts n consecutive names of text into an array; array and text share one block. */
static char **index_names(const char *text, size_t bytes, int n)
{
    size_t pointers = ((size_t)n + 1) * sizeof(char *);
    char **names = ku_malloc(pointers + bytes);
    if (names == NULL)
        return NULL;
    char *at = (char *)names + pointers;
    if (bytes > 0)
        memcpy(at, text, bytes);
    for (int i = 0; i < n; i++, at += strlen(at) + 1)
        names[i] = at;
    names[n] = NULL;
    qsort(names, (size_t)n, sizeof *names, compare_names);
    return names;
}

int ku_os_list(const char *path, char ***names, int *n)
{
    struct ku_str text = {0};
    int count = 0, saved;
    DIR *dir = is_faulted(0) ? NULL : opendir(path);
    if (dir == NULL)
        return -1;
    errno = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL; errno = 0)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            ku_str_append(&text, e->d_name, strlen(e->d_name) + 1);
            count++;
        }
    saved = errno;
    closedir(dir);
    char **list = NULL;
    if (saved == 0) {
        list = text.failed ? NULL : index_names(ku_str_get(&text), text.bytes, count);
        saved = ENOMEM;
    }
    ku_str_fini(&text);
    if (list == NULL) {
        errno = saved;
        return -1;
    }
    *names = list;
    *n = count;
    return 0;
}

int ku_os_rmtree(const char *path)
{
    struct stat st;
    char **names;
    int n, result = 0;
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : -1;
    if (!S_ISDIR(st.st_mode))
        return ku_os_unlink(path);
    if (ku_os_list(path, &names, &n) < 0)
        return -1;
    for (int i = 0; result == 0 && i < n; i++) {
        char *child = ku_asprintf("%s/%s", path, names[i]);
        ku_tick(); /* a large file may take seconds on a network file system */
        if (child)
            result = ku_os_rmtree(child);
        else
            errno = ENOMEM, result = -1;
        ku_free(child);
    }
    ku_free(names);
    return result < 0 ? -1 : ku_os_rmdir(path);
}

int ku_os_memfd(const char *name, unsigned flags)
{
    return is_faulted(0) ? -1 : memfd_create(name, flags | MFD_CLOEXEC);
}

void *ku_os_mmap(size_t bytes, int prot, int flags, int fd, off_t at)
{
    if (is_faulted(0))
        return NULL;
    void *p = mmap(NULL, bytes, prot, flags, fd, at);
    return p == MAP_FAILED ? NULL : p;
}

int ku_os_munmap(void *at, size_t bytes)
{
    return munmap(at, bytes);
}

int ku_os_mprotect(void *at, size_t bytes, int prot)
{
    return mprotect(at, bytes, prot);
}

/*
 * Reads the rest of a file into *text, which grows with it: a file of /proc reports 0 bytes, and
 * any file may grow. A sysctl file gives text to the first read only.
 */
static int read_rest(int fd, size_t expected, size_t max_bytes, char **text, size_t *bytes)
{
    enum { FIRST = 4095 }; /* more than any sysctl file holds */
    size_t cap = expected ? expected + 1 : (max_bytes < FIRST ? max_bytes : FIRST) + 1, n = 0;
    while (1) {
        char *more = ku_realloc(*text, cap, 1);
        if (more == NULL) {
            errno = ENOMEM;
            return -1;
        }
        *text = more;
        ssize_t got = ku_os_read_full(fd, more + n, cap - n);
        if (got < 0)
            return -1;
        n += (size_t)got;
        if (n < cap)
            break;
        if (n > max_bytes) {
            errno = EFBIG;
            return -1;
        }
        cap = cap <= max_bytes / 2 ? 2 * cap : max_bytes + 1;
    }
    (*text)[n] = '\0';
    *bytes = n;
    return 0;
}

int ku_os_slurp(const char *path, size_t max_bytes, char **data, size_t *bytes)
{
    struct stat st;
    int fd = ku_os_open(path, O_RDONLY | O_NONBLOCK, 0), saved; /* do not block on a FIFO */
    char *text = NULL;
    if (fd < 0)
        return -1;
    if (ku_os_fstat(fd, &st) < 0)
        goto fail;
    if (!S_ISREG(st.st_mode)) {
        errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
        goto fail;
    }
    if ((uint64_t)st.st_size > max_bytes) {
        errno = EFBIG;
        goto fail;
    }
    if (read_rest(fd, (size_t)st.st_size, max_bytes, &text, bytes) < 0)
        goto fail;
    close(fd);
    *data = text;
    return 0;
fail:
    saved = errno;
    ku_free(text);
    close(fd);
    errno = saved;
    return -1;
}

int ku_os_status(int otherwise)
{
    return errno == ENOMEM ? KUMI_ENOMEM : otherwise;
}

const char *ku_os_why(void)
{
    const char *text = strerrordesc_np(errno);
    return text ? text : "unknown error";
}
