/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_READ_AHEAD_H
#define KU_CKPT_READ_AHEAD_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Reads a range of a file in segments of 2 MiB, in order, with up to three further segments being
 * read in the background. With one request at a time the disk would idle while the caller hashes
 * and copies.
 */
struct ku_ahead;

/*
 * Start reading [at, end) of a file.
 *
 *   fd          the file, borrowed until ku_ahead_close
 *   direct_fd   the same file opened with O_DIRECT, to bypass the page cache; -1: none
 *   at          bytes, a multiple of 4096
 *
 * Errors: ENOMEM.
 */
KU_STATUS ku_ahead_open(int fd, int direct_fd, uint64_t at, uint64_t end, struct ku_ahead **out);
/* Wait for the next segment, valid until the next call; zeros after the end of a truncated file.
 * *bytes 0: no more. Returns 0, or -1 with errno. Blocks. */
int ku_ahead_next(struct ku_ahead *a, const unsigned char **data, size_t *bytes);
void ku_ahead_close(struct ku_ahead *a); /* takes NULL */

#endif
