/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_CACHE_INDEX_H
#define KU_DATA_CACHE_INDEX_H

#include "base/err.h"
#include "base/progress.h"
#include "data/input_file.h"

#include <stdbool.h>
#include <sys/stat.h>
#include <time.h>

/*
 * What is known of a data file, in the cache folder:
 *
 *     KIND-<hash of device and inode>.idx   a header with length and times of the file, contents
 *
 * The contents are valid while length and times are unchanged. They are written only if the times
 * are at least 2 s old, because a file system with coarse time stamps could hide a later change. A
 * checksum detects a truncated index. The index is also the lock of the file: the process that
 * holds it does the work, others wait for it. While it advances it sets the time of the index, so
 * that the others see it.
 */
struct ku_cache_index {
    int fd; /* -1: none */
    bool is_locked;
    struct stat st; /* of the data file */
    uint64_t place; /* hash of device and inode */
    char *path;
    struct timespec since;    /* the data file was not read before */
    struct ku_progress outer; /* that of open */
    int64_t touched_ns;
};

/*
 * Opens and locks the index of a file. If the folder cannot be written, rank 0 prints a warning
 * once, the index is not locked, and an existing one can be read.
 *
 *   cache      has a folder
 *   progress   done_bytes counts the advances of the process that holds the lock; NULL: none
 *
 * Blocks: while another process holds the lock. Errors: EINPUT, ENOMEM, any status of progress. The
 * caller closes x, also after an error.
 */
KU_STATUS ku_cache_index_open(struct ku_cache_index *x, struct ku_cache *cache, const char *kind,
                              const struct ku_file *f, const struct ku_progress *progress);
/* For work under the lock: calls that of open, and lets waiting processes see the advance. */
struct ku_progress ku_cache_index_progress(struct ku_cache_index *x);
void ku_cache_index_close(struct ku_cache_index *x); /* also releases the lock */
/* Reads valid contents into ku_malloc memory; returns 1; 0 if there are none; or ENOMEM. */
KU_STATUS ku_cache_index_read(const struct ku_cache_index *x, void **data, size_t *bytes);
/* Stores the contents; prints a warning on failure. */
void ku_cache_index_write(const struct ku_cache_index *x, const void *data, size_t bytes);

#endif
