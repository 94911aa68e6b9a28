/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_INPUT_FILE_H
#define KU_DATA_INPUT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"

/* A data file, which is read and never mapped: access to a mapped file that shrinks is SIGBUS. */
struct ku_file {
    char *name;     /* NULL: closed */
    int fd;         /* -1: opened for each read */
    uint64_t bytes; /* its length, at least 1 */
};
/* Files of a data set that stay open; later ones are opened for each read (3 us). */
enum { KU_OPEN_FILES_MAX = 256 };

/*
 * Open a data file for reading.
 *
 *   what   "text or tokens", for the hint
 *
 * Errors: EINPUT (missing, unreadable, empty, a directory or not a regular file), ENOMEM.
 */
KU_STATUS ku_file_open(const char *name, const char *what, struct ku_file *f);
void ku_file_close(struct ku_file *f);
/* Closes the file between reads; limits the number of open files. */
void ku_file_park(struct ku_file *f);
/* Reads exactly `bytes` bytes; errors: EINPUT with the reason in why; threads: any number. */
int ku_file_read(const struct ku_file *f, uint64_t at, void *data, size_t bytes, char *why,
                 size_t why_bytes);
/* The same with an error record: "data: NAME: why". */
KU_STATUS ku_file_get(const struct ku_file *f, uint64_t at, void *data, size_t bytes);
/*
 * Hashes 64 blocks of 4 KiB, spread evenly from the first to the last of the file, or all of a file
 * that has no more, so that opening does not read all data. A change between them is not seen.
 */
KU_STATUS ku_file_identify(const struct ku_file *f, struct ku_sha256 *h);

/*
 * Call `each` for one file, or for each file that matches a glob ('*', '?', '['). Matches are
 * sorted by bytes, independent of the locale.
 *
 * Errors: EINPUT if nothing matches, ENOMEM, and any status that `each` returns.
 */
KU_STATUS ku_input_glob(const char *pattern, int (*each)(void *ctx, const char *name), void *ctx);
/* The cache folder, for all files that are opened together. */
struct ku_cache {
    char *path;      /* NULL: none */
    bool has_warned; /* that nothing can be stored there */
};
/*
 * The cache folder: `folder`, else $KUMI_CACHE, $XDG_CACHE_HOME/kumi or $HOME/.cache/kumi.
 *
 *   out   out->path is to be released with ku_free
 */
KU_STATUS ku_input_cache(const char *folder, struct ku_cache *out);

#endif
