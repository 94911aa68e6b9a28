/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_SELECTION_H
#define KU_PS_SELECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * What a worker asks for of a server's pull space: all of it, a range, or rows of a range.
 *
 *     pull space    |         | row 0 | row 1 | row 2 | row 3 | row 4 |        |
 *                             ^ offset                                ^ offset + bytes
 *     rows 1, 3, 4  | row 1 | row 3 | row 4 |      the answer
 *
 * Rows ascend, so no answer is larger than the space.
 */
enum { KU_PS_MAX_ROWS = 1 << 16 /* 256 KiB of numbers for each stream; tokens of a large batch */ };
struct ku_ps_selection {
    size_t offset, bytes; /* the range */
    size_t row_bytes;     /* 0: all of the range */
    const uint32_t *row;  /* [n_rows] */
    size_t n_rows;
};
/*
 * Check what a worker sent.
 *
 *   x       bytes 0: to the end of the space, which replaces it
 *   space   bytes of the pull space
 *
 * Errors: KUMI_EINVAL.
 */
KU_STATUS ku_ps_selection_check(struct ku_ps_selection *x, int worker, size_t space);
/* Bytes of the answer. */
size_t ku_ps_selection_bytes(const struct ku_ps_selection *x);
/*
 * Where byte `at` of the answer is in the pull space.
 *
 *   bytes   out: so many from there on follow each other in both
 */
size_t ku_ps_selection_find(const struct ku_ps_selection *x, size_t at, size_t *bytes);

#endif
