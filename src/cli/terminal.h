/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CLI_TERMINAL_H
#define KU_CLI_TERMINAL_H

/*
 * Show the library's messages on stderr from now on. Each line is one write, so that lines of
 * several processes do not mix. On a terminal a progress line may occupy the cursor's row, drawn by
 * this or another process; printing a line erases it first. The cursor stays after the progress
 * text, which is cut to the terminal's current width.
 */
void cli_terminal_open(void);

#endif
