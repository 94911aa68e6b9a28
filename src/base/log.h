/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_LOG_H
#define KU_BASE_LOG_H

#include <stdbool.h>

/*
 * Log messages on stderr, one write per line: "kumi[3] comm: text" (rank in a job, subsystem).
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
bool ku_log_is_on(enum ku_log_sub sub, enum ku_log_level level);
void ku_log_write(enum ku_log_sub sub, enum ku_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
