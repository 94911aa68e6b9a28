/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_TERM_H
#define KU_BASE_TERM_H

#include <stddef.h>

/*
 * Lines on stderr. A line is one write, so that lines of several processes do not mix. On a
 * terminal a progress line may stand in the cursor's row, drawn by this process or by another: a
 * line erases it first. The cursor rests behind the progress text.
 */
/* 1: stderr is a terminal that can erase a row (TERM is set and not "dumb"). */
int ku_term_is_on(void);
/* Prints one line; the newline is added. Threads: any. */
void ku_term_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same for a finished line, newline included. Allocates nothing. */
void ku_term_write(const char *line, size_t bytes);
/* Draws `text` as the progress line, cut to the width that the terminal has now. Nothing where
 * ku_term_is_on() is 0. */
void ku_term_progress(const char *text);
/* Erases the progress line. */
void ku_term_clear(void);

#endif
