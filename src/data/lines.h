/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_LINES_H
#define KU_DATA_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Reads lines of a text file, which must be UTF-8, in memory bounded by the longest line, or by the
 * bytes of a line that the caller leaves.
 */
struct ku_lines;

enum { KU_LINE_BYTES_MAX = 16 << 20 }; /* a line is held in memory as a whole */

/*
 * Open a text file.
 *
 *   keep_ends   0: lines come without "\n" or "\r\n"; 1: as in the file
 *
 * Errors: EINPUT (missing, empty, not a regular file), ENOMEM.
 */
KU_STATUS ku_lines_open(const char *path, int keep_ends, struct ku_lines **out);
void ku_lines_close(struct ku_lines *l);

/*
 * Get the next bytes of a line, its end included. For files whose lines may be longer than memory,
 * instead of ku_lines_next; the file was opened with keep_ends.
 *
 *   is_end   out: 1: the line ends with these bytes; 0: more of it follows
 *
 * Returns 1, or 0 at the end of the file. *text is valid until the next call. Bytes that are not
 * taken come again, with more after them.
 *
 * Errors: EINPUT with file:line (invalid UTF-8, a part above KU_LINE_BYTES_MAX), ENOMEM.
 */
KU_STATUS ku_lines_part(struct ku_lines *l, const char **text, size_t *bytes, int *is_end);
void ku_lines_take(struct ku_lines *l, size_t bytes);
/*
 * Get the next line. Returns 1, or 0 at the end of the file. *text is valid until the next call.
 *
 * Errors: EINPUT with file:line (invalid UTF-8, a line above KU_LINE_BYTES_MAX), ENOMEM.
 */
KU_STATUS ku_lines_next(struct ku_lines *l, const char **text, size_t *bytes);
int64_t ku_lines_number(const struct ku_lines *l); /* of the last line read, from 1 */
uint64_t ku_lines_done_bytes(const struct ku_lines *l);
uint64_t ku_lines_total_bytes(const struct ku_lines *l);

/* ASCII white space. */
static inline bool ku_is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}
/* The length of a line without trailing blanks. */
static inline size_t ku_line_trim(const char *text, size_t bytes)
{
    while (bytes > 0 && ku_is_blank(text[bytes - 1]))
        bytes--;
    return bytes;
}
/* Returns EINPUT, naming the first invalid byte, unless the line is valid UTF-8. */
KU_STATUS ku_line_check(const char *path, int64_t line, const void *text, size_t bytes);

#endif
