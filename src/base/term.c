/* SPDX-License-Identifier: Apache-2.0 */
#include "base/term.h"

#include "base/env.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Carriage return, erase to the end of the row (ECMA-48). */
#define ERASE "\r\033[K"

enum { ERASE_BYTES = sizeof ERASE - 1, LINE_BYTES = 2048, MAX_COLUMNS = 1024 };

bool ku_term_is_on(void)
{
    const char *term = ku_env("TERM");
    return term && strcmp(term, "dumb") != 0 && isatty(STDERR_FILENO);
}

/* A message that cannot be written is lost; there is no other output for it. */
static void put(const char *text, size_t bytes)
{
    ssize_t done = write(STDERR_FILENO, text, bytes);
    (void)done;
}

void ku_term_write(const char *line, size_t bytes)
{
    char all[ERASE_BYTES + LINE_BYTES] = ERASE;
    if (!ku_term_is_on()) {
        put(line, bytes);
    } else if (bytes > LINE_BYTES) {
        put(ERASE, ERASE_BYTES);
        put(line, bytes);
    } else {
        memcpy(all + ERASE_BYTES, line, bytes);
        put(all, ERASE_BYTES + bytes);
    }
}

void ku_term_line(const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int bytes = vsnprintf(line, sizeof line, format, args);
    char *text = bytes < (int)sizeof line - 1 ? line : ku_malloc((size_t)bytes + 2);
    if (text == NULL) { /* print what fits */
        text = line;
        bytes = (int)sizeof line - 2;
    } else if (text != line) {
        vsnprintf(text, (size_t)bytes + 1, format, again);
    }
    if (bytes >= 0) {
        text[bytes] = '\n';
        ku_term_write(text, (size_t)bytes + 1);
    }
    if (text != line)
        ku_free(text);
    va_end(again);
    va_end(args);
}

static int n_columns(void)
{
    struct winsize w;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_col == 0)
        return 80;
    return w.ws_col < MAX_COLUMNS ? w.ws_col : MAX_COLUMNS;
}

/*
 * Number of bytes of `text` that fit into `columns`. UTF-8 characters of 3 or 4 bytes are counted
 * as two columns wide.
 */
static size_t cut(const char *text, int columns)
{
    size_t end = 0;
    for (size_t at = 0; text[at];) {
        unsigned char c = (unsigned char)text[at];
        columns -= c >= 0xe0 ? 2 : 1;
        at++;
        while (((unsigned char)text[at] & 0xc0) == 0x80)
            at++;
        if (columns < 0)
            break;
        end = at;
    }
    return end;
}

/* The last column stays empty: a character there moves some terminals to the next row. */
void ku_term_progress(const char *text)
{
    char line[ERASE_BYTES + 4 * MAX_COLUMNS] = ERASE;
    if (!ku_term_is_on())
        return;
    size_t bytes = cut(text, n_columns() - 1);
    bytes = bytes < 4 * MAX_COLUMNS ? bytes : 4 * MAX_COLUMNS;
    memcpy(line + ERASE_BYTES, text, bytes);
    put(line, ERASE_BYTES + bytes);
}

void ku_term_clear(void)
{
    if (ku_term_is_on())
        put(ERASE, ERASE_BYTES);
}
