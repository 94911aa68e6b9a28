/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_ERR_H
#define KU_BASE_ERR_H

#include "kumi/status.h"

/*
 * Errors.
 *
 * The first function that decides on an error writes the thread's error record with KU_ERR and
 * returns the status. Callers pass the status on with KU_TRY and leave the record alone.
 *
 * Message format: "<what>: <where>: <values>; <what to do>", lower case, without "kumi: error:" and
 * without a full stop. ku_os_why() gives errno as text.
 *
 *     if (n < 1)
 *         return KU_ERR(KUMI_EINVAL, "rank count: -n: %d; give a number from 1 to %d", n, max);
 *     KU_TRY(ku_json_load(path, max_bytes, &doc));
 */
#define KU_ERR(status, ...) ku_err_set((status), KUMI_SCOPE_CALL, __FILE__, __LINE__, __VA_ARGS__)
#define KU_ERR_SCOPE(status, scope, ...)                                                           \
    ku_err_set((status), (scope), __FILE__, __LINE__, __VA_ARGS__)

/*
 * Return type of a function that returns 0 (some: a count) or a negative enum kumi_status: the
 * compiler refuses a call that drops it.
 */
#define KU_STATUS __attribute__((warn_unused_result)) int

/* Drops a status on purpose. why: a string, the reason. */
#define KU_IGNORE(call, why)                                                                       \
    do {                                                                                           \
        int ku_ignored = (call);                                                                   \
        (void)ku_ignored, (void)(why);                                                             \
    } while (0)

#define KU_TRY(call)                                                                               \
    do {                                                                                           \
        int ku_try_status = (call);                                                                \
        if (ku_try_status < 0)                                                                     \
            return ku_try_status;                                                                  \
    } while (0)

/*
 * KU_TRY for a function with a variable `status` and one label `out` that releases its resources.
 */
#define KU_TRY_OUT(call)                                                                           \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status < 0)                                                                            \
            goto out;                                                                              \
    } while (0)

/* Writes the thread's record and returns `status`. */
int ku_err_set(int status, enum kumi_scope scope, const char *file, int line, const char *format,
               ...) __attribute__((format(printf, 5, 6), cold));
/*
 * Copies a record from elsewhere (another thread, the root cause in shared memory) into this
 * thread's record. Returns its status.
 */
int ku_err_put(const struct kumi_error *error);
/*
 * This thread's record. Copy it to keep it.
 */
const struct kumi_error *ku_err_get(void);
/* Sets the rank that this thread's records carry from now on; -1 outside a job. */
void ku_err_rank(int rank);
int ku_err_get_rank(void);
/* Prints "kumi: error: <text>" of the thread's record as one line, with one write. */
void ku_err_print(void);

/*
 * Checks an invariant of kumi itself, in release builds too. If it is broken, prints file, line and
 * condition and aborts; the `kumi` command exits with 70.
 */
#define KU_ASSERT(condition)                                                                       \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0))                                                     \
            ku_bug(__FILE__, __LINE__, #condition);                                                \
    } while (0)
void ku_bug(const char *file, int line, const char *condition) __attribute__((noreturn, cold));

#endif
