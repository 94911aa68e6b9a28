/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_OS_H
#define KU_BASE_OS_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/*
 * System calls. Every fallible system call of kumi goes through these wrappers, so that faults can
 * be injected (base/fault.h).
 *
 * Results are those of the system (-1 with errno). EINTR is retried; the *_full forms complete
 * short reads and writes. Callers write the messages.
 */
int ku_os_open(const char *path, int flags, mode_t mode); /* always O_CLOEXEC */
int ku_os_close(int fd);
ssize_t ku_os_read(int fd, void *data, size_t bytes);
/* Returns the bytes read; fewer only at the end of the file. */
ssize_t ku_os_read_full(int fd, void *data, size_t bytes);
ssize_t ku_os_pread_full(int fd, void *data, size_t bytes, off_t at); /* as ku_os_read_full */
int ku_os_write_full(int fd, const void *data, size_t bytes);         /* 0, -1 */
ssize_t ku_os_write(int fd, const void *data, size_t bytes);          /* may write fewer bytes */
int ku_os_dup_above(int fd, int min); /* a duplicate, at least `min`; close-on-exec */
int ku_os_set_nonblocking(int fd); /* of the open file: shared with duplicates of the descriptor */
int ku_os_pwrite_full(int fd, const void *data, size_t bytes, off_t at);
int ku_os_fsync(int fd);
int ku_os_fstat(int fd, struct stat *st);
int ku_os_stat(const char *path, struct stat *st);
/* Whether nothing has this name, not even a broken symbolic link. False if that is unknown. */
bool ku_os_is_missing(const char *path);
int ku_os_mkdir(const char *path, mode_t mode); /* the caller handles EEXIST */
int ku_os_mkdirs(const char *path);             /* with parents; existing ones are accepted */
int ku_os_rename(const char *from, const char *to);
int ku_os_unlink(const char *path);
int ku_os_rmdir(const char *path); /* an empty one */
/*
 * Removes a file, or a folder and everything in it, with a ku_tick per entry. Does not follow
 * symbolic links. A missing path is not an error.
 */
int ku_os_rmtree(const char *path);
int ku_os_ftruncate(int fd, off_t bytes);
/*
 * Exclusive flock without waiting: EWOULDBLOCK if another open file holds it. Released at the last
 * close.
 */
int ku_os_lock(int fd);
int ku_os_touch(int fd);                                /* sets the times of the file to now */
int ku_os_fsync_dir(const char *path);                  /* makes a rename in the folder durable */
int ku_os_exchange(const char *one, const char *other); /* swaps two names atomically */
/* Sets the length and reserves the space, so that ENOSPC is reported now. */
int ku_os_allocate(int fd, off_t bytes);
/*
 * ku_os_open_anonymous opens a nameless file in a folder for reading and writing; it vanishes with
 * its last descriptor. ku_os_reopen opens another descriptor of an open file of a process of this
 * host, with its own flags (e.g. O_DIRECT).
 */
int ku_os_open_anonymous(const char *folder);
int ku_os_reopen(pid_t pid, int fd, int flags);
struct ku_os_space {
    uint64_t free_bytes; /* available to this user */
    int is_memory;       /* the file system is in memory (tmpfs) */
};
int ku_os_space(const char *path, struct ku_os_space *space);
/*
 * Names in a folder without . and .., sorted bytewise. One ku_malloc block; free with
 * ku_free(*names).
 */
int ku_os_list(const char *path, char ***names, int *n);
int ku_os_memfd(const char *name, unsigned flags);
/* Returns NULL on failure, never MAP_FAILED. */
void *ku_os_mmap(size_t bytes, int prot, int flags, int fd, off_t at);
int ku_os_munmap(void *at, size_t bytes);
int ku_os_mprotect(void *at, size_t bytes, int prot);

/*
 * Reads a whole regular file, also one of /proc or /sys, into ku_malloc memory and appends a NUL.
 * Returns 0 or -1; larger than max_bytes: EFBIG.
 */
int ku_os_slurp(const char *path, size_t max_bytes, char **data, size_t *bytes);
/*
 * Replaces `path` by these bytes atomically: temporary file in the same folder, fsync, rename,
 * fsync of the folder.
 */
int ku_os_replace(const char *path, const void *data, size_t bytes);
/*
 * Creates "<path>.kumi-tmp-<8 hex digits>", a folder or an empty file, to be renamed to path when
 * it is complete. Returns its descriptor, which holds a lock, or -1. Close it after the rename.
 *
 *   name   ku_malloc memory
 */
int ku_os_temporary(const char *path, int is_folder, char **name);
/*
 * Removes temporary files of `path` left by processes that no longer exist. Never fails.
 */
void ku_os_temporary_clean(const char *path);

const char *ku_os_why(void);     /* errno as text */
int ku_os_status(int otherwise); /* KUMI_ENOMEM if errno is ENOMEM, else `otherwise` */
/*
 * CPUs that this process may use: affinity and the quotas of its control groups. At least 1.
 */
enum { KU_OS_CPU_WORDS = 16 };
int ku_os_n_cpus(void);
/* CPUs that this thread may run on, one bit each; CPUs beyond 1023 are left out. */
void ku_os_cpus(uint64_t mask[KU_OS_CPU_WORDS]);
/*
 * Binds this thread to these CPUs. Returns 0 or -1.
 */
int ku_os_set_cpus(const uint64_t mask[KU_OS_CPU_WORDS]);
int ku_os_n_cpus_host(void); /* quotas only, ignoring the affinity */
/* Raise the limit of open files to the max that this process may set if it is below `wanted`. */
void ku_os_raise_files(uint64_t wanted);
/* The running kernel: equal in all containers and network namespaces of a machine. 0: unknown. */
uint64_t ku_os_kernel(void);
/*
 * Free memory in bytes: the minimum of MemAvailable and the room in each of our control groups,
 * with inactive page cache counted as free. UINT64_MAX if the system does not report it.
 */
uint64_t ku_os_mem_available(void);
/*
 * Proportional set size of this process in bytes (pages shared by k processes count 1/k). 0 if the
 * system does not report it.
 */
uint64_t ku_os_pss(void);
/*
 * The same for a system whose /proc and /sys are under root. For tests.
 */
int ku_os_n_cpus_under(const char *root, int n_allowed);
uint64_t ku_os_mem_available_under(const char *root);
uint64_t ku_os_pss_under(const char *root);

#endif
