/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/terminal.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/env.h"
#include "kumi/messages.h"

/* Carriage return, erase to the end of the row (ECMA-48). */
#define ERASE "\r\033[K"

enum { ERASE_BYTES = sizeof ERASE - 1, LINE_BYTES = 2048, MAX_COLUMNS = 1024 };

/* A message that cannot be written is lost; there is no other output for it. */
static void put(const char *text, size_t bytes)
{
    ssize_t done = write(STDERR_FILENO, text, bytes);
    (void)done;
}

static void plain_line(void *ctx, const char *line, size_t bytes)
{
    (void)ctx;
    put(line, bytes);
}

static void erasing_line(void *ctx, const char *line, size_t bytes)
{
    char all[ERASE_BYTES + LINE_BYTES] = ERASE;
    (void)ctx;
    if (bytes > LINE_BYTES) {
        put(ERASE, ERASE_BYTES);
        put(line, bytes);
    } else {
        memcpy(all + ERASE_BYTES, line, bytes);
        put(all, ERASE_BYTES + bytes);
    }
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
static void progress(void *ctx, const char *text)
{
    char line[ERASE_BYTES + 4 * MAX_COLUMNS] = ERASE;
    size_t bytes = text ? cut(text, n_columns() - 1) : 0;
    (void)ctx;
    bytes = bytes < 4 * MAX_COLUMNS ? bytes : 4 * MAX_COLUMNS;
    memcpy(line + ERASE_BYTES, text ? text : "", bytes);
    put(line, ERASE_BYTES + bytes);
}

void cli_terminal_open(void)
{
    const char *term = ku_env("TERM"); /* a terminal that can erase a row */
    const int is_on = term && strcmp(term, "dumb") != 0 && isatty(STDERR_FILENO);
    static const struct kumi_messages plain = {plain_line, NULL, NULL};
    static const struct kumi_messages erasing = {erasing_line, progress, NULL};
    kumi_messages_set(is_on ? &erasing : &plain);
}
