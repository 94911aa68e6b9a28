/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_OS_H
#define KU_BASE_OS_OS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/*
 * Every fallible system call of kumi goes through here, so that faults can be injected
 * (base/fault.h). Thin: the results are the system's own (-1 with errno), EINTR is retried, short
 * reads and writes are completed by the *_full forms. Messages are the caller's business.
 */
int ku_os_open(const char *path, int flags, mode_t mode); /* always O_CLOEXEC */
int ku_os_close(int fd);
ssize_t ku_os_read(int fd, void *data, size_t bytes);
ssize_t ku_os_read_full(int fd, void *data,
                        size_t bytes); /* bytes read; fewer only at the end of file */
ssize_t ku_os_pread_full(int fd, void *data, size_t bytes, off_t at); /* likewise */
int ku_os_write_full(int fd, const void *data, size_t bytes);         /* 0, -1 */
int ku_os_pwrite_full(int fd, const void *data, size_t bytes, off_t at);
int ku_os_fsync(int fd);
int ku_os_fstat(int fd, struct stat *st);
int ku_os_stat(const char *path, struct stat *st);
int ku_os_mkdir(const char *path, mode_t mode); /* EEXIST is the caller's */
int ku_os_mkdirs(const char *path);             /* with parents; existing ones are fine */
int ku_os_rename(const char *from, const char *to);
int ku_os_unlink(const char *path);
/* A folder and all in it, or a file. Symlinks are not followed, path itself neither. No such path:
 * fine. */
int ku_os_rmtree(const char *path);
int ku_os_ftruncate(int fd, off_t bytes);
/* An exclusive flock, without waiting (EWOULDBLOCK: another open file has it); gone with the last
 * close. */
int ku_os_lock(int fd);
int ku_os_flock(int fd); /* exclusive, at once: EWOULDBLOCK when another process holds it */
int ku_os_fsync_dir(const char *path);                  /* makes a rename in it durable */
int ku_os_exchange(const char *one, const char *other); /* swaps two names in one step */
int ku_os_allocate(int fd,
                   off_t bytes); /* sets the length and reserves the space: ENOSPC now, not later */
/* A file in a folder that has no name and goes with its last descriptor, to read and write; and
 * another descriptor of an open file of a process of this host, with flags of its own (O_DIRECT).
 */
int ku_os_open_anonymous(const char *folder);
int ku_os_reopen(pid_t pid, int fd, int flags);
struct ku_os_space {
    uint64_t free_bytes; /* for us */
    int is_memory;       /* the file system lies in memory (tmpfs) */
};
int ku_os_space(const char *path, struct ku_os_space *space);
/* The names in a folder without . and .., sorted bytewise: one ku_malloc block, freed with
 * ku_free(*names). */
int ku_os_list(const char *path, char ***names, int *n);
int ku_os_memfd(const char *name, unsigned flags);
void *ku_os_mmap(size_t bytes, int prot, int flags, int fd,
                 off_t at); /* NULL on failure, never MAP_FAILED */
int ku_os_munmap(void *at, size_t bytes);

/* Reads a whole regular file into ku_malloc memory (one NUL behind it). > max_bytes: EFBIG. 0 or
 * -1. */
int ku_os_slurp(const char *path, size_t max_bytes, char **data, size_t *bytes);
/* Replaces `path` by these bytes in one step: temporary file beside it, fsync, rename, fsync of the
 * folder. */
int ku_os_replace(const char *path, const void *data, size_t bytes);
/*
 * Makes "<path>.kumi-tmp-<8 hex digits>", a folder or an empty file, to be renamed to path when it
 * is whole. The descriptor holds its lock: close it after the rename. Returns it, or -1.
 *
 *   name   ku_malloc memory
 */
int ku_os_temporary(const char *path, int is_folder, char **name);
/* Removes what processes that are gone left under such names of path. Never fails: what cannot be
 * removed stays. */
void ku_os_temporary_clean(const char *path);

const char *ku_os_why(void);     /* errno in words */
int ku_os_status(int otherwise); /* KUMI_ENOMEM when errno says so */
/* CPUs that this process may run on: affinity and the quotas of its control groups. At least 1. */
enum { KU_OS_CPU_WORDS = 16 };
int ku_os_n_cpus(void);
/* The CPUs that this thread may run on, a bit each; those beyond 1023 are left out. */
void ku_os_cpus(uint64_t mask[KU_OS_CPU_WORDS]);
/* Binds this thread to those CPUs. 0, -1. */
int ku_os_set_cpus(const uint64_t mask[KU_OS_CPU_WORDS]);
int ku_os_n_cpus_host(void); /* by the quotas alone: whatever this process was bound to */
/* Bytes: the least of MemAvailable and what each of our control groups still allows, page cache
 * that nobody uses counted as free. UINT64_MAX when the system does not say. */
uint64_t ku_os_mem_available(void);
/* Bytes: this process's proportional set size, pages that several processes map counted in parts.
 * 0 when the system does not say. */
uint64_t ku_os_pss(void);
/* The same of a system whose /proc and /sys lie under root. For tests. */
int ku_os_n_cpus_under(const char *root, int n_allowed);
uint64_t ku_os_mem_available_under(const char *root);
uint64_t ku_os_pss_under(const char *root);

#endif
