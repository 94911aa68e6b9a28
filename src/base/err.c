/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include "base/log.h"
#include "base/str.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * One record per thread. This is the only mutable state of this file.
 */
static _Thread_local struct kumi_error last;
static _Thread_local int rank_of_thread = -1;

const struct kumi_error *kumi_last_error(void)
{
    return &last;
}
const struct kumi_error *ku_err_get(void)
{
    return &last;
}
void ku_err_rank(int rank)
{
    rank_of_thread = rank;
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int ku_err_set(int status, enum kumi_scope scope, const char *file, int line, const char *format,
               ...)
{
    int saved = errno;
    char text[sizeof last.text]; /* arguments may point into the record */
    va_list args;
    va_start(args, format);
    errno = saved;
    ku_text_printv(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c; c++) /* text may come from files or users; an error is one line */
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    memset(&last, 0, sizeof last);
    last.status = status;
    last.scope = (int32_t)scope;
    last.rank = rank_of_thread;
    last.sys_errno = saved;
    memcpy(last.text, text, sizeof text);
    snprintf(last.src, sizeof last.src, "%.38s:%d", file_name(file), line);
    return status;
}

int ku_err_put(const struct kumi_error *error)
{
    if (error != &last)
        last = *error;
    return last.status;
}

void ku_err_print(void)
{
    char line[sizeof last.text + 32];
    int bytes = snprintf(line, sizeof line, "kumi: error: %s\n", last.text);
    ku_log_put(line, (size_t)bytes);
}

void ku_bug(const char *file, int line, const char *condition)
{
    char text[256];
    int bytes =
        snprintf(text, sizeof text, "kumi: bug: %s:%d: %s\n", file_name(file), line, condition);
    ku_log_put(text, (size_t)bytes);
    abort();
}

const char *kumi_status_name(int status)
{
    static const struct {
        int status;
        const char *name;
    } table[] = {{KUMI_OK, "KUMI_OK"},
                 {KUMI_EINVAL, "KUMI_EINVAL"},
                 {KUMI_EINPUT, "KUMI_EINPUT"},
                 {KUMI_ENOCKPT, "KUMI_ENOCKPT"},
                 {KUMI_ESTORAGE, "KUMI_ESTORAGE"},
                 {KUMI_EPEER, "KUMI_EPEER"},
                 {KUMI_ETIMEDOUT, "KUMI_ETIMEDOUT"},
                 {KUMI_EMISMATCH, "KUMI_EMISMATCH"},
                 {KUMI_ENUMERIC, "KUMI_ENUMERIC"},
                 {KUMI_ESTOPPED, "KUMI_ESTOPPED"},
                 {KUMI_EBUSY, "KUMI_EBUSY"},
                 {KUMI_EPLAN, "KUMI_EPLAN"},
                 {KUMI_ENOMEM, "KUMI_ENOMEM"},
                 {KUMI_EDEVICE, "KUMI_EDEVICE"},
                 {KUMI_EBUG, "KUMI_EBUG"}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].status == status)
            return table[i].name;
    return "unknown status";
}

int ku_err_get_rank(void)
{
    return rank_of_thread;
}
