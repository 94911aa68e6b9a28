/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"

/* KUMI_FAULT=os:N fails the N-th call with EIO, write:N every write from the N-th on with ENOSPC.
 * Counters are all there is. */
enum fault_kind { FAULT_UNREAD, FAULT_NONE, FAULT_OS, FAULT_WRITE };
static atomic_int fault_kind;
static atomic_long fault_left;

static void read_fault(void)
{
    const char *text = getenv("KUMI_FAULT");
    enum fault_kind kind = FAULT_NONE;
    if (text && strncmp(text, "os:", 3) == 0)
        kind = FAULT_OS;
    else if (text && strncmp(text, "write:", 6) == 0)
        kind = FAULT_WRITE;
    atomic_store(&fault_left, kind == FAULT_NONE ? 0 : strtol(strchr(text, ':') + 1, NULL, 10));
    atomic_store(&fault_kind, (int)kind);
}

static int is_faulted(int is_write)
{
    if (atomic_load(&fault_kind) == FAULT_UNREAD)
        read_fault();
    int kind = atomic_load(&fault_kind);
    if (kind == FAULT_OS && atomic_fetch_sub(&fault_left, 1) == 1) {
        errno = EIO;
        return 1;
    }
    if (kind == FAULT_WRITE && is_write && atomic_fetch_sub(&fault_left, 1) <= 1) {
        errno = ENOSPC;
        return 1;
    }
    return 0;
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
    char *copy = ku_strdup(path);
    int result = 0;
    if (copy == NULL) {
        errno = ENOMEM;
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
            errno = errno == EEXIST || errno == 0 ? ENOTDIR : errno;
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

int ku_os_rmtree(const char *path)
{
    DIR *dir = opendir(path);
    if (dir == NULL)
        return errno == ENOTDIR ? ku_os_unlink(path) : errno == ENOENT ? 0 : -1;
    int result = 0;
    for (struct dirent *e; result == 0 && (e = readdir(dir)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        char *child = ku_asprintf("%s/%s", path, e->d_name);
        struct stat st;
        if (child == NULL || lstat(child, &st) < 0)
            result = -1;
        else
            result = S_ISDIR(st.st_mode) ? ku_os_rmtree(child) : ku_os_unlink(child);
        ku_free(child);
    }
    closedir(dir);
    return result < 0 ? result : rmdir(path);
}

int ku_os_lock(int fd)
{
    int result;
    if (is_faulted(0))
        return -1;
    RETRY(result, flock(fd, LOCK_EX | LOCK_NB));
    return result;
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

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* n names that lie one behind the other in text, as a sorted array with the text behind it. */
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

int ku_os_slurp(const char *path, size_t max_bytes, char **data, size_t *bytes)
{
    struct stat st;
    int fd = ku_os_open(path, O_RDONLY, 0), saved;
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
    text = ku_malloc((size_t)st.st_size + 1);
    if (text == NULL) {
        errno = ENOMEM;
        goto fail;
    }
    ssize_t n = ku_os_read_full(fd, text, (size_t)st.st_size);
    if (n < 0)
        goto fail;
    text[n] = '\0';
    close(fd);
    *data = text;
    *bytes = (size_t)n;
    return 0;
fail:
    saved = errno;
    ku_free(text);
    close(fd);
    errno = saved;
    return -1;
}

static int write_and_sync(const char *path, const void *data, size_t bytes)
{
    int fd = ku_os_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0)
        return -1;
    int result = ku_os_write_full(fd, data, bytes);
    if (result == 0)
        result = ku_os_fsync(fd);
    int saved = errno;
    if (ku_os_close(fd) < 0 && result == 0)
        return -1;
    errno = saved;
    return result;
}

int ku_os_replace(const char *path, const void *data, size_t bytes)
{
    char *temp = ku_asprintf("%s.tmp.%d", path, (int)getpid()), *folder = ku_strdup(path);
    int result = -1, saved = ENOMEM;
    if (temp && folder) {
        char *slash = strrchr(folder, '/');
        if (slash)
            slash[slash == folder] = '\0';
        result = write_and_sync(temp, data, bytes);
        if (result == 0)
            result = ku_os_rename(temp, path);
        if (result == 0)
            result = ku_os_fsync_dir(slash ? folder : ".");
        saved = errno;
        if (result < 0)
            unlink(temp);
    }
    ku_free(temp);
    ku_free(folder);
    errno = saved;
    return result;
}

/* "name: 123 kB" of /proc/meminfo, or the only number of a cgroup file. Returns 0 when there is
 * none ("max"). */
static uint64_t read_number(const char *path, const char *name)
{
    char text[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    const char *at = name ? strstr(text, name) : text;
    return at ? strtoull(at + (name ? strlen(name) : 0), NULL, 10) : 0;
}

const char *ku_os_why(void)
{
    const char *text = strerrordesc_np(errno);
    return text ? text : "unknown error";
}

int ku_os_n_cpus(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    char text[64] = "";
    int fd = open("/sys/fs/cgroup/cpu.max", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, text, sizeof text - 1);
        close(fd);
        char *end;
        double quota = got > 0 ? strtod(text, &end) : 0, period = quota > 0 ? strtod(end, NULL) : 0;
        if (quota > 0 && period > 0 && quota / period < n)
            n = (int)(quota / period);
    }
    return n < 1 ? 1 : n;
}

uint64_t ku_os_mem_available(void)
{
    static const char *const cgroup[][2] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
    uint64_t least = read_number("/proc/meminfo", "MemAvailable:") * 1024;
    for (int i = 0; i < 2; i++) {
        uint64_t limit = read_number(cgroup[i][0], NULL), used = read_number(cgroup[i][1], NULL);
        if (limit && limit >= used && limit - used < least)
            least = limit - used;
    }
    return least;
}
