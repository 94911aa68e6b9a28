/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_READ_AHEAD_H
#define KU_CKPT_READ_AHEAD_H

#include <stddef.h>
#include <stdint.h>

/*
 * A range of a file in windows of 2 MiB, in order, with the next three being read meanwhile: a disk
 * that has one request at a time stands still while we hash and copy.
 */
struct ku_ahead;

/*
 * Begin to read [at, end) of a file, `at` a multiple of 4096.
 *
 *   direct_fd   with O_DIRECT, which spares a cold file the page cache; -1: none
 *
 * Errors: KUMI_ENOMEM.
 */
int ku_ahead_open(int fd, int direct_fd, uint64_t at, uint64_t end, struct ku_ahead **out);
/* The next window, valid until the next call, zeros where the file ended early. *bytes 0: no more.
 * Returns 0, or -1 with errno. Blocks. */
int ku_ahead_next(struct ku_ahead *a, const unsigned char **data, size_t *bytes);
void ku_ahead_close(struct ku_ahead *a); /* takes NULL */

#endif
