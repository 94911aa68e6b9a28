/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_LOG_H
#define KU_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

/*
 * What the library says. It prints nothing itself: a line goes to the callback of
 * kumi_messages_set, which `kumi` sets to its terminal, and without one to stderr, one write per
 * line.
 *
 *     KU_LOG        "kumi[3] comm: text" (rank in a job, subsystem), if its level is on
 *     KU_MESSAGE    a report to the user, "kumi: text": always to a callback, else if the level of
 *                   subsystem train is on
 *     ku_log_line   always
 *
 * KUMI_LOG sets the levels as a comma-separated list in which later items override earlier ones:
 * "info", or "*:error,comm:debug,ckpt:info". The default is warn. An unknown subsystem or level is
 * reported once.
 */
enum ku_log_level { KU_LOG_ERROR, KU_LOG_WARN, KU_LOG_INFO, KU_LOG_DEBUG };
#define KU_LOG_SUBSYSTEMS(X)                                                                       \
    X(BASE, base)                                                                                  \
    X(COMM, comm)                                                                                  \
    X(LAUNCH, launch) X(PASS, pass) X(EXEC, exec) X(CKPT, ckpt) X(DATA, data) X(TRAIN, train)
enum ku_log_sub {
#define X(upper, lower) KU_SUB_##upper,
    KU_LOG_SUBSYSTEMS(X)
#undef X
        KU_N_SUBS
};
#define KU_LOG(sub, level, ...)                                                                    \
    do {                                                                                           \
        if (ku_log_is_on(KU_SUB_##sub, KU_LOG_##level))                                            \
            ku_log_write(KU_SUB_##sub, KU_LOG_##level, __VA_ARGS__);                               \
    } while (0)
#define KU_MESSAGE(level, ...)                                                                     \
    do {                                                                                           \
        if (ku_message_is_on(KU_LOG_##level))                                                      \
            ku_log_line(__VA_ARGS__);                                                              \
    } while (0)
bool ku_log_is_on(enum ku_log_sub sub, enum ku_log_level level);
void ku_log_write(enum ku_log_sub sub, enum ku_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool ku_message_is_on(enum ku_log_level level);
/* A line of any length; the newline is added. Threads: any. */
void ku_log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A finished line, newline included. Does not allocate. */
void ku_log_put(const char *line, size_t bytes);
/* The progress text of long work, replaced by the next one; NULL removes it. */
bool ku_progress_is_shown(void);
void ku_progress_show(const char *text);

#endif
