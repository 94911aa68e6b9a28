/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_INPUT_FILE_H
#define KU_DATA_INPUT_FILE_H

#include <stdint.h>

#include "base/err.h"

/*
 * Open a data file for reading.
 *
 *   bytes   receives its length, at least 1
 *
 * Errors: EINPUT (missing, unreadable, empty, a directory or not a regular file).
 */
KU_STATUS ku_input_open(const char *name, int *fd, uint64_t *bytes);

/*
 * Call `each` for one file, or for each file that matches a glob ('*', '?', '['). Matches are
 * sorted by bytes, independent of the locale.
 *
 * Errors: EINPUT if nothing matches, ENOMEM, and any status that `each` returns.
 */
KU_STATUS ku_input_glob(const char *pattern, int (*each)(void *ctx, const char *name), void *ctx);
/*
 * The cache folder: `folder`, else $KUMI_CACHE, $XDG_CACHE_HOME/kumi or $HOME/.cache/kumi.
 *
 *   path   receives the name, to be released with ku_free; NULL if there is no cache folder
 */
KU_STATUS ku_input_cache(const char *folder, char **path);

#endif
