/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_TERM_H
#define KU_BASE_TERM_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Lines on stderr. Each line is one write, so that lines of several processes do not mix. On a
 * terminal a progress line may occupy the cursor's row, drawn by this or another process; printing
 * a line erases it first. The cursor stays after the progress text.
 */
/* 1 if stderr is a terminal that can erase a row (TERM is set and not "dumb"). */
bool ku_term_is_on(void);
/*
 * Prints one line and adds the newline. Threads: any.
 */
void ku_term_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
/*
 * Prints a finished line, newline included. Does not allocate.
 */
void ku_term_write(const char *line, size_t bytes);
/*
 * Draws `text` as the progress line, cut to the terminal's current width. Does nothing if
 * ku_term_is_on() is 0.
 */
void ku_term_progress(const char *text);
void ku_term_clear(void);

#endif
