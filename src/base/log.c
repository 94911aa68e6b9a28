/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "kumi/messages.h"

static const char *const sub_name[KU_N_SUBS] = {
#define X(upper, lower) #lower,
    KU_LOG_SUBSYSTEMS(X)
#undef X
};
static const char *const level_name[] = {"error", "warn", "info", "debug"};

/* Read from KUMI_LOG once, constant afterwards. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static unsigned char level_of[KU_N_SUBS];

/* Set before other threads exist. */
static const struct kumi_messages *messages;

void kumi_messages_set(const struct kumi_messages *m)
{
    messages = m;
}

/* A line that cannot be written is lost; there is no other output for it. */
void ku_log_put(const char *line, size_t bytes)
{
    if (messages && messages->line) {
        messages->line(messages->ctx, line, bytes);
    } else {
        ssize_t done = write(STDERR_FILENO, line, bytes);
        (void)done;
    }
}

void ku_log_line(const char *format, ...)
{
    enum { LINE_BYTES = 2048 };
    char line[LINE_BYTES];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int bytes = ku_text_printv(line, sizeof line, format, args);
    char *text = bytes < LINE_BYTES - 1 ? line : ku_malloc((size_t)bytes + 2);
    if (text == NULL) { /* print what fits */
        text = line;
        bytes = LINE_BYTES - 2;
    } else if (text != line) {
        ku_text_printv(text, (size_t)bytes + 1, format, again);
    }
    if (bytes >= 0) {
        text[bytes] = '\n';
        ku_log_put(text, (size_t)bytes + 1);
    }
    if (text != line)
        ku_free(text);
    va_end(again);
    va_end(args);
}

bool ku_message_is_on(enum ku_log_level level)
{
    return (messages && messages->line) || ku_log_is_on(KU_SUB_TRAIN, level);
}

bool ku_progress_is_shown(void)
{
    return messages && messages->progress;
}

void ku_progress_show(const char *text)
{
    if (ku_progress_is_shown())
        messages->progress(messages->ctx, text);
}

static int find(const char *const *names, int n, const char *word, size_t bytes)
{
    for (int i = 0; i < n; i++)
        if (strlen(names[i]) == bytes && memcmp(names[i], word, bytes) == 0)
            return i;
    return -1;
}

/*
 * Reports an invalid item of KUMI_LOG. In a job only rank 0 prints it.
 */
static void refuse(const char *word, size_t bytes, const char *what, const char *const *names,
                   int n, const char *more)
{
    const char *rank = ku_env("KUMI_RANK") ? ku_env("KUMI_RANK") : ku_env("RANK");
    char list[128];
    int at = 0;
    if (rank && strcmp(rank, "0") != 0)
        return;
    for (int i = 0; i < n; i++)
        at += snprintf(list + at, sizeof list - (size_t)at, " %s", names[i]);
    ku_log_line("kumi: KUMI_LOG: %.*s: unknown %s; one of%s%s; write \"info\" or "
                "\"comm:debug,ckpt:info\"",
                (int)(bytes < 80 ? bytes : 80), word, what, list, more);
}

static void set_one(const char *word, size_t bytes)
{
    const char *colon = memchr(word, ':', bytes);
    size_t sub_bytes = colon ? (size_t)(colon - word) : 0;
    const char *level_word = colon ? colon + 1 : word;
    int level = find(level_name, 4, level_word, bytes - (size_t)(level_word - word));
    int is_all = colon == NULL || (sub_bytes == 1 && *word == '*');
    int sub = is_all ? -1 : find(sub_name, KU_N_SUBS, word, sub_bytes);
    if (!is_all && sub < 0) {
        refuse(word, bytes, "subsystem", sub_name, KU_N_SUBS, " and *");
        return;
    }
    if (level < 0) {
        refuse(word, bytes, "level", level_name, 4, "");
        return;
    }
    for (int s = 0; s < KU_N_SUBS; s++)
        if (is_all || s == sub)
            level_of[s] = (unsigned char)level;
}

static void read_levels(void)
{
    memset(level_of, KU_LOG_WARN, sizeof level_of);
    const char *text = ku_env("KUMI_LOG");
    while (text && *text) {
        size_t bytes = strcspn(text, ",");
        if (bytes)
            set_one(text, bytes);
        text += bytes + (text[bytes] == ',');
    }
}

bool ku_log_is_on(enum ku_log_sub sub, enum ku_log_level level)
{
    pthread_once(&once, read_levels);
    return level <= (enum ku_log_level)level_of[sub];
}

void ku_log_write(enum ku_log_sub sub, enum ku_log_level level, const char *format, ...)
{
    char line[1024];
    int rank = ku_err_get_rank(), at;
    if (rank >= 0)
        at =
            snprintf(line, sizeof line, "kumi[%d] %s %s: ", rank, sub_name[sub], level_name[level]);
    else
        at = snprintf(line, sizeof line, "kumi %s %s: ", sub_name[sub], level_name[level]);
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + at, sizeof line - (size_t)at - 1, format, args);
    va_end(args);
    at += more < (int)sizeof line - at - 2 ? more : (int)sizeof line - at - 2;
    line[at++] = '\n';
    ku_log_put(line, (size_t)at);
}
