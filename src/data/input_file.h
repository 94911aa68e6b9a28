/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_INPUT_FILE_H
#define KU_DATA_INPUT_FILE_H

#include <stdint.h>

/*
 * Open a data file for reading.
 *
 *   bytes   receives its length, at least 1
 *
 * Errors: EINPUT: missing, unreadable, empty, a directory or another kind of file.
 */
int ku_input_open(const char *name, int *fd, uint64_t *bytes);

/* Calls each for a file, or for the files of a glob ('*', '?', '['; sorted by their bytes, whatever
 * the locale). Errors: EINPUT when none matches, ENOMEM; what `each` returns. */
int ku_input_glob(const char *pattern, int (*each)(void *ctx, const char *name), void *ctx);
/* The cache folder: `folder`, else $KUMI_CACHE, $XDG_CACHE_HOME/kumi, $HOME/.cache/kumi. *path for
 * ku_free; NULL: there is none. */
int ku_input_cache(const char *folder, char **path);

#endif
