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

#endif
